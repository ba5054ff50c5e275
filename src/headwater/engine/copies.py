"""Backups, restores and moves of a lake, with its settings."""

from __future__ import annotations

from pathlib import Path

from headwater.backup.create import BackupReport, create_backup
from headwater.backup.relocate import Relocation, relocate
from headwater.backup.restore import restore_backup
from headwater.backup.store import ReportProgress
from headwater.config import LakePaths, Settings, load_settings
from headwater.errors import named_system_errors


def backup_lake(
    paths: LakePaths,
    settings: Settings,
    destination: str | Path,
    *,
    verify: bool = False,
    progress: ReportProgress = lambda _: None,
) -> BackupReport:
    """Bring the backup of an open lake in the folder `destination` up to date."""
    with named_system_errors():
        return create_backup(paths, settings.busy_timeout, Path(destination), verify=verify, progress=progress)


def restore_lake(source: str | Path, place: str | Path, *, progress: ReportProgress = lambda _: None) -> Relocation:
    """Make a lake in the new or empty folder `place` from a backup."""
    with named_system_errors():
        return restore_backup(Path(source), Path(place), load_settings(None).busy_timeout, progress=progress)


def relocate_lake(path: str | Path, *, copy: bool = False) -> Relocation:
    """Make the folder to which a lake was moved or copied the lake's own."""
    paths = LakePaths.existing(path)
    return relocate(paths, load_settings(paths.config), copy=copy)
