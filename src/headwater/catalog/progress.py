"""How far the stream that keeps a view has come: a property of the view's table, moved in the commit of every epoch.

It stands in the table's properties and not only in snapshot summaries, because snapshots expire: whoever repeats an
epoch after any time finds out that it was committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

P_STREAM = "headwater.view.stream"
S_EPOCH = "headwater.epoch"

BATCHES_RETAINED = 40
"""Batches that a checkpoint retains, so that it can be cut back to the epoch that the view's table has."""
BATCHES_UNCOMMITTED = 20
"""Batches without output after which a stream commits its epoch; well below BATCHES_RETAINED."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`generation` counts the queries that kept the view; `folder` holds the checkpoint of this one.

    `epoch` is the last batch that is in the table. Counts are of this generation: records that were read, rows that
    were written, records that came too late, and times that records were changed or deleted which had been read.
    """

    generation: int
    folder: str
    epoch: int = -1
    watermark_ms: int = 0
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    skipped: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def progress_of(properties: Mapping[str, str]) -> Progress | None:
    """The progress that a view's table tells; None if no stream keeps the view."""
    said = properties.get(P_STREAM)
    return None if said is None else Progress(**json.loads(said))
