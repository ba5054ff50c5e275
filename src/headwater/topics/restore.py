"""The records of a damaged file, written anew from undamaged files in which a past state has them.

The commit is a `replace`: no row changes, and whoever follows the topic sees nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.catalog.topics import Topics
from headwater.errors import Corrupt, StaleCommit
from headwater.storage.checksums import verify_file
from headwater.storage.commit import Change, Committed, MadeFor, commit
from headwater.storage.maintenance.compact import Source, read_sources
from headwater.storage.time_travel import S_RESTORED
from headwater.storage.writer import PartitionedWriter, Target, local_path
from headwater.topics.ingest import remove_files, target
from headwater.types import OFFSET


def restore(
    topics: Topics, name: str, table_id: str, damaged: DataFile, sources: Sequence[DataFile], offsets: np.ndarray
) -> Committed:
    """Let new files with the records at `offsets` of `sources` stand for the damaged one; nothing changes otherwise."""
    topic = topics.load(name)
    for file in sources:
        verify_file(local_path(file.file_path), None, file.record_count)
    files = _written(target(topic), sources, offsets)

    def check(table: Table) -> None:
        if str(table.metadata.table_uuid) != table_id:
            raise StaleCommit(f'topic "{name}" was made anew')

    try:
        if (rows := sum(file.record_count for file in files)) != damaged.record_count:
            raise Corrupt(f'new files of topic "{name}" hold {rows} rows instead of {damaged.record_count}')
        change = Change(files, [damaged], "replace", {S_RESTORED: str(rows)}, made_for=MadeFor.of(topic.table))
        return commit(lambda: topics.tables.load_for_commit(topic.table_name), change, check)
    except (Corrupt, StaleCommit):
        remove_files(files)  # no table will ever refer to them
        raise


def _written(into: Target, sources: Sequence[DataFile], offsets: np.ndarray) -> list[DataFile]:
    from ulid import ULID

    writer = PartitionedWriter(into, lambda: str(ULID()).lower())
    try:
        for batch in _chosen(into, sources, offsets):
            writer.write(pa.Table.from_batches([batch]))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _chosen(into: Target, sources: Sequence[DataFile], offsets: np.ndarray) -> Iterator[pa.RecordBatch]:
    given = [Source(file.file_path, file.file_size_in_bytes, file.record_count) for file in sources]
    for batch in read_sources(given, into):
        held = np.isin(batch.column(OFFSET).to_numpy(zero_copy_only=False), offsets)
        if held.any():
            yield batch.filter(pa.array(held))
