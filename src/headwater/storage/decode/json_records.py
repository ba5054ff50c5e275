"""A JSON array, or one object, cut into one line per record, and read piece by piece: it is never in memory as a whole.

Its records then go the way of newline-delimited JSON, so that both formats accept exactly the same.

Python's JSON scanner finds where a short record ends. It builds all of the record's values, which take many times the
memory of their text, so the end of a record of more than WINDOW characters is found by counting brackets. What is wrong
inside such a record, the decoder says.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from headwater.errors import BodyTooLarge, RecordsRejected

WINDOW = 64 * 1024

_SPACE = re.compile(r"[ \t\r\n]*")
_BREAKS = str.maketrans("\r\n", "  ")
_LINES = "one record per line is another format, ndjson"
_LONGEST_TOKEN = 16
"""Characters of JSON's longest token that is not a string or a number, and some more."""
_CONTROL = "a string holds a line break, or another control character"

# Numbers are only stepped over: a large one must not cost its conversion.
_SCANNER = json.JSONDecoder(parse_float=len, parse_int=len)
_SCAN: Callable[[str, int], tuple[object, int]] = _SCANNER.scan_once  # type: ignore[attr-defined]


def lines_of(data: bytes) -> bytes:
    """The records of a body, one per line; RecordsRejected when it is not JSON, or neither an array nor an object."""
    if not data.strip():
        raise _JsonText((), 0).broken("it is empty")
    return "\n".join(json_records([data], len(data))).encode()


def json_records(pieces: Iterable[bytes], max_record: int) -> Iterator[str]:
    """The elements of an array, or the one object that the input is, each on one line; nothing for blank input."""
    text = _JsonText(pieces, max_record)
    if text.peek() != "[":
        if text.peek() == "{":
            yield text.value()
        if text.peek():
            raise text.broken(f"it is neither one array of objects nor one object; {_LINES}")
        return
    text.step()
    if text.peek() == "]":
        text.step()
    else:
        yield text.value()
        while (delimiter := text.peek()) == ",":
            text.step()
            yield text.value()
        if delimiter != "]":
            raise text.broken("the array is not closed" if not delimiter else "Expecting ',' delimiter")
        text.step()
    if text.peek():
        raise text.broken(f"there is more after the array; {_LINES}")


class _JsonText:
    """A JSON text that is read as far as it is needed, and forgotten behind the reader."""

    def __init__(self, pieces: Iterable[bytes], max_record: int) -> None:
        self._pieces = (piece[at : at + WINDOW] for piece in pieces for at in range(0, len(piece), WINDOW))
        self._decoder = getincrementaldecoder("utf-8-sig")()
        self._max_record = max_record
        self._text = ""
        self._at = 0
        self._seen = 0

    def peek(self) -> str:
        """The next character that is not space, or an empty text at the end."""
        while True:
            if (found := self._text[self._at : self._at + 1]) and found not in " \t\r\n":
                return found
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at == len(self._text) and not self._more():
                return ""

    def step(self) -> None:
        self._at += 1

    def value(self) -> str:
        """The text of the next value, on one line: only space between tokens holds breaks, as strings escape theirs."""
        self.peek()
        while True:
            try:
                end = _SCAN(self._text, self._at)[1]
                if end < len(self._text) or self._text[end - 1] in '"}]':
                    break
                end -= self._at
                if not self._more():
                    break
                continue  # a number or a word goes on in the next piece
            except RecursionError:
                raise self.broken("it is nested too deeply") from None
            except StopIteration as stop:
                reason, place = "Expecting value", stop.value
            except json.JSONDecodeError as error:
                reason, place = error.msg, error.pos
            if not (reason.startswith("Unterminated string") or place > len(self._text) - _LONGEST_TOKEN):
                raise self.broken(reason)
            self._check_length(len(self._text) - self._at)
            if len(self._text) - self._at > WINDOW:
                return self._long_value()
            if not self._more():
                raise self.broken(reason)
        value, self._at = self._text[self._at : end], end
        return value.translate(_BREAKS) if "\n" in value or "\r" in value else value

    def _long_value(self) -> str:
        """The same for an object or array of any length, in memory that depends on its text alone."""
        if self._text[self._at] not in "{[":
            raise self.broken("an element is not an object")
        brackets = _Brackets()
        parts: list[str] = []
        size = 0
        while True:
            text = self._text[self._at :]
            end = brackets.end(text)
            if brackets.has_control_character:
                raise self.broken(_CONTROL)
            parts.append(text if end is None else text[:end])
            size += len(parts[-1])
            self._check_length(size)
            self._at += len(parts[-1])
            if end is not None:
                return "".join(parts).translate(_BREAKS)
            if not self._more():
                raise self.broken("a value is not closed")

    def _check_length(self, length: int) -> None:
        if length > self._max_record:
            raise BodyTooLarge(f"record is longer than {self._max_record} bytes", hint="Send smaller records.")

    def broken(self, reason: str) -> RecordsRejected:
        return RecordsRejected(
            "input is not a JSON array of records", detail=f"After {self._seen + self._at} characters: {reason}."
        )

    def _more(self) -> bool:
        piece = next(self._pieces, b"")
        try:
            more = self._decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise self.broken(f"it is not valid UTF-8 ({error.reason})") from None
        self._seen += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(piece)


_DEPTH = np.zeros(256, np.int8)
_DEPTH[list(b"{[")] = 1
_DEPTH[list(b"}]")] = -1
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class _Brackets:
    """Counts the brackets of one value outside its strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escape = b""
        self.has_control_character = False

    def end(self, text: str) -> int | None:
        """Where the value ends in its next piece of text; None if it does not."""
        plain = text.encode("utf-8", "surrogatepass")
        # Escapes become letters of the same length, so that each quote begins or ends a string.
        data = _ESCAPE.sub(b"__", self._escape + plain)
        carried = len(self._escape)
        self._escape = b""
        if data.endswith(b"\\"):
            self._escape, data = b"\\", data[:-1]
        letters = np.frombuffer(data, np.uint8)
        # Sums of eight bits are enough to tell odd from even.
        inside = (np.cumsum(letters == ord('"'), dtype=np.uint8) + self._in_string) % 2 == 1
        steps = np.where(inside, 0, _DEPTH[letters])
        depths = np.cumsum(steps, dtype=np.int64) + self._depth
        ends = np.flatnonzero((depths == 0) & (steps < 0))
        stop = int(ends[0]) + 1 if len(ends) else len(data)
        self.has_control_character = bool((inside[:stop] & (letters[:stop] < ord(" "))).any())
        if len(ends):
            return len(plain[: stop - carried].decode("utf-8", "surrogatepass"))
        if len(data):
            self._depth, self._in_string = int(depths[-1]), bool(inside[-1])
        return None
