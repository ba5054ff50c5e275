"""What stops an ingest, in Headwater's words. The log keeps what no snapshot has, so all of it can be tried again."""

from __future__ import annotations

import errno
import sqlite3

from sqlalchemy.exc import DBAPIError

from headwater.errors import HeadwaterError, StaleCommit, StorageBusy, Unavailable
from headwater.types import Offsets

STORAGE = (OSError, sqlite3.Error, DBAPIError)
"""What files, disks and databases raise; anything else is a bug and goes on as it is."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KEPT = "The log keeps the records that were not committed."


def ingest_error(failed: Exception, topic: str) -> HeadwaterError:
    """A failure of files or databases while `topic` was ingested, as an error for users."""
    if isinstance(failed, HeadwaterError):
        return failed
    text = str(failed).splitlines()[0]
    if getattr(failed, "errno", None) in _NO_ROOM or "disk is full" in text:
        return StorageBusy(
            f'disk is full, ingest of topic "{topic}" stopped', detail=_KEPT, hint="Free some space and try again."
        )
    if "locked" in text or "busy" in text:
        return StorageBusy(
            f'catalog stayed locked, ingest of topic "{topic}" stopped',
            detail=f"Another process held it for longer than the setting busy_timeout. {_KEPT}",
            hint="Try again.",
        )
    return Unavailable(f'ingest of topic "{topic}" failed', detail=f"{text}. {_KEPT}")


def came_too_late(topic: str, consumed: Offsets) -> StaleCommit:
    """Another ingester has committed `consumed`, or the topic is not the one that was planned for."""
    return StaleCommit(
        f'ingest of {consumed} of topic "{topic}" came too late',
        detail="Another process committed these records first, or the topic was made anew.",
        hint="Nothing was written twice; plan the work again.",
    )
