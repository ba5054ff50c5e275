"""Every error that Headwater raises on purpose, in one tree.

::

    HeadwaterError
    ├── InvalidInput            400  text, names, options or schemas that cannot be accepted
    │   ├── InvalidStatement         SQL that does not parse or is not supported
    │   ├── InvalidName              a name outside [a-z][a-z0-9_]*, or a reserved one
    │   ├── InvalidOption            an unknown option, or a value it does not take
    │   ├── InvalidSchema            column types, partitioning or schema files
    │   ├── InvalidSetting           headwater.toml or HEADWATER_* variables
    │   ├── MethodNotAllowed    405  HTTP: a path that does not take the method
    │   ├── NotAcceptable       406  HTTP: no form of the answer that was asked for
    │   ├── UnsupportedMediaType 415 HTTP: a body in a form that is not read
    │   └── RequestRefused      403  HTTP: a host or origin that may not ask
    ├── RecordsRejected         422  produced rows that do not fit the topic's schema
    ├── StatementNotAllowed     403  a statement that a reading surface never runs
    ├── NotFound                404
    │   ├── LakeNotFound
    │   ├── TopicNotFound
    │   ├── ViewNotFound
    │   ├── StreamNotFound
    │   ├── QueryNotFound
    │   ├── SnapshotGone             a snapshot that has expired, or never was
    │   └── RouteNotFound            HTTP: no such path
    ├── Conflict                409
    │   ├── TopicExists
    │   ├── ViewExists
    │   ├── StreamExists
    │   ├── ViewInUse                a source that views still read
    │   ├── LakeExists
    │   ├── LakeMoved                a folder that is a copy of a lake, or was moved; or files outside the lake's folder
    │   ├── NewerVersion             something that a newer Headwater wrote
    │   ├── IdempotencyMismatch      one producer sequence, two different contents
    │   ├── SchemaChanged            a topic whose columns were altered while records were on their way
    │   └── StaleCommit              a commit planned on a base that is no longer current
    ├── BodyTooLarge            413
    ├── Backpressure            429  the unflushed tail is full; carries retry_after
    ├── ViewNotIncremental      400  a view that must refresh incrementally and cannot
    ├── ViewBroken              409  a view whose sources no longer have what it reads
    ├── StreamFailed            409  a stream that cannot go on without help
    ├── QueryFailed             400  the engine refused or failed a query that was let through
    │   ├── QueryCancelled      409
    │   ├── QueryTimeout        408
    │   └── ResultTooLarge      413
    ├── Unavailable             503  a part that should answer does not
    │   ├── QueryInterrupted         the process that ran the query was replaced; carries retry_after
    │   ├── StorageBusy              SQLite stayed locked, the disk is full, or the lake cannot be written
    │   ├── JavaMissing
    │   └── ServiceUnreachable
    └── Corrupt                 500  stored bytes that do not match their checksum or definition

A message is a lower-case fragment with the kind of object and its quoted name, without a full stop;
detail and hint are whole sentences. Anything else that reaches a user is a bug.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar


class HeadwaterWarning(UserWarning):
    """Something a user should know although the statement succeeded."""


class HeadwaterError(Exception):
    """Base of the tree: a stable code, an HTTP status, and a message with detail, hint and data."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.data: Mapping[str, Any] = data

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.detail and f"({self.detail})") if part)


class InvalidInput(HeadwaterError):
    code = "invalid_input"
    status = 400


class InvalidStatement(InvalidInput):
    code = "invalid_statement"


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidOption(InvalidInput):
    code = "invalid_option"


class InvalidSchema(InvalidInput):
    code = "invalid_schema"


class InvalidSetting(InvalidInput):
    code = "invalid_setting"


class RecordsRejected(HeadwaterError):
    code = "records_rejected"
    status = 422


class StatementNotAllowed(HeadwaterError):
    code = "statement_not_allowed"
    status = 403


class NotFound(HeadwaterError):
    code = "not_found"
    status = 404


class LakeNotFound(NotFound):
    code = "lake_not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"


class ViewNotFound(NotFound):
    code = "view_not_found"


class StreamNotFound(NotFound):
    code = "stream_not_found"


class QueryNotFound(NotFound):
    code = "query_not_found"


class SnapshotGone(NotFound):
    code = "snapshot_gone"


class Conflict(HeadwaterError):
    code = "conflict"
    status = 409


class TopicExists(Conflict):
    code = "topic_exists"


class ViewExists(Conflict):
    code = "view_exists"


class StreamExists(Conflict):
    code = "stream_exists"


class ViewInUse(Conflict):
    code = "view_in_use"


class LakeExists(Conflict):
    code = "lake_exists"


class LakeMoved(Conflict):
    code = "lake_moved"


class NewerVersion(Conflict):
    code = "newer_version"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class SchemaChanged(Conflict):
    code = "schema_changed"


class StaleCommit(Conflict):
    code = "stale_commit"


class BodyTooLarge(HeadwaterError):
    code = "body_too_large"
    status = 413


