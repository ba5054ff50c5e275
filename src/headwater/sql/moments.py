"""Past states by the names that people have for them: the id of a snapshot, a tag or branch, or a time.

They stand behind a relation (`VERSION AS OF ...`, `CHANGES BETWEEN ... AND ...`) and in statements about snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.errors import HeadwaterError, InvalidInput, InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.tokens import quote
from headwater.sql.units import shown

_VERSION = ("VERSION", "SYSTEM_VERSION")
_TIMESTAMP = ("TIMESTAMP", "SYSTEM_TIME")
_LARGEST = 2**63 - 1
_ID = "the id of a snapshot, or a tag or branch in quotes"
_IN_QUOTES = "Write VERSION AS OF 123 or VERSION AS OF 'tag'."


@dataclass(frozen=True, slots=True)
class AsOf:
    """A snapshot by its id, by a time as it was written, or by a tag or branch; without any, the newest."""

    version: int | None = None
    timestamp: str | None = None
    ref: str | None = None

    def __bool__(self) -> bool:
        return self != NEWEST

    def __str__(self) -> str:
        """How statements write it where any of the three may stand."""
        if self.timestamp is not None:
            return f"TIMESTAMP {quote(self.timestamp)}"
        return str(self.version) if self.ref is None else quote(self.ref)


NEWEST = AsOf()


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


def moment_of(given: int | str | datetime | AsOf) -> AsOf:
    """The state that a program, a flag or a parameter names: an id, a time, or else a tag or branch.

    A text of at most 19 digits is an id, and one that starts with four digits and a dash a time; tags start with a
    letter.
    """
    if isinstance(given, AsOf):
        return given
    if isinstance(given, datetime):
        return AsOf(timestamp=given.isoformat())
    text = str(given).strip()
    if text.isascii() and text.isdigit():
        return AsOf(version=checked_version(text))
    if text[:4].isdigit() and text[4:5] == "-":
        parse_moment(text)
        return AsOf(timestamp=text)
    if not text or isinstance(given, int):
        raise InvalidInput(f'"{shown(given)}" names no snapshot', hint="Give an id, a tag or branch, or a time.")
    return AsOf(ref=text)


def checked_version(text: str) -> int:
    """The id of a snapshot from its digits."""
    if len(text) > 19 or not (text.isascii() and text.isdigit()) or int(text) > _LARGEST:
        raise InvalidInput(f'"{shown(text)}" is not the id of a snapshot', detail="Ids have at most 63 bits.")
    return int(text)


def read_as_of(cursor: Cursor) -> AsOf | None:
    """The AS OF clause that starts here, if one does."""
    first = 1 if cursor.at("FOR") else 0
    kind = cursor.ahead(first).keyword
    words = [cursor.ahead(first + place).keyword for place in (1, 2)]
    if kind not in (*_VERSION, *_TIMESTAMP) or words != ["AS", "OF"]:
        return None
    cursor.skip(first + 3)
    return _read_version(cursor) if kind in _VERSION else AsOf(timestamp=read_timestamp(cursor, "TIMESTAMP AS OF"))


def read_changes(cursor: Cursor) -> tuple[AsOf, AsOf] | None:
    """The CHANGES BETWEEN ... AND ... that starts here, if one does."""
    if not cursor.accept("CHANGES", "BETWEEN"):
        return None
    return read_range(cursor, "CHANGES BETWEEN")


def read_range(cursor: Cursor, clause: str) -> tuple[AsOf, AsOf]:
    """Two states with AND between them, behind the words of `clause`."""
    start = read_moment(cursor, clause)
    if not cursor.accept("AND"):
        raise cursor.unexpected(f"AND and a second snapshot in {clause}", known=("AND",))
    return start, read_moment(cursor, clause)


def read_moment(cursor: Cursor, clause: str) -> AsOf:
    """`123`, `'tag'` or `TIMESTAMP '...'`; VERSION, TAG or BRANCH may stand before it, and then a tag bare."""
    if cursor.at("TIMESTAMP"):
        return AsOf(timestamp=read_timestamp(cursor, clause))
    if (cursor.accept("TAG") or cursor.accept("BRANCH")) and cursor.token.kind in ("word", "quoted"):
        return AsOf(ref=cursor.advance().value)
    cursor.accept("VERSION")
    if cursor.token.kind not in ("number", "string"):
        raise _refused(cursor, f"{clause} takes {_ID}, or a time", f"Write {clause} 12, 'tag' or TIMESTAMP '2026-…'.")
    return _read_version(cursor)


def _read_version(cursor: Cursor) -> AsOf:
    token = cursor.token
    if token.kind == "string" and token.value:
        with cursor.locating(token):  # tags start with a letter, so digits are an id, as JSON answers have it
            digits = token.value.isascii() and token.value.isdigit()
            return AsOf(version=checked_version(cursor.advance().value)) if digits else AsOf(ref=cursor.advance().value)
    if token.kind != "number" or not (token.text.isascii() and token.text.isdigit()):
        raise _refused(cursor, f"VERSION AS OF takes {_ID}", _IN_QUOTES)
    with cursor.locating(token):
        return AsOf(version=checked_version(cursor.advance().text))


def read_timestamp(cursor: Cursor, clause: str) -> str:
    """A time in quotes, with or without the word TIMESTAMP before it."""
    if cursor.token.keyword in ("TIMESTAMP", "DATE") and cursor.ahead(1).kind == "string":
        cursor.advance()
    if cursor.token.kind != "string":
        raise _refused(cursor, f"{clause} takes a time in quotes", f"Write {clause} '2026-01-01 10:05:00'.")
    with cursor.locating(cursor.token):
        parse_moment(cursor.token.value)
    return cursor.advance().value


def _refused(cursor: Cursor, message: str, hint: str) -> HeadwaterError:
    return cursor.located(InvalidStatement(message, hint=hint))
