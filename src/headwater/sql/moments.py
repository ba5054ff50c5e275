"""`[FOR] VERSION | TIMESTAMP AS OF ...` behind a relation: the past state that a query asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.errors import HeadwaterError, InvalidInput, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.units import shown

_VERSION = ("VERSION", "SYSTEM_VERSION")
_TIMESTAMP = ("TIMESTAMP", "SYSTEM_TIME")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AsOf:
    """A snapshot by its id, or by a time as it was written."""

    version: int | None = None
    timestamp: str | None = None


def parse_moment(text: str) -> datetime:
    """A time in UTC from a text such as '2026-01-01 10:05:00'; an offset in it is applied, none means UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f'timestamp "{shown(text)}" is not understood',
            detail="Timestamps look like '2026-01-01 10:05:00' or '2026-01-01T10:05:00+02:00'; without offset, UTC.",
        ) from None


def read_as_of(cursor: Cursor) -> AsOf | None:
    """The AS OF clause that starts here, if one does."""
    first = 1 if cursor.at("FOR") else 0
    kind = cursor.ahead(first).keyword
    words = [cursor.ahead(first + place).keyword for place in (1, 2)]
    if kind not in (*_VERSION, *_TIMESTAMP) or words != ["AS", "OF"]:
        return None
    cursor.skip(first + 3)
    return AsOf(version=_read_version(cursor)) if kind in _VERSION else AsOf(timestamp=_read_timestamp(cursor))


def _read_version(cursor: Cursor) -> int:
    text = cursor.token.text
    if cursor.token.kind != "number" or not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise _refused(cursor, "VERSION AS OF takes the id of a snapshot", "Write VERSION AS OF 123.")
    if int(text) > _LARGEST:
        raise _refused(cursor, "VERSION AS OF takes the id of a snapshot", "Ids have at most 63 bits.")
    return int(cursor.advance().text)


def _read_timestamp(cursor: Cursor) -> str:
    if cursor.token.keyword in ("TIMESTAMP", "DATE") and cursor.ahead(1).kind == "string":
        cursor.advance()
    if cursor.token.kind != "string":
        raise _refused(cursor, "TIMESTAMP AS OF takes a time in quotes", "Write TIMESTAMP AS OF '2026-01-01 10:05:00'.")
    with cursor.locating(cursor.token):
        parse_moment(cursor.token.value)
    return cursor.advance().value


def _refused(cursor: Cursor, message: str, hint: str) -> HeadwaterError:
    return cursor.located(InvalidStatement(message, hint=hint))
