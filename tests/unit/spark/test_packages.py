from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from headwater.errors import Corrupt, Unavailable
from headwater.spark.java import Java
from headwater.spark.packages import (
    PAUSES,
    ensure_packages,
    ivy_module,
    locked_packages,
    verify_packages,
)

CONTENTS = {"a-1.jar": b"first" * 100, "b-2.jar": b"second" * 100}


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    entries = [
        f'[[core]]\ncoordinates = "org.x:{name[0]}:{name[2]}"\nfile = "{name}"\n'
        f'size = {len(content)}\nsha256 = "{hashlib.sha256(content).hexdigest()}"\n'
        for name, content in CONTENTS.items()
    ]
    file = tmp_path / "packages.lock"
    file.write_text("\n".join(entries))
    return file


def _registry(folder: Path, *, failures: int = 0, contents: dict[str, bytes] = CONTENTS, delay: float = 0) -> Java:
    """A stand-in for `java -jar ivy`: puts the files into its working folder, after failing a number of times."""
    served = folder / "served"
    served.mkdir(parents=True)
    for name, content in contents.items():
        (served / name).write_bytes(content)
    script = folder / "java"
    script.write_text(
        f"""#!/bin/sh
echo run >> {folder}/runs
[ "$(wc -l < {folder}/runs)" -le {failures} ] && echo ':: org.x#a;1: not found' && exit 1
sleep {delay}
for file in a-1.jar b-2.jar; do
  name=$(echo $file | cut -c1); grep -q "name=\\"$name\\"" ivy.xml && cp {served}/$file . 2>/dev/null
done
exit 0
"""
    )
    script.chmod(0o755)
    return Java(script, 17)


def _runs(folder: Path) -> int:
    file = folder / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_fetches_once_and_then_touches_nothing(tmp_path: Path, lock_file: Path) -> None:
    java, lines = _registry(tmp_path / "r"), list[str]()
    files = ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file)
    assert [file.read_bytes() for file in files] == list(CONTENTS.values())
    assert lines == ["fetching a-1.jar (1 MB)", "fetching b-2.jar (1 MB)"]
    assert ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file) == files
    assert (_runs(tmp_path / "r"), len(lines)) == (1, 2)
    assert sorted(path.name for path in (tmp_path / "cache" / "jars").iterdir()) == [".lock", "a-1.jar", "b-2.jar"]


def test_present_packages_need_no_java(tmp_path: Path, lock_file: Path) -> None:
    nothing = Java(Path("/nonexistent/java"), 17)
    files = ensure_packages(tmp_path / "cache", lambda line: None, _registry(tmp_path / "r"), lock_file=lock_file)
    assert ensure_packages(tmp_path / "cache", lambda line: None, nothing, lock_file=lock_file) == files


def test_fetches_only_what_is_missing_or_cut_short(tmp_path: Path, lock_file: Path) -> None:
    java, lines = _registry(tmp_path / "r"), list[str]()
    files = ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file)
    lines.clear()
    files[1].write_bytes(b"cut")
    ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file)
    assert lines == ["fetching b-2.jar (1 MB)"]
    assert files[1].read_bytes() == CONTENTS["b-2.jar"]


def test_a_busy_registry_is_asked_again_after_a_pause(tmp_path: Path, lock_file: Path) -> None:
    pauses = list[float]()
    java = _registry(tmp_path / "r", failures=2)
    ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file, sleep=pauses.append)
    assert pauses == list(PAUSES[:2])


def test_an_absent_registry_is_an_error_that_says_what_to_do(tmp_path: Path, lock_file: Path) -> None:
    java = _registry(tmp_path / "r", failures=99)
    with pytest.raises(Unavailable) as raised:
        ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file, sleep=lambda pause: None)
    assert raised.value.message == 'package "org.x:a:1" could not be fetched'
    assert "not found" in (raised.value.detail or "")
    assert "a-1.jar" in (raised.value.hint or "")
    assert _runs(tmp_path / "r") == len(PAUSES) + 1
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_a_changed_file_is_not_kept(tmp_path: Path, lock_file: Path) -> None:
    java = _registry(tmp_path / "r", contents={**CONTENTS, "a-1.jar": b"evil!" * 100})
    with pytest.raises(Unavailable, match="another checksum"):
        ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file)
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_of_two_that_fetch_at_once_one_waits(tmp_path: Path, lock_file: Path) -> None:
    java = _registry(tmp_path / "r", delay=0.3)
    found = list[tuple[Path, ...]]()

    def fetch() -> None:
        found.append(ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file))

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert _runs(tmp_path / "r") == 1


def test_a_cache_that_cannot_be_written(tmp_path: Path, lock_file: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(Unavailable) as raised:
        ensure_packages(tmp_path / "cache", lambda line: None, _registry(tmp_path / "r"), lock_file=lock_file)
    assert "HEADWATER_CACHE" in (raised.value.hint or "")


def test_verification_reads_every_byte(tmp_path: Path, lock_file: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(Unavailable, match="is not in the cache"):
        verify_packages(cache, lock_file=lock_file)
    files = ensure_packages(cache, lambda line: None, _registry(tmp_path / "r"), lock_file=lock_file)
    assert verify_packages(cache, lock_file=lock_file) == files
    flipped = bytearray(files[1].read_bytes())
    flipped[7] ^= 1
    files[1].write_bytes(flipped)
    with pytest.raises(Corrupt, match=r"org\.x:b:2"):
        verify_packages(cache, lock_file=lock_file)


def test_the_packaged_lock_file() -> None:
    packages = locked_packages()
    assert [package.coordinates for package in packages] == [
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "org.xerial:sqlite-jdbc:3.53.4.0",
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "org.brotli:dec:0.1.2",
    ]
    assert all(package.file == f"{package.name}-{package.version}.jar" for package in packages)
    assert all(len(package.sha256) == 64 and package.size > 0 for package in packages)
    assert locked_packages(("core", "core")) == packages
    assert '<dependency org="org.xerial" name="sqlite-jdbc" rev="3.53.4.0"/>' in ivy_module(packages)


def test_a_package_that_was_replaced_is_not_used(tmp_path: Path, lock_file: Path) -> None:
    java = _registry(tmp_path / "r")
    files = ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file)
    evil = bytes(reversed(files[0].read_bytes()))  # of the same size
    assert evil != files[0].read_bytes()
    files[0].write_bytes(evil)
    with pytest.raises(Corrupt, match="does not match its checksum"):
        ensure_packages(tmp_path / "cache", lambda line: None, java, lock_file=lock_file)


def test_a_package_that_others_could_change_after_its_verification_is_not_used(tmp_path: Path, lock_file: Path) -> None:
    java, lines = _registry(tmp_path / "r"), list[str]()
    files = ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file)
    lines.clear()
    files[0].chmod(0o666)  # of this user: it is closed, and needs no registry
    elsewhere = files[1].rename(tmp_path / "elsewhere")
    files[1].symlink_to(elsewhere)
    assert ensure_packages(tmp_path / "cache", lines.append, java, lock_file=lock_file) == files
    assert files[0].stat().st_mode & 0o777 == 0o644
    assert not files[1].is_symlink() and lines == ["fetching b-2.jar (1 MB)"]
