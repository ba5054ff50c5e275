"""Who may open a lake's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.config import LakePaths, load_settings
from headwater.engine import Lake
from headwater.engine.file_access import close_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture(params=[0o022, 0o002, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_an_embedded_lake_is_closed_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    with Lake.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
        paths = lake.paths
        for path in (paths.catalog, paths.state, paths.config, *paths.root.glob("*.db-*")):
            assert mode(path) == 0o600, path
        for path in (paths.warehouse, paths.streams, paths.scratch):
            assert mode(path) == 0o700, path
    assert os.umask(umask) == umask  # a library leaves its host's alone


def test_a_group_may_be_let_in_and_out_again(tmp_path: Path, umask: int) -> None:
    with Lake.init(tmp_path / "lake", file_access="group") as lake:
        paths = lake.paths
        assert [mode(path) for path in (paths.warehouse, paths.streams, paths.scratch)] == [0o770] * 3
        assert [mode(path) for path in (paths.catalog, paths.state)] == [0o660] * 2
        assert mode(paths.config) == 0o640  # whoever writes it can run code as the service
    for setting, folder, file, config in (("owner", 0o700, 0o600, 0o600), ("group", 0o770, 0o660, 0o640)):
        close_files(LakePaths(paths.root), load_settings(file_access=setting))
        assert [mode(path) for path in (paths.warehouse, paths.catalog, paths.config)] == [folder, file, config]


@pytest.mark.parametrize("setting", ["owner", "group"])
def test_opening_a_lake_gives_no_right_that_its_owner_took_away(tmp_path: Path, setting: str) -> None:
    Lake.init(tmp_path / "lake").close()
    paths = LakePaths(tmp_path / "lake")
    for path, strict in ((paths.config, 0o400), (paths.catalog, 0o400), (paths.state, 0o200), (paths.warehouse, 0o500)):
        path.chmod(strict)
        close_files(paths, load_settings(file_access=setting))
        assert mode(path) == strict
    for path, loose, group in (
        (paths.config, 0o666, 0o640),
        (paths.catalog, 0o446, 0o440),
        (paths.state, 0o640, 0o640),
        (paths.warehouse, 0o3757, 0o3750),  # who owns new files, and who may delete them, is another matter
    ):
        path.chmod(loose)
        close_files(paths, load_settings(file_access=setting))
        assert mode(path) == (group if setting == "group" else group & ~0o077)
    for path in (paths.config, paths.catalog, paths.state, paths.warehouse):
        path.chmod(0o700)
