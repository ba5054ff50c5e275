"""Who may open a lake's files: their owner, or the owner's group as well (setting `file_access`).

Everything but the databases and the configuration is below three folders. Closing those closes what is in them,
whatever the umask of the process that wrote it; the service and Spark also write with a strict umask.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from headwater.config import LakePaths, Settings


def close_files(paths: LakePaths, settings: Settings) -> None:
    """Take from folders and files every right that the setting does not allow; those of another user stay as they are.

    Nobody gets a right that the owner took away. Only what has the mode in which Headwater creates it, for its owner
    alone, is opened to the group. The group may not write the configuration: its settings run code as the service.
    """
    folders = (paths.warehouse, paths.streams, paths.scratch)
    databases = (paths.catalog, paths.state, paths.kafka_index)
    for folder in folders:
        with suppress(OSError):  # a lake that can only be read gets no folders
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in folders:
        _restrict(folder, 0o770 & ~settings.umask)
    for file in databases:
        for suffix in ("", "-wal", "-shm"):
            _restrict(file.with_name(file.name + suffix), 0o660 & ~settings.umask)
    _restrict(paths.config, 0o640 & ~settings.umask)


def _restrict(path: Path, allowed: int) -> None:
    with suppress(OSError):  # it is not there, or belongs to another user
        found = path.stat()
        mode = stat.S_IMODE(found.st_mode)
        rights = allowed if mode & 0o777 == allowed & 0o700 else mode & allowed
        if found.st_uid == os.geteuid() and mode & 0o777 != rights:
            path.chmod(mode & ~0o777 | rights)
