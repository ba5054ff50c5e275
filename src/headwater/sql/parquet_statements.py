"""SHOW PARQUET STATS, SHOW PARQUET SCHEMA and RECOMMEND: what a topic's files are, and how they could be better."""

from __future__ import annotations

from headwater.errors import InvalidOption
from headwater.sql.cursor import Cursor
from headwater.sql.statements import SAMPLED_ROWS, Recommend, ShowParquetSchema, ShowParquetStats
from headwater.types import checked_name

MIN_SAMPLE, MAX_SAMPLE = 1_000, 10_000_000


def read_show_parquet(cursor: Cursor) -> ShowParquetStats | ShowParquetSchema:
    """SHOW PARQUET STATS OF topic [WITHOUT DISTINCT] | SHOW PARQUET SCHEMA OF topic."""
    if cursor.accept("SCHEMA"):
        cursor.context = "SHOW PARQUET SCHEMA"
        topic = _topic(cursor)
        cursor.expect_end()
        return ShowParquetSchema(topic)
    if not cursor.accept("STATS"):
        raise cursor.unexpected("STATS or SCHEMA", known=("STATS", "SCHEMA"))
    cursor.context = "SHOW PARQUET STATS"
    topic = _topic(cursor)
    without = cursor.accept("WITHOUT")
    if without:
        cursor.expect("DISTINCT")
    cursor.expect_end(known=("WITHOUT",))
    return ShowParquetStats(topic, not without)


def read_recommend(cursor: Cursor) -> Recommend:
    """RECOMMEND FOR topic [SAMPLE n ROWS] [APPLY]."""
    topic, rows = cursor.topic(), SAMPLED_ROWS
    if cursor.accept("SAMPLE"):
        place = cursor.token
        rows = cursor.integer("a number of rows")
        with cursor.locating(place):
            checked_sample(rows)
        cursor.expect("ROWS")
    apply = cursor.accept("APPLY")
    cursor.expect_end(known=("SAMPLE", "APPLY"))
    return Recommend(topic, apply, rows)


def recommend_of(topic: str, *, apply: bool = False, sample_rows: int = SAMPLED_ROWS) -> Recommend:
    """The same statement from its parts."""
    return Recommend(checked_name(topic, "topic"), apply, checked_sample(sample_rows))


def checked_sample(rows: int) -> int:
    """The number of rows, if a sample may have so many; otherwise InvalidOption."""
    if MIN_SAMPLE <= rows <= MAX_SAMPLE:
        return rows
    raise InvalidOption(f'sample of "{rows}" rows is not taken', detail=f"It takes {MIN_SAMPLE} to {MAX_SAMPLE}.")


def _topic(cursor: Cursor) -> str:
    cursor.expect("OF")
    return cursor.topic()
