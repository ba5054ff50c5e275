from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headwater.spark.daemon import path_without_archives, preload
from headwater.spark.spool import END_OF_STREAM, PartWriter


def test_archives_are_dropped_when_pyspark_is_installed() -> None:
    archives = ["/s/python/lib/pyspark.zip", "/s/python/lib/py4j-0.10.9.9-src.zip", "/s/jars/spark-core_2.13-4.1.3.jar"]
    assert path_without_archives([*archives, *sys.path]) == sys.path


def test_archives_stay_when_there_is_nothing_else(tmp_path: Path) -> None:
    path = ["/s/python/lib/pyspark.zip", str(tmp_path)]
    assert path_without_archives(path) == path


def test_preloading_reports_what_is_missing_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop("this", None)
    preload("no.such.module,colorsys")
    assert "no.such.module" in capsys.readouterr().err
    assert "colorsys" in sys.modules


def test_an_empty_part_leaves_no_file(tmp_path: Path) -> None:
    assert list(PartWriter(str(tmp_path), b"schema")(3, [])) == []
    assert list(PartWriter(str(tmp_path), b"schema")(3, [b"one", b"two"])) == ["part-00000003.arrow"]
    assert (tmp_path / "part-00000003.arrow").read_bytes() == b"schemaonetwo" + END_OF_STREAM