class Backpressure(HeadwaterError):
    code = "backpressure"
    status = 429

    def __init__(self, message: str, *, retry_after: int, **kwargs: Any) -> None:
        super().__init__(message, retry_after=retry_after, **kwargs)
        self.retry_after = retry_after


class ViewNotIncremental(HeadwaterError):
    code = "view_not_incremental"
    status = 400


class ViewBroken(HeadwaterError):
    code = "view_broken"
    status = 409


class StreamFailed(HeadwaterError):
    code = "stream_failed"
    status = 409


class QueryFailed(HeadwaterError):
    code = "query_failed"
    status = 400


class QueryCancelled(QueryFailed):
    code = "query_cancelled"
    status = 409


class QueryTimeout(QueryFailed):
    code = "query_timeout"
    status = 408


class ResultTooLarge(QueryFailed):
    code = "result_too_large"
    status = 413


class Unavailable(HeadwaterError):
    code = "unavailable"
    status = 503


class QueryInterrupted(Unavailable):
    """A query that may succeed when it is run again: something else ended the process in which it ran."""

    code = "query_interrupted"

    def __init__(self, message: str, *, retry_after: int = 1, **kwargs: Any) -> None:
        super().__init__(message, retry_after=retry_after, **kwargs)
        self.retry_after = retry_after


class StorageBusy(Unavailable):
    code = "storage_busy"


class JavaMissing(Unavailable):
    code = "java_missing"


class ServiceUnreachable(Unavailable):
    code = "service_unreachable"


class Corrupt(HeadwaterError):
    code = "corrupt"
    status = 500


class RouteNotFound(NotFound):
    code = "route_not_found"


class MethodNotAllowed(InvalidInput):
    code = "method_not_allowed"
    status = 405


class NotAcceptable(InvalidInput):
    code = "not_acceptable"
    status = 406


class UnsupportedMediaType(InvalidInput):
    code = "unsupported_media_type"
    status = 415


class RequestTimeout(InvalidInput):
    """A request that its client did not send to the end in time."""

    code = "request_timeout"
    status = 408


class HostNotAllowed(InvalidInput):
    """A request for a host name under which the service does not answer."""

    code = "host_not_allowed"
    status = 421


class RequestRefused(InvalidInput):
    """A request that a web page of another origin may have caused."""

    code = "request_refused"
    status = 403


FULL_DISK_RETRY = 10
"""Seconds after which a client may try again what a full disk refused."""

_FULL = ("No space left on device", "database or disk is full", "Disk quota exceeded")
_READ_ONLY = ("attempt to write a readonly database", "Read-only file system")


def full_disk(place: str | None = None) -> StorageBusy:
    """The error for a disk without space; `place` is a file or folder on it."""
    return StorageBusy(
        f'disk of "{place}" is full' if place else "the disk is full",
        detail="Nothing was written, and nothing that was acknowledged is lost.",
        hint="Free some space and try again.",
        retry_after=FULL_DISK_RETRY,
    )


def read_only(place: str | None = None) -> StorageBusy:
    """The error for a change to a lake that this process may only read."""
    return StorageBusy(
        f'"{place}" cannot be written' if place else "the lake cannot be written",
        detail="It is read-only. Queries still work.",
        hint="To change something, make the lake's folder writable.",
    )


def system_error(failed: BaseException) -> Unavailable | None:
    """What `failed` means if the system caused it: a full disk, a read-only lake, too many open files."""
    seen: set[int] = set()
    at: BaseException | None = failed
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if (found := _system_error(at)) is not None:
            return found
        # SQLAlchemy keeps what the driver raised in `orig`.
        at = getattr(at, "orig", None) or at.__cause__ or at.__context__
    return None


def _system_error(failed: BaseException) -> Unavailable | None:
    number = failed.errno if isinstance(failed, OSError) else None
    named = getattr(failed, "filename", None)
    place, said = str(named) if named is not None else None, str(failed)
    if number in (errno.ENOSPC, errno.EDQUOT) or any(sign in said for sign in _FULL):
        return full_disk(place)
    if number == errno.EROFS or any(sign in said for sign in _READ_ONLY):
        return read_only(place)
    if number in (errno.EACCES, errno.EPERM):
        return StorageBusy(
            f'"{place}" cannot be accessed' if place else "the lake cannot be accessed",
            detail="The permissions of a file or folder do not allow it.",
            hint="Run as the user who owns the lake, or change the permissions.",
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return Unavailable(
            "too many files are open",
            hint="Raise the limit (`ulimit -n`), or run fewer queries at once.",
            retry_after=1,
        )
    return None


@contextmanager
def named_system_errors() -> Iterator[None]:
    """Turn what the system causes inside the block into Headwater's errors."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as failed:
        if (known := system_error(failed)) is None:
            raise
        raise known from failed


BY_CODE: Mapping[str, type[HeadwaterError]] = {
    kind.code: kind for kind in list(vars().values()) if isinstance(kind, type) and issubclass(kind, HeadwaterError)
}
"""The class of an error by its code, for errors that come from another process."""
