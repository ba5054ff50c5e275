"""What the checkpoint of a streaming query says about its batches: where they start and end, and their watermark.

The file of a batch is written before the batch runs, so it is there while the batch is written to the view, and when
it is repeated after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import StreamFailed
from headwater.streaming.offsets import Place


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: the places that it reads from and to, topic by topic; one without a start is read from the first.

    Rows below `late_below_ms` (milliseconds since 1970) that belong to windows which end before it are too late;
    windows that end before `watermark_ms` are closed by the batch.
    """

    number: int
    starts: Mapping[str, Place]
    ends: Mapping[str, Place]
    watermark_ms: int
    late_below_ms: int


def read_batch(checkpoint: Path, number: int) -> Batch:
    """The batch of this number."""
    ends, watermark = _offsets(checkpoint, number)
    if number == 0:
        return Batch(0, {}, ends, watermark, 0)
    starts, before = _offsets(checkpoint, number - 1)
    return Batch(number, starts, ends, watermark, before)


def last_read(checkpoint: Path) -> Mapping[str, Place]:
    """Up to where finished batches have read; empty before the first one."""
    folder = checkpoint / "commits"
    finished = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []
    return _offsets(checkpoint, max(finished))[0] if finished else {}


def _offsets(checkpoint: Path, number: int) -> tuple[dict[str, Place], int]:
    path = checkpoint / "offsets" / str(number)
    try:
        version, metadata, *places = path.read_text(encoding="utf-8").splitlines()
        found = [Place.from_json(each) for each in places if each != "-"]
        watermark = int(json.loads(metadata)["batchWatermarkMs"])
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise StreamFailed(
            f"batch {number} has no offsets in its checkpoint", detail=f"{type(wrong).__name__}: {wrong}."
        ) from None
    if version != "v1":
        raise StreamFailed(f'checkpoint has version "{version}"', detail="Headwater reads version v1.")
    return {place.topic: place for place in found}, watermark
