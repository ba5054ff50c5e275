"""A service's memory: small bodies that would become large, and steady load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured in /proc")


@pytest.mark.slow
def test_small_bodies_that_would_become_large_are_refused_before_they_do(tmp_path: Path) -> None:
    script = Path(__file__).with_name("body_attacks.py")
    ran = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    refusals = {(status, code) for status, code, _ in found["answers"].values()}
    assert refusals == {(413, "body_too_large"), (422, "records_rejected")}, found
    heavy_records = {name for name, (status, *_) in found["answers"].items() if status == 422}
    assert {"a list of empty objects", "a list in a cell", "a list beside a map"} <= heavy_records
    assert len(found["answers"]) == 31
    assert all(size < 400_000 for *_, size in found["answers"].values()), found
    assert "Exception ignored" not in ran.stderr


def test_a_record_takes_no_more_than_a_few_times_its_text() -> None:
    """Millions of values within one record, each of which Python needs a hundred bytes for: as text they are three."""
    script = Path(__file__).with_name("record_attacks.py")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found.keys() == {"cut", "ndjson", "json", "tolerant", "beside a map", "sound"}
    assert found.pop("sound") == "1 row"
    assert all("unknown field" in said or "bytes once it is decoded" in said for said in found.values()), found


@pytest.mark.slow
def test_memory_levels_off_under_steady_load(tmp_path: Path) -> None:
    """The short form of `make soak`: it catches what grows with every request."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bench.soak import soak

    found = soak(tmp_path / "lake", 20, 700, spark=False)
    assert found["verdict"] == "ok", found
    assert found["requests"] > 100
