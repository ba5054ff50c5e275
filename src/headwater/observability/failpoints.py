"""Places where a test can make the process die, fail or stop. Without HEADWATER_FAILPOINTS they cost one dict look-up.

`HEADWATER_FAILPOINTS="ingest.before_commit=kill;log.before_fsync=error;produce.before_ack=sleep:0.5"`
"""

from __future__ import annotations

import errno
import os
import signal
import time
from functools import cache

VARIABLE = "HEADWATER_FAILPOINTS"

NAMES = (
    "produce.validated",
    "log.before_commit",
    "log.after_commit",
    "kafka_log.journaled",
    "produce.before_ack",
    "kafka.taken",
    "kafka.decoded",
    "kafka.stored",
    "convert.checked",
    "convert.stored",
    "convert.noted",
    "convert.finished",
    "ingest.planned",
    "ingest.file_written",
    "ingest.before_commit",
    "ingest.after_commit",
    "ingest.before_trim",
    "ingest.after_trim",
    "rewrite.planned",
    "rewrite.found",
    "rewrite.files_written",
    "rewrite.after_commit",
    "alter.planned",
    "alter.committed",
    "refresh.planned",
    "refresh.written",
    "refresh.committed",
    "stream.written",
    "stream.committed",
    "stream.sent",
    "stream.backfilled",
    "stream.created",
    "compact.written",
    "compact.committed",
    "compaction.written",
    "compaction.committed",
    "expire.planned",
    "expire.noted",
    "expire.committed",
    "manifests.planned",
    "manifests.committed",
    "retention.planned",
    "retention.committed",
    "deletions.checked",
    "deletions.deleted",
    "orphans.checked",
    "orphans.deleted",
    "relocate.begun",
    "relocate.manifests_rewritten",
    "relocate.rewritten",
    "relocate.before_commit",
    "relocate.committed",
    "backup.pinned",
    "backup.stored",
    "backup.copied",
    "backup.before_switch",
    "backup.after_switch",
    "backup.pruned",
    "restore.begun",
    "restore.unpacked",
    "restore.relocated",
    "restore.finished",
    "new_log.created",
    "new_log.set_aside",
    "new_log.recorded",
    "new_log.lowered",
)


@cache
def _actions() -> dict[str, str]:
    text = os.environ.get(VARIABLE, "")
    actions = dict(part.split("=", 1) for part in text.split(";") if part)
    if unknown := actions.keys() - set(NAMES):
        raise ValueError(f"unknown failpoints: {sorted(unknown)}")
    return actions


def failpoint(name: str) -> None:
    """Do what the environment asks for at `name`: kill, error, full (disk) or sleep:<seconds>; normally nothing."""
    action = _actions().get(name)
    if action is None:
        return
    match action.partition(":"):
        case ("kill", _, _):
            os.kill(os.getpid(), signal.SIGKILL)
        case ("sleep", _, seconds):
            time.sleep(float(seconds))
        case ("full", _, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case _:
            raise RuntimeError(f"failpoint {name}")
