"""Records of a batch that came too late, found in its files: most are passed over by the least time that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.catalog.topics import Topic, Topics
from headwater.storage.checksums import decoding
from headwater.storage.field_ids import plan_reading
from headwater.storage.writer import local_path
from headwater.streaming.checkpoint import Batch
from headwater.streaming.lateness import LateRule
from headwater.streaming.offsets import File
from headwater.streaming.plan import Continuous
from headwater.streaming.reading import TopicFiles
from headwater.types import OFFSET


@dataclass(frozen=True, slots=True)
class Late:
    """Records of one topic that were too late, in the order of their offsets, and their event times."""

    topic: str
    rows: pa.Table = field(repr=False)
    moments: np.ndarray = field(repr=False)


class LateFinder:
    """Finds late records of the batches of one query."""

    def __init__(self, plan: Continuous, rules: Mapping[str, LateRule], topics: Topics, read: TopicFiles) -> None:
        self._rules = rules
        self._topics = topics
        self._read = read
        self._times = {each.table.name: each.stream.event_time for each in plan.outline.streams if each.stream}

    def find(self, batch: Batch) -> list[Late]:
        """Those of a batch; before there is a watermark, those of before 1970, where the first one stands."""
        found = [self._of(topic, batch) for topic in self._rules if topic in batch.ends]
        return [each for each in found if each.rows.num_rows]

    def _of(self, name: str, batch: Batch) -> Late:
        topic, column, watermark = self._topics.load(name), self._times[name], batch.late_below_ms * 1000
        parts = list(_candidates(topic, self._read.span(batch, name).files, column, watermark))
        rows = pa.concat_tables(parts) if parts else None
        if rows is None:
            return Late(name, pa.table({}), np.empty(0, np.int64))
        rows = rows.sort_by(OFFSET)
        moments = _micros(rows.column(column))
        late = self._rules[name].late(moments, watermark)
        return Late(name, rows.filter(pa.array(late)), moments[late])


def _candidates(topic: Topic, files: Sequence[File], column: str, watermark: int) -> Iterator[pa.Table]:
    """Rows whose event time is below the watermark, in the topic's columns."""
    field_id = topic.schema.find_field(column).field_id
    for path, _, _ in files:
        source = local_path(path)
        with decoding(source), pq.ParquetFile(source, page_checksum_verification=True) as file:
            reading = plan_reading(file.schema_arrow, topic.schema, path)
            groups = [each for each in range(file.num_row_groups) if _may_hold(file, each, field_id, watermark)]
            for batch in file.iter_batches(row_groups=groups, columns=list(reading.columns)) if groups else ():
                rows = pa.Table.from_batches([reading.batch(batch)])
                below = pc.less_equal(pc.cast(_whole(rows.column(column)), pa.int64()), watermark)
                yield rows.filter(pc.fill_null(below, False))


def _may_hold(file: pq.ParquetFile, group: int, field_id: int, watermark: int) -> bool:
    """Whether a row group may have moments below the watermark; the column is found by its id, which names outlive."""
    for stored in file.schema_arrow:
        if (stored.metadata or {}).get(b"PARQUET:field_id") != str(field_id).encode():
            continue
        chunks = map(file.metadata.row_group(group).column, range(file.metadata.num_columns))
        found = next((each.statistics for each in chunks if each.path_in_schema == stored.name), None)
        if found is None or not found.has_min_max:
            return True
        return bool(pa.scalar(found.min, pa.timestamp("us", stored.type.tz)).value <= watermark)
    return True


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us", column.type.tz))


def _micros(column: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = pc.cast(_whole(column), pa.int64()).to_numpy()
    return found
