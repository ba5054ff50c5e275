from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.spark.daemon import path_without_archives, preload
from headwater.spark.spool import END_OF_STREAM, LOOK_EVERY, PartWriter, ResultLimit


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


def test_a_part_that_is_too_large_is_refused_while_it_is_written(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": ["y" * 1000] * 100})
    schema, message = batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield message

    assert list(PartWriter(str(tmp_path), schema, 200, 10**9)(0, [message, message]))
    with pytest.raises(ResultLimit, match="rows 200"):
        list(PartWriter(str(tmp_path), schema, 200)(1, endless()))
    assert taken == 3
    with pytest.raises(ResultLimit, match="bytes 1000000"):
        list(PartWriter(str(tmp_path), schema, max_bytes=1_000_000)(2, endless()))
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) < 2 * LOOK_EVERY
