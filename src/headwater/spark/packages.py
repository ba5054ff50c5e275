"""The JVM packages of a session: pinned in `packages.lock`, fetched once into a cache, and passed to Spark as files.

Spark can resolve packages itself, but does so at every start and over the network. A missing file is fetched by the Ivy
that ships inside PySpark, checked against its SHA-256, and renamed into place, so that a file in the cache is whole
however many processes fetch at once and whenever one of them is killed. Every start reads the files again and compares
them with the lock before a JVM runs them.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headwater.errors import Corrupt, Unavailable
from headwater.spark.built import close_folder, is_closed
from headwater.spark.java import Java

LOCK_FILE = Path(__file__).with_name("packages.lock")
CORE = ("core",)
PAUSES = (2.0, 5.0, 15.0)
"""Seconds between attempts: a registry that is asked too fast answers 429, which Ivy reports as "not found"."""
TIMEOUT = 1800.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Package:
    """One pinned file: where it comes from, and how to know that it is the right one."""

    organisation: str
    name: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"


def locked_packages(groups: Sequence[str] = CORE, lock_file: Path = LOCK_FILE) -> tuple[Package, ...]:
    """The pinned packages of `groups`, in order, each once."""
    lock = tomllib.loads(lock_file.read_text(encoding="utf-8"))
    return tuple(dict.fromkeys(_package(**entry) for group in groups for entry in lock[group]))


def _package(coordinates: str, file: str, size: int, sha256: str) -> Package:
    organisation, name, version = coordinates.split(":")
    return Package(organisation, name, version, file, size, sha256)


def ensure_packages(
    cache: Path,
    progress: Progress,
    java: Java,
    *,
    groups: Sequence[str] = CORE,
    lock_file: Path = LOCK_FILE,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Path, ...]:
    """The files of `groups` in the cache, fetched if they are missing and verified; Unavailable if they cannot be had,
    Corrupt if one is not what the lock names."""
    packages = locked_packages(groups, lock_file)
    folder = cache / "jars"
    try:
        close_folder(folder)
        if _missing(folder, packages):
            with _exclusive(folder):
                _fetch(folder, _missing(folder, packages), progress, java, sleep)
    except OSError as error:
        raise Unavailable(
            f'package cache "{folder}" cannot be written',
            detail=f"{error}.",
            hint="Set HEADWATER_CACHE_DIR to a folder that can be.",
        ) from error
    return verify_packages(cache, groups=groups, lock_file=lock_file)


def verify_packages(cache: Path, *, groups: Sequence[str] = CORE, lock_file: Path = LOCK_FILE) -> tuple[Path, ...]:
    """The files of `groups` in the cache, after reading every byte of them; Corrupt names the first wrong one."""
    files = []
    for package in locked_packages(groups, lock_file):
        file = cache / "jars" / package.file
        if not file.is_file():
            raise Unavailable(f'package "{package.coordinates}" is not in the cache', hint="Run `make setup`.")
        if _sha256(file) != package.sha256:
            raise Corrupt(
                f'package "{package.coordinates}" does not match its checksum',
                detail=f"{file} is not the file that packages.lock names.",
                hint="Delete it; the next start fetches it again.",
            )
        files.append(file)
    return tuple(files)


def ivy_module(packages: Sequence[Package]) -> str:
    """The Ivy file that asks for exactly `packages`."""
    dependencies = "\n".join(
        f"<dependency org={quoteattr(p.organisation)} name={quoteattr(p.name)} rev={quoteattr(p.version)}/>"
        for p in packages
    )
    return (
        '<ivy-module version="2.0"><info organisation="headwater" module="jars"/>\n'
        f"<dependencies>\n{dependencies}\n</dependencies></ivy-module>\n"
    )


def _missing(folder: Path, packages: Sequence[Package]) -> tuple[Package, ...]:
    """Those whose file is not there, has another size, or could be changed by another user after it was verified."""
    return tuple(package for package in packages if not _is_present(folder / package.file, package.size))


def _is_present(file: Path, size: int) -> bool:
    try:
        return is_closed(file) and file.stat().st_size == size
    except OSError:  # absent, or unreadable: then fetching says why
        return False


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the cache folder's lock, so that a second process waits and then finds the files present."""
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(
    folder: Path, packages: Sequence[Package], progress: Progress, java: Java, sleep: Callable[[float], None]
) -> None:
    if not packages:
        return
    for package in packages:
        progress(f"fetching {package.file} ({max(package.size // 1024**2, 1)} MB)")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        _retrieve(Path(name), packages, progress, java, sleep)
        for package in packages:
            _check_download(Path(name) / package.file, package)
        for package in packages:
            (Path(name) / package.file).chmod(0o644)
            (Path(name) / package.file).replace(folder / package.file)


def _retrieve(
    into: Path, packages: Sequence[Package], progress: Progress, java: Java, sleep: Callable[[float], None]
) -> None:
    """Run Ivy until every package is in `into`; what one attempt downloaded stays in its cache for the next."""
    (into / "ivy.xml").write_text(ivy_module(packages), encoding="utf-8")
    for pause in (*PAUSES, None):
        said = _run_ivy(into, java)
        absent = [package for package in packages if not (into / package.file).is_file()]
        if not absent:
            return
        if pause is None:
            raise Unavailable(
                f'package "{absent[0].coordinates}" could not be fetched',
                detail=said,
                hint=f"Check the network and try again, or put {absent[0].file} into {into.parent} yourself.",
            )
        progress(f"the registry did not answer for {absent[0].file}; trying again in {pause:.0f} s")
        sleep(pause)


def _run_ivy(into: Path, java: Java) -> str:
    """Run Ivy once in `into`; returns one sentence about how it ended."""
    command: list[str | Path] = [
        java.executable,
        "-jar",
        _ivy_jar(),
        "-ivy",
        "ivy.xml",
        "-m2compatible",
        "-notransitive",
    ]
    command += ["-types", "jar", "bundle", "-cache", "ivy", "-retrieve", "[artifact]-[revision].[ext]"]
    try:
        ran = subprocess.run(command, cwd=into, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"Ivy did not finish within {TIMEOUT:.0f} s."
    said = [line.strip(" \t:") for line in ran.stdout.splitlines() + ran.stderr.splitlines()]
    reasons = [line for line in said if "not found" in line or "xception" in line or "timed out" in line]
    return f"Ivy ended with {ran.returncode}: {(reasons or said or ['no output'])[-1]}."


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    found = [
        jar for root in (spec and spec.submodule_search_locations) or () for jar in Path(root).glob("jars/ivy-*.jar")
    ]
    if not found:
        raise Unavailable("pyspark has no Ivy among its jars", hint="Install pyspark from its wheel again.")
    return found[0]


def _check_download(file: Path, package: Package) -> None:
    if (got := _sha256(file)) != package.sha256:
        raise Unavailable(
            f'package "{package.coordinates}" arrived with another checksum',
            detail=f"Expected SHA-256 {package.sha256}, got {got}.",
            hint="Something between this machine and the registry changes files; nothing was kept.",
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
