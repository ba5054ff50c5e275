"""What a tail is asked for: of which topic or view, from where on, which rows and columns. No I/O.

Flags, parameters and arguments become the same value here, and what is wrong in them is told before anything is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Literal

from headwater.errors import InvalidInput
from headwater.sql.moments import parse_moment
from headwater.sql.row_statements import checked_expression
from headwater.sql.units import parse_duration, shown
from headwater.types import checked_name

LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TailStart:
    """The first row that is wanted: the oldest, the next that comes, by its number, or by the time it came.

    The number is an offset of a topic, or a snapshot of a view: then, what changed since.
    """

    kind: Literal["earliest", "latest", "number", "time"]
    number: int = 0
    moment: datetime | None = None


EARLIEST, LATEST = TailStart("earliest"), TailStart("latest")


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Rows of a topic, or changes of a view, as they come; without columns, all of them.

    `after` is the mark of the last row that a tail before this one gave: this one goes on behind it.
    """

    name: str
    start: TailStart = LATEST
    after: str | None = None
    where: str | None = None
    columns: tuple[str, ...] = ()

    def check_columns(self, of: str, known: Sequence[str]) -> None:
        """InvalidInput unless the topic or view has the wanted columns."""
        for name in self.columns:
            if name.lower() not in known:
                near = get_close_matches(name.lower(), known, n=1)
                raise InvalidInput(
                    f'column "{shown(name)}" of {of} does not exist',
                    detail=f"It has {', '.join(known)}.",
                    hint=f'Did you mean "{near[0]}"?' if near else None,
                )

    @property
    def selected(self) -> str:
        """SQL for the wanted columns."""
        return ", ".join(map(quoted, self.columns)) or "*"

    @property
    def condition(self) -> str:
        """SQL for whether a row is wanted; on lines of its own, because a comment in it ends with its line."""
        return "TRUE" if self.where is None else f"(\n{self.where}\n)"


def tail_request(
    name: str,
    start: str | int | datetime = "latest",
    *,
    after: str | None = None,
    where: str | None = None,
    columns: Sequence[str] = (),
) -> TailRequest:
    """The request, checked as far as it can be without looking at the lake."""
    wanted = tuple(dict.fromkeys(column.strip() for column in columns))
    if "" in wanted:
        raise InvalidInput("column of a tail has no name", hint="Separate names by single commas.")
    condition = checked_expression(where, "condition") if where is not None and where.strip() else None
    return TailRequest(checked_name(name, "topic or view"), tail_start(start), after, condition, wanted)


def tail_start(given: str | int | datetime, now: datetime | None = None) -> TailStart:
    """Where a tail begins: `earliest`, `latest`, a number, a time, or a duration, which is so long ago."""
    now = now or datetime.now(UTC)
    if isinstance(given, datetime):
        return _at(given.replace(tzinfo=UTC) if given.tzinfo is None else given, now)
    text = str(given).strip()
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    if text.isascii() and text.isdigit():
        if len(text) > 19 or int(text) > LARGEST:
            raise InvalidInput(f'"{shown(text)}" is neither an offset nor a snapshot', detail="It is too large.")
        return TailStart("number", int(text))
    return _at(_moment(text, now), now)


def _moment(text: str, now: datetime) -> datetime:
    if text[-1:].isalpha():  # a number without a unit would be seconds
        with suppress(InvalidInput, OverflowError):
            return now - timedelta(seconds=parse_duration(text))
    try:
        return parse_moment(text)
    except InvalidInput:
        raise InvalidInput(
            f'start "{shown(text)}" of a tail is not understood',
            detail="It is earliest, latest, a number, a time such as '2026-01-01 10:05:00', or a duration such as "
            "'10 min', which is so long ago.",
        ) from None


def _at(moment: datetime, now: datetime) -> TailStart:
    if moment > now:
        raise InvalidInput(f'start "{moment:%Y-%m-%d %H:%M:%S} UTC" of a tail is in the future', hint="Use latest.")
    return TailStart("time", moment=moment.astimezone(UTC))


def mark_number(mark: str) -> int:
    """The number that a mark of a tail holds; InvalidInput if it is none."""
    digits = mark.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or int(digits) > LARGEST:
        raise InvalidInput(
            f'mark "{shown(mark)}" is not one of a tail', detail="It is the id of the last event that was received."
        )
    return int(mark)


def quoted(name: str) -> str:
    """A name as Spark SQL writes it."""
    return "`" + name.replace("`", "``") + "`"
