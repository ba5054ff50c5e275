"""The file of classes: one for each installation, whole or not at all, and never in the way."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.spark.archive import KEPT, archive_file, make_archive, reading, writing
from headwater.spark.java import Java
from headwater.spark.session import SparkSettings, conf

JARS = (Path("/jars/a.jar"), Path("/jars/b.jar"))


@pytest.fixture
def java(tmp_path: Path) -> Java:
    executable = tmp_path / "java"
    executable.touch()
    return Java(executable, 17)


def test_every_installation_has_its_own(tmp_path: Path, java: Java) -> None:
    file = archive_file(tmp_path, java, JARS)
    assert file == archive_file(tmp_path, java, JARS)
    other = tmp_path / "other"
    other.touch()
    os.utime(java.executable, (1, 1))  # another version in its place
    found = {
        file,
        archive_file(tmp_path, java, JARS),
        archive_file(tmp_path, java, JARS[:1]),
        archive_file(tmp_path, replace(java, executable=other), JARS),
    }
    assert len(found) == 4


def test_a_jvm_is_told_of_it_only_if_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "x y.jsa"
    assert reading(file) == ()
    file.touch()
    wanted = SparkSettings(warehouse="w", catalog_uri="c", scratch=tmp_path, jvm=reading(file))
    assert f'"-XX:SharedArchiveFile={file}"' in conf(wanted, JARS)["spark.driver.extraJavaOptions"]
    assert writing(file) == (f"-XX:ArchiveClassesAtExit={file}",)


def test_it_is_whole_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "classes" / "a.jsa"

    def fails(written: Path) -> None:
        written.write_text("half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        make_archive(file, fails)
    assert not make_archive(file, lambda _: None)  # a JVM that makes none
    assert list(file.parent.iterdir()) == []
    assert make_archive(file, Path.touch)
    assert [each.name for each in file.parent.iterdir()] == ["a.jsa"]


def test_old_ones_go(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        old = tmp_path / f"{number}.jsa"
        old.touch()
        os.utime(old, (number, number))
    make_archive(tmp_path / "new.jsa", Path.touch)
    assert {each.stem for each in tmp_path.iterdir()} == {"new", *map(str, range(3, KEPT + 3))}
