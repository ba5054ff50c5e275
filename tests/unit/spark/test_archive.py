"""The file of classes: one for each installation, whole or not at all, and never in the way."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.errors import InvalidSetting, Unavailable
from headwater.spark import built
from headwater.spark.archive import KEPT, archive_file, make_archive, reading, writing
from headwater.spark.compiled import _version, ensure_classes
from headwater.spark.java import Java, find_java
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
    assert reading(file) == ()  # nobody has recorded what it is
    built.record(file)
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
    assert sorted(each.name for each in file.parent.iterdir()) == ["a.jsa", "a.jsa.sha256"]


def test_old_ones_go(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        old = tmp_path / f"{number}.jsa"
        old.touch()
        os.utime(old, (number, number))
    make_archive(tmp_path / "new.jsa", Path.touch)
    assert {each.stem for each in tmp_path.glob("*.jsa")} == {"new", *map(str, range(3, KEPT + 3))}


def test_a_file_that_changed_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "a.jsa"
    make_archive(file, lambda written: written.write_bytes(b"classes"))
    assert reading(file)
    again = tmp_path / "copy"
    again.write_bytes(b"classes")
    again.replace(file)  # another inode with the same bytes
    assert reading(file)
    before = file.stat()
    file.write_bytes(b"evilses")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reading(file) == ()
    built.remove(file)
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_can_write_into_a_folder_of_code(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    built.close_folder(folder)
    assert folder.stat().st_mode & 0o022 == 0
    folder.chmod(0o775)
    built.close_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o755
    (folder / "a.jar").touch()
    (folder / "a.jar").chmod(0o666)
    built.close_folder(folder)
    assert (folder / "a.jar").stat().st_mode & 0o777 == 0o644


def _built(file: Path) -> Path:
    """A file with a record of its digest."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"classes")
    built.record(file)
    assert built.is_intact(file)
    return file


@pytest.mark.parametrize("suffix", ["", ".sha256"])
def test_what_others_could_have_written_is_not_trusted(tmp_path: Path, suffix: str) -> None:
    file = _built(tmp_path / "classes" / "a.jsa")
    open_to_others = Path(f"{file}{suffix}")
    open_to_others.chmod(0o666)
    assert not built.is_intact(file)
    open_to_others.chmod(0o644)
    moved = tmp_path / "elsewhere"
    open_to_others.replace(moved)
    open_to_others.symlink_to(moved)
    assert not built.is_intact(file)
    assert reading(file) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("planted", ["folder", "file", "record"])
def test_code_of_another_user_is_never_run(tmp_path: Path, planted: str) -> None:
    classes = _built(tmp_path / "classes" / f"headwater-{_version(JARS)}.jar")
    archive = _built(tmp_path / "classes" / "a.jsa")
    assert ensure_classes(tmp_path, Java(Path("/bin/false"), 17), JARS) == classes
    assert reading(archive)
    for file in (classes, archive):
        stranger = {"folder": file.parent, "file": file, "record": Path(f"{file}.sha256")}[planted]
        os.chown(stranger, 12345, 12345)
    classes.parent.chmod(0o777)  # as it was when they were put there
    refused = InvalidSetting if planted == "folder" else Unavailable  # the classes are compiled, by a broken Java
    with pytest.raises(refused):
        ensure_classes(tmp_path, Java(Path("/bin/false"), 17), JARS)
    if planted == "folder":
        with pytest.raises(InvalidSetting):
            reading(archive)
    else:
        assert reading(archive) == ()


@pytest.mark.parametrize("script", ["exit 1", "echo no memory; echo no port >&2; exit 1", None])
def test_a_java_that_cannot_compile_is_named(tmp_path: Path, script: str | None) -> None:
    java = tmp_path / "java"
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    with pytest.raises(Unavailable, match="spark did not start") as failed:
        ensure_classes(tmp_path / "cache", Java(java, 17), JARS)
    assert failed.value.detail is not None and failed.value.detail.startswith("Headwater's Java classes could not be")
    if script and "memory" in script:
        assert "no memory no port" in failed.value.detail
    assert list((tmp_path / "cache" / "classes").iterdir()) == []


@pytest.mark.spark
def test_java_that_refuses_our_classes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.spark.compiled._source", lambda name: f"class {name} {{ int x = ; }}")
    with pytest.raises(Unavailable, match="spark did not start") as failed:
        ensure_classes(tmp_path, find_java(), ())
    assert "Unexpected token" in str(failed.value.detail) and "\n" not in str(failed.value.detail)
