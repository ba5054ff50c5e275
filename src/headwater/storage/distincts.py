"""About how many different values the columns of a table have, from sketches of its files.

Files never change, so a sketch is made once; a table that grew costs what is new of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.types import PrimitiveType

from headwater.catalog.topics import Topic
from headwater.storage.checksums import decoding
from headwater.storage.parquet_footers import FileFacts, LeafType, field_id
from headwater.storage.schemas import arrow_schema
from headwater.storage.sketch import Hashes, Sketch, estimate, merged, sketch
from headwater.storage.writer import local_path

MAX_VALUES = 20_000_000
"""Values of all columns together that are looked at to tell how many are distinct; beyond that, those of some files."""
MAX_SKETCHES = 4096
BATCH_ROWS = 128 * 1024


class Distincts:
    """Sketches of the columns of files, kept because files never change, the least recently used leaving first."""

    def __init__(self, max_values: int = MAX_VALUES, max_sketches: int = MAX_SKETCHES) -> None:
        self._max_values = max_values
        self._max_sketches = max_sketches
        self._held: OrderedDict[tuple[str, str, str], Sketch] = OrderedDict()
        self._lock = Lock()

    def count(self, topic: Topic, files: Sequence[DataFile], facts: Sequence[FileFacts]) -> dict[int, tuple[int, int]]:
        """By field id of each top-level column that is not nested: about how many values, and in how many rows."""
        schema = arrow_schema(topic.schema)
        wanted = {
            field.field_id: schema.field(field.name).type
            for field in topic.schema.fields
            if isinstance(field.field_type, PrimitiveType)
        }
        some = spread(list(zip(files, facts, strict=True)), self._max_values // max(len(wanted), 1), _rows)
        sketches: dict[int, list[Sketch]] = {id: [] for id in wanted}
        hashes = Hashes()
        try:
            for _, each in some:
                for leaf in each.leaves:
                    if (id := field_id(leaf.type, topic.schema)) in wanted and "." not in leaf.type.path:
                        sketches[id].append(self._of(each.path, leaf.type, wanted[id], hashes))
        finally:
            hashes.close()
        rows = sum(_rows(pair) for pair in some)
        return {id: (estimate(merged(of)), rows) for id, of in sketches.items()}

    def _of(self, path: str, leaf: LeafType, type: pa.DataType, hashes: Hashes) -> Sketch:
        key = (path, leaf.path, str(type))
        with self._lock:
            if (held := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                return held
        found = sketch(hashes.of(column) for column in _column(path, leaf.path, type))
        with self._lock:
            self._held[key] = found
            while len(self._held) > self._max_sketches:
                self._held.popitem(last=False)
        return found


def _rows(pair: tuple[DataFile, FileFacts]) -> int:
    return int(pair[0].record_count)


def spread(files: Sequence[Any], most: int, rows: Callable[[Any], int]) -> list[Any]:
    """All files, or as many as have about `most` rows together, evenly from the first to the last; at least one."""
    total = sum(map(rows, files))
    if total <= most or len(files) < 2:
        return list(files)
    count = max(1, min(len(files), len(files) * most // total))
    places = sorted({round(place * (len(files) - 1) / max(count - 1, 1)) for place in range(count)})
    return [files[place] for place in places]


def _column(path: str, name: str, type: pa.DataType) -> Iterator[pa.Array]:
    """A column of a file, batch by batch, in the type that it has now."""
    source = local_path(path)
    with decoding(source), pq.ParquetFile(source, page_checksum_verification=True) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=[name]):
            values = batch.column(0)
            yield values if values.type == type else values.cast(type)
