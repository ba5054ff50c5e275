"""All advice about one topic, from its definition, a sample of its rows and what queries asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headwater.catalog.metadata import summary_count
from headwater.catalog.topics import Topic
from headwater.sql.options import option
from headwater.state.usage import TopicUsage
from headwater.storage.advice.order import Setting, advise_blooms, advise_ordering, advise_partitioning
from headwater.storage.advice.skipping import questions_of
from headwater.storage.advice.space import advise_space
from headwater.storage.advice.values import Effect, Recommendation
from headwater.storage.layout import Layout, layout_of

MIN_ROWS = 100
"""Rows below which a sample says nothing."""
MAX_GROUP_BYTES = 512 * 1024**2
GOOD_GROUP_BYTES = 128 * 1024**2
"""Bytes of a row group in memory that are too many, and those that are not."""
FEWEST_ROWS = 1024


def recommend(topic: Topic, sample: pa.Table, usage: TopicUsage) -> tuple[Recommendation, ...]:
    """What is worth changing, from rows in all of the topic's columns; nothing is an answer."""
    if sample.num_rows < MIN_ROWS:
        return ()
    return tuple(_ideas(topic, sample, usage, layout_of(topic)))


def _ideas(topic: Topic, sample: pa.Table, usage: TopicUsage, layout: Layout) -> Iterator[Recommendation]:
    rows = sample
    snapshot = topic.table.metadata.current_snapshot()
    stored_rows = summary_count(snapshot, "total-records") or sample.num_rows
    questions = questions_of(topic.schema, usage)
    # With all rows in one row group there is nothing that could be skipped.
    if questions and stored_rows > layout.row_group_rows:
        size = summary_count(snapshot, "total-files-size")
        setting = Setting(topic, sample, layout, usage, questions, size)
        parts = list(advise_partitioning(setting))
        yield from parts
        order, rows = advise_ordering(setting, frozenset(name for each in parts for name in each.columns))
        yield from (order,) if order is not None else ()
        yield from advise_blooms(setting, rows)
    yield from advise_space(topic, rows, layout)
    yield from _row_groups(sample, layout)


def _row_groups(sample: pa.Table, layout: Layout) -> Iterator[Recommendation]:
    """Fewer rows in a row group where they are so wide that one takes much memory to write and to read."""
    wide = sample.nbytes / sample.num_rows
    if wide * layout.row_group_rows <= MAX_GROUP_BYTES:
        return
    rows = max(FEWEST_ROWS, 1 << int(GOOD_GROUP_BYTES / wide).bit_length() - 1)
    if rows >= layout.row_group_rows:
        return
    size = int(wide * layout.row_group_rows) // 1024**2
    yield Recommendation(
        kind="row_groups",
        columns=(),
        current=f"{layout.row_group_rows} rows",
        proposed=f"{rows} rows",
        effect=Effect(int(wide * layout.row_group_rows), int(wide * rows)),
        why=f"rows are so wide that a row group has about {size} MB in memory",
        confidence="high",
        option="row_group_rows",
        value=str(rows),
    )


def settings_of(recommendations: Sequence[Recommendation]) -> dict[str, str]:
    """The topic options that they set, with all values that these then have."""
    return {each.option: each.value for each in recommendations if each.option is not None and each.value is not None}


def change_of(recommendations: Sequence[Recommendation]) -> str | None:
    """What follows ALTER TOPIC name to make all of them at once; None if there are none."""
    options = [f"{name} = {option(name).literal(value)}" for name, value in settings_of(recommendations).items()]
    clauses = [each.clause for each in recommendations if each.clause is not None]
    return ", ".join([*([f"SET ({', '.join(options)})"] if options else []), *clauses]) or None
