"""What stops an ingest, in Headwater's words. The log keeps what no snapshot has, so all of it can be tried again."""

from __future__ import annotations

import errno
import sqlite3

from headwater.errors import FULL_DISK_RETRY, HeadwaterError, StaleCommit, StorageBusy, Unavailable, system_error
from headwater.types import Offsets

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KEPT = "The log keeps the records that were not committed."


def storage_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What files, disks and databases raise, and `more`; anything else is a bug and goes on as it is."""
    from sqlalchemy.exc import DBAPIError  # here: importing it takes longer than most commands, and few need it

    return (OSError, sqlite3.Error, DBAPIError, *more)


def ingest_error(failed: Exception, topic: str) -> HeadwaterError:
    """A failure of files or databases while `topic` was ingested, as an error for users."""
    return storage_error(failed, f'ingest of topic "{topic}"', _KEPT)


def storage_error(failed: Exception, work: str, left: str) -> HeadwaterError:
    """A failure of files or databases during `work`, as an error for users that says what is `left`."""
    if isinstance(failed, HeadwaterError):
        return failed
    text = str(failed).splitlines()[0]
    if getattr(failed, "errno", None) in _NO_ROOM or "disk is full" in text:
        hint = "Free some space and try again."
        return StorageBusy(f"disk is full, {work} stopped", detail=left, hint=hint, retry_after=FULL_DISK_RETRY)
    if (known := system_error(failed)) is not None:
        return known
    if "locked" in text or "busy" in text:
        return StorageBusy(
            f"catalog stayed locked, {work} stopped",
            detail=f"Another process held it for longer than the setting busy_timeout. {left}",
            hint="Try again.",
        )
    return Unavailable(f"{work} failed", detail=f"{text}. {left}")


def came_too_late(topic: str, consumed: Offsets) -> StaleCommit:
    """Another ingester has committed `consumed`, or the topic is not the one that was planned for."""
    return StaleCommit(
        f'ingest of {consumed} of topic "{topic}" came too late',
        detail="Another process committed these records first, or the topic was made anew.",
        hint="Nothing was written twice; plan the work again.",
    )
