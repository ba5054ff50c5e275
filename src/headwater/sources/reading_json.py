"""One JSON array as the texts of its records, read as it comes: it is never in memory as a whole."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator

from headwater.errors import BodyTooLarge, RecordsRejected

_SPACE = re.compile(r"[ \t\r\n]*")
_LINES = "for one record per line use --format ndjson"
_LONGEST_TOKEN = 16
"""Characters of JSON's longest token that is not a string or a number, and some more."""


def json_records(pieces: Iterator[bytes], max_record: int) -> Iterator[str]:
    """The texts of an array's elements, or of the one object that the input is."""
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
        while text.peek() == ",":
            text.step()
            yield text.value()
        if text.peek() != "]":
            raise text.broken("the array is not closed")
        text.step()
    if text.peek():
        raise text.broken(f"there is more after the array; {_LINES}")


class _JsonText:
    """A JSON text that is read as far as it is needed, and forgotten behind the reader."""

    def __init__(self, pieces: Iterator[bytes], max_record: int) -> None:
        self._pieces = pieces
        self._decoder = getincrementaldecoder("utf-8-sig")()
        self._max_record = max_record
        self._scan = json.JSONDecoder(parse_int=lambda _: None, parse_float=lambda _: None)
        self._text = ""
        self._at = 0
        self._seen = 0

    def peek(self) -> str:
        """The next character that is not space, or an empty text at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def step(self) -> None:
        self._at += 1

    def value(self) -> str:
        """The text of the next value."""
        self.peek()
        while True:
            try:
                _, end = self._scan.raw_decode(self._text, self._at)
            except RecursionError:
                raise self.broken("it is nested too deeply") from None
            except json.JSONDecodeError as error:
                if not self._may_go_on(error):
                    raise self.broken(error.msg) from None
                if len(self._text) - self._at > self._max_record:
                    raise BodyTooLarge(
                        f"record is longer than {self._max_record} bytes", hint="Send smaller records."
                    ) from None
                if not self._more():
                    raise self.broken(error.msg) from None
                continue
            value, self._at = self._text[self._at : end], end
            return value

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether the text is only not all there yet: what is wrong is a string without end, or the last token."""
        return error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _LONGEST_TOKEN

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
