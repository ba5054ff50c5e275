"""The doctor's view of the machine: Python, Java, JVM packages, disk."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headwater.cli.screen import sized
from headwater.errors import HeadwaterError

OLDEST_PYTHON = (3, 11)
LOW_DISK = 5 * 1024**3
NO_DISK = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that can be put right: without losing anything, or only if somebody gives the `option` for it."""

    what: str
    run: Callable[[], None] = field(repr=False, compare=False)
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: how it is, and what to do if it is not well."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    action: str | None = None
    repair: Repair | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "action": self.action,
            "repair": self.repair.what if self.repair is not None else None,
        }


def failed(name: str, error: HeadwaterError, action: str | None = None) -> Check:
    """The check that an error ended."""
    return Check(name, "fail", str(error), error.hint or action)


def check_environment(folder: Path) -> Iterator[Check]:
    """What every lake on this machine needs."""
    yield _check_python()
    yield _check_java()
    yield _check_packages(folder)
    yield _check_disk(folder)


def _check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("python", "fail", f"{version} is too old", "Use Python 3.11 or later.")
    return Check("python", "ok", f"{version} ({sys.executable})")


def _check_java() -> Check:
    from headwater.spark.java import find_java

    try:
        java = find_java()
    except HeadwaterError as error:
        return failed("java", error)
    return Check("java", "ok", f"{java.version} ({java.executable})")


def _check_packages(folder: Path) -> Check:
    from headwater.config import CONFIG_FILE, default_cache, load_settings
    from headwater.errors import InvalidSetting, Unavailable
    from headwater.spark.packages import verify_packages

    try:
        config = folder / CONFIG_FILE
        cache = load_settings(config).cache if config.exists() else default_cache()
    except InvalidSetting:  # the lake's own checks say so
        cache = default_cache()
    try:
        files = verify_packages(cache)
    except Unavailable as error:  # fetched on first use: not broken yet
        return Check("jvm packages", "warn", str(error), "Run `headwater setup`, or let the first use fetch them.")
    except HeadwaterError as error:
        return failed("jvm packages", error)
    return Check("jvm packages", "ok", f"{len(files)} files match their checksums ({cache})")


def _check_disk(folder: Path) -> Check:
    place = next((each for each in (folder.resolve(), *folder.resolve().parents) if each.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    message = f"{sized(free)} free at {place}"
    if free < NO_DISK:
        return Check("disk", "fail", message, "Free some space: producers are refused when the disk is full.")
    if free < LOW_DISK:
        return Check("disk", "warn", message, "Free some space soon.")
    return Check("disk", "ok", message)
