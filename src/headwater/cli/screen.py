"""Where the command line writes: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from contextlib import suppress
from typing import TextIO

import typer

from headwater.observability.terminal import terminal_text

ERASE = "\r\033[K"
HOME = "\033[H\033[J"

_BEGIN, _END = f"\ufdd0{secrets.token_hex(8)}:", "\ufdd1"
"""Around the code of a style, until a text is written: no text from elsewhere can contain the token."""
_STYLE = re.compile(f"{_BEGIN}([0-9;]+){_END}")


class Screen:
    """Both output streams, and what they are: a terminal, coloured, quiet."""

    def __init__(self, *, quiet: bool = False, json: bool = False) -> None:
        self.quiet = quiet
        self.json = json
        self.shows_timing = True
        self._line = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees the results."""
        return sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a line that overwrites itself can be shown: a person looks at stderr and wants to be told."""
        return sys.stderr.isatty() and not self.quiet and not self.json and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    def write(self, text: str) -> None:
        """Write a part of the result."""
        self.clear()
        self._put(sys.stdout, text)

    def write_bytes(self, data: bytes) -> None:
        """Write a part of the result as it is; on a terminal, as text."""
        if self.is_terminal:
            self.write(data.decode("utf-8", "replace"))
            return
        self.clear()
        with _closed_pipe_ends():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def flush(self) -> None:
        """Hand over what is buffered now, so that a closed pipe is found here and not at exit."""
        with _closed_pipe_ends():
            sys.stdout.flush()

    def complain(self, text: str) -> None:
        """Write about an error, also where notes are not wanted."""
        self.clear()
        self._put(sys.stderr, text)

    def home(self) -> None:
        """Go to the upper left corner of an empty terminal."""
        self._control(sys.stdout, HOME)

    def note(self, text: str) -> None:
        """Tell a person something that is not the result."""
        if not self.quiet:
            self.clear()
            self._put(sys.stderr, text + "\n")

    def aside(self, text: str) -> None:
        """Tell a person something that only matters to one: never to a file or a program."""
        if self.is_terminal and not self.json:
            self.note(self.dim(text, sys.stderr))

    def progress(self, text: str) -> None:
        """Replace the progress line."""
        if self.shows_progress:
            self._line = True
            self._control(sys.stderr, ERASE)
            self._put(sys.stderr, text[: self.width - 1])

    def clear(self) -> None:
        """Take the progress line away."""
        if self._line:
            self._line = False
            self._control(sys.stderr, ERASE)

    def dim(self, text: str, stream: TextIO | None = None) -> str:
        return self._styled(text, "2", stream or sys.stdout)

    def bold(self, text: str, stream: TextIO | None = None) -> str:
        return self._styled(text, "1", stream or sys.stdout)

    def red(self, text: str, stream: TextIO | None = None) -> str:
        return self._styled(text, "31;1", stream or sys.stderr)

    def green(self, text: str, stream: TextIO | None = None) -> str:
        return self._styled(text, "32", stream or sys.stdout)

    def yellow(self, text: str, stream: TextIO | None = None) -> str:
        return self._styled(text, "33", stream or sys.stdout)

    def _styled(self, text: str, code: str, stream: TextIO) -> str:
        coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return f"{_BEGIN}{code}{_END}{text}{_BEGIN}0{_END}" if coloured else text

    def _put(self, stream: TextIO, text: str) -> None:
        # Names, descriptions and rows are other people's. A file or a program gets them as they are.
        if stream.isatty() or (stream is sys.stderr and not self.json):
            parts = _STYLE.split(text)  # texts, and the codes of styles between them
            text = "".join(f"\033[{part}m" if at % 2 else terminal_text(part) for at, part in enumerate(parts))
        self._control(stream, text)

    def _control(self, stream: TextIO, text: str) -> None:
        with _closed_pipe_ends():
            # A name may hold what the terminal's encoding lacks; an error about an error helps nobody.
            stream.write(text.encode(stream.encoding or "utf-8", "backslashreplace").decode(stream.encoding or "utf-8"))
            if stream is sys.stderr:
                stream.flush()


class _closed_pipe_ends:  # noqa: N801
    """Whoever read our output has gone (`| head`): end quietly, as there is nobody left to tell."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, BrokenPipeError):
            silence()
            raise typer.Exit(0) from None


def silence() -> None:
    """Point stdout at nothing, so that Python's own flush at exit has nowhere to fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def counted(number: int, noun: str) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sized(number: float) -> str:
    """A number of bytes for people: `12 B`, `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def timed(seconds: float) -> str:
    """A duration for people: `12 ms`, `3.4 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
