"""Backups, restores and moves of a lake, with its settings."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.backup.create import BackupReport, create_backup
from headwater.backup.relocate import Relocation, relocate
from headwater.backup.restore import restore_backup
from headwater.backup.store import ReportProgress
from headwater.config import LakePaths, Settings, load_settings
from headwater.errors import InvalidInput, StorageBusy, named_system_errors

HINT = "Choose another folder, or correct this one, and run the command again."


def backup_lake(
    paths: LakePaths,
    settings: Settings,
    destination: str | Path,
    *,
    verify: bool = False,
    progress: ReportProgress = lambda _: None,
) -> BackupReport:
    """Bring the backup of an open lake in the folder `destination` up to date."""
    with _named_errors(Path(destination), "The previous backup, if any, is still complete."):
        return create_backup(paths, settings.busy_timeout, Path(destination), verify=verify, progress=progress)


def restore_lake(source: str | Path, place: str | Path, *, progress: ReportProgress = lambda _: None) -> Relocation:
    """Make a lake in the new or empty folder `place` from a backup."""
    with _named_errors(Path(place), "The lake there is not complete."):
        return restore_backup(Path(source), Path(place), load_settings(None).busy_timeout, progress=progress)


def relocate_lake(path: str | Path, *, copy: bool = False) -> Relocation:
    """Make the folder to which a lake was moved or copied the lake's own."""
    paths = LakePaths.existing(path)
    with named_system_errors():
        return relocate(paths, load_settings(paths.config), copy=copy)


@contextmanager
def _named_errors(folder: Path, state: str) -> Iterator[None]:
    """Turn what the system causes into errors that name the folder that is written; `state` says how it is left."""
    try:
        with named_system_errors():
            yield
    except (NotADirectoryError, FileExistsError) as failed:
        if not _is_about(failed, folder):
            raise
        raise InvalidInput(f'"{folder}" is not a folder', hint="Choose a new or empty folder.") from None
    except FileNotFoundError as failed:
        if not _is_about(failed, folder):
            raise
        raise InvalidInput(
            f'folder "{folder}" cannot be created', detail=f"{failed.strerror}: {failed.filename}.", hint=HINT
        ) from None
    except StorageBusy as failed:
        number = getattr(failed.__cause__, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free some space, or choose another folder, and run the command again."
            raise StorageBusy(f'disk of "{folder}" is full', detail=state, hint=hint) from failed
        if number in (errno.EROFS, errno.EACCES, errno.EPERM) and _is_about(failed.__cause__, folder):
            detail = f"{os.strerror(number)}. {state}"
            raise StorageBusy(f'folder "{folder}" cannot be written', detail=detail, hint=HINT) from failed
        raise


def _is_about(failed: BaseException | None, folder: Path) -> bool:
    """Whether a system error names the folder, something in it, or nothing; not a file of the lake."""
    named = getattr(failed, "filename", None)
    return named is None or Path(named).resolve().is_relative_to(folder.resolve())
