"""Everything that is installed to build, test and measure Headwater is named with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOCKS = ("requirements.lock", "requirements-bench.lock", "requirements-tools.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    packages = re.split(r"\n(?=\S)", text.strip())
    assert packages
    for package in packages:
        assert re.match(r"[a-z0-9.-]+==\S+", package), package
        assert "--hash=sha256:" in package, package
    assert "://" not in text


def test_nothing_is_installed_without_them() -> None:
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if re.search(r"pip (install|sync)", line)]
    assert len(installs) == 4
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line


def test_the_build_backend_is_the_one_of_the_lock() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert re.fullmatch(r"hatchling==[0-9.]+", backend)
    assert f"\n{backend} \\\n" in (ROOT / "requirements.lock").read_text()
