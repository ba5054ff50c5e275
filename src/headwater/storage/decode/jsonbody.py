"""A JSON body, an array of objects or one object, cut into one line per record.

Its records then go the way of newline-delimited JSON, so that both formats accept exactly the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator

from headwater.errors import RecordsRejected

_SPACE = re.compile(r"[ \t\r\n]*")
_DELIMITERS = (",", "]")
_BREAKS = str.maketrans("\r\n", "  ")


# Numbers are only stepped over: a large one must not cost its conversion.
_SCANNER = json.JSONDecoder(parse_float=len, parse_int=len)
_SCAN: Callable[[str, int], tuple[object, int]] = _SCANNER.scan_once  # type: ignore[attr-defined]


def lines_of(data: bytes) -> bytes:
    """The body's records, one per line; RecordsRejected when it is not JSON, or neither an array nor an object."""
    try:
        body = data.decode("utf-8-sig")
        return "\n".join(_records(body)).encode()
    except UnicodeDecodeError as error:
        raise _not_json(f"It is not valid UTF-8 at byte {error.start}.") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"Line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise _not_json("It is nested too deeply.") from None


def _records(body: str) -> Iterator[str]:
    start = _after_space(body, 0)
    if body[start : start + 1] == "[":
        end = yield from _elements(body, start + 1)
    elif body[start : start + 1] == "{":
        end = _value_end(body, start)
        yield _one_line(body[start:end])
    else:
        _value_end(body, start)
        raise _not_json("It is neither an array of objects nor an object.")
    end = _after_space(body, end)
    if end != len(body):
        raise _not_json(
            "There is more after the first value.", hint="For one record per line, send newline-delimited JSON."
        )


def _elements(body: str, place: int) -> Generator[str, None, int]:
    """The elements of the array whose bracket is before `place`; returns where it ends."""
    place = _after_space(body, place)
    if body[place : place + 1] == "]":
        return place + 1
    while True:
        end = _value_end(body, place)
        yield _one_line(body[place:end])
        if body[end : end + 1] not in _DELIMITERS:
            end = _after_space(body, end)
        if body[end : end + 1] == "]":
            return end + 1
        if body[end : end + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", body, end)
        place = _after_space(body, end + 1)


def _value_end(body: str, place: int) -> int:
    try:
        return _SCAN(body, place)[1]
    except StopIteration as stop:
        raise json.JSONDecodeError("Expecting value", body, stop.value) from None


def _one_line(record: str) -> str:
    """The record without line breaks: only space between tokens holds any, as strings escape theirs."""
    return record.translate(_BREAKS) if "\n" in record or "\r" in record else record


def _after_space(body: str, place: int) -> int:
    match = _SPACE.match(body, place)
    return match.end() if match else place


def _not_json(detail: str, hint: str | None = None) -> RecordsRejected:
    return RecordsRejected("request body is not a JSON array of records", detail=detail, hint=hint)
