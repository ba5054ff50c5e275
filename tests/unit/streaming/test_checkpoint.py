"""What is read from the files that Spark writes before a batch runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.errors import StreamFailed
from headwater.streaming.checkpoint import Batch, read_batch
from headwater.streaming.offsets import Place


def write(folder: Path, number: int, watermark: int, *places: Place | None, version: str = "v1") -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {"a": "b"}})
    lines = [version, metadata, *("-" if each is None else each.to_json() for each in places)]
    (folder / "offsets" / str(number)).write_text("\n".join(lines))


def test_the_first_batch_reads_from_the_beginning_and_nothing_is_late(tmp_path: Path) -> None:
    end = Place("orders", 7, 100)
    write(tmp_path, 0, 0, end)
    assert read_batch(tmp_path, 0) == Batch(0, {}, {"orders": end}, 0, 0)


def test_a_batch_goes_on_from_the_one_before_and_takes_its_watermark_for_late_records(tmp_path: Path) -> None:
    write(tmp_path, 4, 1_000, Place("orders", 7, 100), None)
    write(tmp_path, 5, 2_000, Place("orders", 8, 120), Place("clicks", 3, 5))
    found = read_batch(tmp_path, 5)
    assert found.starts == {"orders": Place("orders", 7, 100)}
    assert found.ends == {"orders": Place("orders", 8, 120), "clicks": Place("clicks", 3, 5)}
    assert (found.number, found.watermark_ms, found.late_below_ms) == (5, 2_000, 1_000)


def test_a_topic_that_is_read_twice_is_one_source(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, Place("orders", 7, 100), Place("orders", 7, 100))
    assert read_batch(tmp_path, 0).ends == {"orders": Place("orders", 7, 100)}


def test_what_is_missing_or_of_another_version_is_told(tmp_path: Path) -> None:
    with pytest.raises(StreamFailed, match="batch 3 has no offsets in its checkpoint"):
        read_batch(tmp_path, 3)
    write(tmp_path, 0, 0, version="v2")
    with pytest.raises(StreamFailed, match='checkpoint has version "v2"'):
        read_batch(tmp_path, 0)


def test_places_come_back_from_json() -> None:
    for place in (Place("t"), Place("t", 5, 10)):
        assert Place.from_json(place.to_json()) == place
    assert Place("t").is_start
    assert not Place("t", 1).is_start
