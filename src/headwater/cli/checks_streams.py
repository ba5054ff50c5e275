"""The doctor's view of continuous views: whether the checkpoints that their streams go on from are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table import StaticTable

from headwater.catalog.progress import progress_of
from headwater.cli.checks import Check, failed
from headwater.cli.screen import counted
from headwater.config import LakePaths
from headwater.errors import Corrupt
from headwater.streaming.checkpoint_damage import check_checkpoint
from headwater.types import TableName


def check_streams(paths: LakePaths, tables: Mapping[TableName, StaticTable], *, deep: bool) -> Iterator[Check]:
    """One check for all of them, if there are any; folders that no view has are swept by `serve`."""
    kept = {name.name: found for name, table in tables.items() if (found := progress_of(table.metadata.properties))}
    gone = [name for name, found in kept.items() if not (paths.streams / found.folder / "checkpoint").is_dir()]
    if gone:
        message = f"{counted(len(gone), 'continuous view')} lost the checkpoint of the stream: {', '.join(gone[:3])}"
        action = "Build it again from its topics, with CREATE OR REPLACE MATERIALIZED VIEW."
        yield Check("streams", "fail", message, action)
    damaged = False
    for name, found in kept.items():
        try:
            if name not in gone:
                check_checkpoint(name, paths.streams / found.folder / "checkpoint", deep=deep)
        except Corrupt as error:
            damaged = True
            yield failed("streams", error)
    if kept and not gone and not damaged:
        yield Check(
            "streams", "ok", f"{counted(len(kept), 'continuous view')} with a stream, every checkpoint is there"
        )
