"""Which stored file made an engine fail. Engines name it in many ways or not at all, so it is looked for afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from headwater.errors import Corrupt, HeadwaterError, QueryFailed, Unavailable
from headwater.storage.checksums import damaged, missing, verify_file
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import local_path

_UNSPECIFIC = (QueryFailed, Corrupt, Unavailable)
_SIGNS = re.compile(
    r"parquet|checksum|corrupt|decompress|zstd|snappy|brotli|gzip|footer|magic|page|truncat|\beof\b"
    r"|end of (stream|file)|could not read|cannot read|encoding|varint|thrift|out of bounds",
    re.IGNORECASE,
)
"""Words in what an engine says that may mean damaged bytes; then files are read to verify them, which takes longer."""


def name_damage(failed: Exception, tables: Iterable[tuple[Table, int | None]]) -> Exception:
    """The error that names the damaged file among those of the snapshots that were read; `failed` if there is none."""
    if isinstance(failed, HeadwaterError) and ("file" in failed.data or type(failed) not in _UNSPECIFIC):
        return failed
    try:
        # Not through anybody's cache: what it remembers may be damaged since.
        scans = [plan_scan(table, snapshot_id, AlwaysTrue(), ManifestCache()) for table, snapshot_id in tables]
    except HeadwaterError as found:
        return found
    files = [file for scan in scans for file in scan.files]
    for file in files:
        path = local_path(file.file_path)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return missing(path)
        except OSError:
            continue
        if size != file.file_size_in_bytes:
            return damaged(path, f"It has {size} bytes instead of {file.file_size_in_bytes}.")
    for file in files if _SIGNS.search(str(failed)) else ():
        try:
            verify_file(local_path(file.file_path), None, file.record_count)
        except Corrupt as found:
            return found
        except OSError:
            continue
    return failed
