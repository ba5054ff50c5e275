"""kill -9 at every step of a conversion: however often it happens, every row of the file is in the topic once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from headwater.observability.failpoints import NAMES, VARIABLE

STEPS = [name for name in NAMES if name.startswith("convert.")]
ROWS = 150_000
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name}


def convert(lake: Path, file: Path, points: str = "") -> int:
    command = [sys.executable, "-m", "headwater", "-C", str(lake), "parquet", "convert", "t", str(file)]
    return subprocess.run(command, env={**CLEAN, VARIABLE: points}, capture_output=True, check=False).returncode


@pytest.mark.parametrize("point", STEPS)
def test_killed_while_converting(tmp_path: Path, point: str) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (id BIGINT NOT NULL, text STRING)")
    file = tmp_path / "a.ndjson"
    file.write_text("".join(f'{{"id": {n}, "text": "{n:0100}"}}\n' for n in range(ROWS)))
    assert convert(tmp_path / "lake", file, f"{point}=kill") == -signal.SIGKILL
    if point == "convert.noted":  # every run comes one chunk further
        while (code := convert(tmp_path / "lake", file, f"{point}=kill")) == -signal.SIGKILL:
            pass
        assert code == 0
    else:
        assert convert(tmp_path / "lake", file) == 0
    assert convert(tmp_path / "lake", file) == 0
    with headwater.open(tmp_path / "lake") as lake:
        found = lake.sql("SELECT count(*) AS n, count(DISTINCT id) AS ids, max(_offset) AS last FROM t").rows()
        assert found == [{"n": ROWS, "ids": ROWS, "last": ROWS - 1}]
