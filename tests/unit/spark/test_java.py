from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import JavaMissing
from headwater.spark.java import find_java, parse_version


def _java(home: Path, script: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_versions(output: str, version: int | None) -> None:
    assert parse_version(output) == version


def test_java_home_wins_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = _java(tmp_path / "home", "echo 'openjdk version \"21.0.1\"' >&2")
    on_path = _java(tmp_path / "path", "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert (find_java().executable, find_java().version) == (at_home, 21)
    monkeypatch.delenv("JAVA_HOME")
    assert (find_java().executable, find_java().version) == (on_path, 17)


def test_missing_java_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing) as raised:
        find_java()
    assert raised.value.message == "java is not installed"
    assert "apt install" in (raised.value.hint or "")
    assert "brew install" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "is version 11"),
        ("exit 3", "does not run"),
        ("echo hello", "does not say which version it is"),
    ],
)
def test_unusable_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    _java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=message):
        find_java()


def test_java_home_without_java_is_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path / "path", "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaMissing, match=r"has no bin/java"):
        find_java()
