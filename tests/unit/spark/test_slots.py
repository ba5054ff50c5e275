"""The number of Spark's slots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.spark.slots import slots, usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("said", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("", 8), ("nonsense", 8)],
)
def test_cores_are_those_that_the_container_grants(tmp_path: Path, said: str, cores: int) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(said)
    assert usable_cores(quota) == cores
    assert slots("local[*]", quota) == {"spark.master": f"local[{cores + 1}]", "spark.default.parallelism": str(cores)}


def test_without_a_quota_all_cores_count(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "missing") == 8


@pytest.mark.parametrize("master", ["local", "local[2]", "spark://somewhere:7077", "yarn"])
def test_who_says_a_number_gets_it(master: str) -> None:
    assert slots(master) == {"spark.master": master}
