"""Statements on a real lake against `tests/golden/sql/*.slt`: results, plans and error texts.

A case is a directive (`sql`, `produce <topic>`), the text, `----`, and what came of it, up to `====`; a file is one
lake, its cases run in order. What differs from run to run (snapshots, times, sizes) is masked. HEADWATER_REWRITE=1
rewrites the files; a person reads the diff. Spark's part of a flush runs in this process: the plan, the files and the
commit are the same, and no JVM is needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.engine import Lake
from headwater.errors import HeadwaterError
from headwater.storage.encode import json_rows
from headwater.topics import ingest

FOLDER = Path(__file__).parent
FILES = sorted((FOLDER / "sql").glob("*.slt"))
REWRITE = os.environ.get("HEADWATER_REWRITE") == "1"
MASKS = (
    (re.compile(r"snapshot \d+"), "snapshot <id>"),
    (re.compile(r"\d+(\.\d)? (B|KB|MB)\b"), "<size>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"), "<now>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "<now>"),
    (re.compile(r"\b\d+ bytes"), "<size>"),
)


def _parse_golden() -> Any:
    spec = importlib.util.spec_from_file_location("parse_golden", FOLDER / "test_parse_golden.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["parse_golden"] = module
    spec.loader.exec_module(module)
    return module


golden = _parse_golden()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", lambda _, log, into, entries: ingest.write_entries(log, into, entries))
    with headwater.init(tmp_path / "lake") as opened:
        monkeypatch.setattr(opened._ingester, "_spark", lambda: None)
        yield opened


def evaluate(lake: Lake, directive: str, text: str) -> str:
    word, *rest = directive.split()
    if word == "produce":
        ack = lake.topic(rest[0]).append(text + "\n")
        return f"offsets {ack.offsets}, duplicates {ack.duplicates}, dead {ack.dead}"
    result = lake.sql(text)
    table = result.arrow()
    rows = [row for batch in table.to_batches() for row in json_rows(batch)]
    if result.columns == ["topic", "records", "files", "bytes", "seconds", "snapshot"]:
        rows = [row[:3] for row in rows]
    lines = [" | ".join("NULL" if value is None else str(value) for value in row) for row in rows]
    head = [] if result.columns in (["plan"], ["status"]) else [" | ".join(result.columns)]
    return "\n".join([*head, *lines, *(f"notice: {notice}" for notice in result.notices)])


def run(lake: Lake, directive: str, text: str) -> str:
    try:
        shown = evaluate(lake, directive, text)
    except HeadwaterError as error:
        parts = (f"error {type(error).__name__}: {error.message}", error.detail, error.hint and f"Hint: {error.hint}")
        shown = "\n".join(part for part in parts if part)
    for pattern, mask in MASKS:
        shown = pattern.sub(mask, shown)
    for made in (snapshot for topic in lake.topics.all() for snapshot in topic.table.metadata.snapshots):
        shown = shown.replace(str(made.snapshot_id), "<id>")
    return shown


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sql(path: Path, lake: Lake) -> None:
    written: list[str] = []
    wrong: list[str] = []
    for case in golden.read_cases(path):
        if isinstance(case, str):
            written.append(case)
            continue
        shown = run(lake, case.directive, case.text)
        written += [case.directive, *case.text.splitlines(), "----", *shown.splitlines(), "===="]
        if shown != case.expected:
            wrong.append(f"{path.name}:{case.line}\nexpected:\n{case.expected}\nshown:\n{shown}")
    if REWRITE:
        path.write_text("\n".join(written) + "\n", encoding="utf-8")
    else:
        assert not wrong, "\n\n".join(wrong)
    assert lake.spark_state == "not started"
