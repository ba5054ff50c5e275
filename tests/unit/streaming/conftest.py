"""A lake without Spark: files are written and committed in this process, everything else is real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.topics import ingest


def write_in_process(_: Any, reader: Any, into: Any, entries: Any) -> Any:
    return ingest.write_entries(reader, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    with Lake.init(tmp_path / "lake") as opened:
        opened._spark = type("NoSpark", (), {"session": None, "stop": lambda self: None})()
        yield opened
