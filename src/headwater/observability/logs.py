"""Logs of a service: one line per event, a lower-case fragment with its fields as key=value."""

from __future__ import annotations

import logging
import re
import sys
import time
from threading import Lock

from headwater.observability.terminal import terminal_text

_COUNTS = re.compile(r"-\d+\]|\d+ms|\d+ identical")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """Appends what was passed as `extra`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return terminal_text(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return " ".join([super().formatMessage(record), *(f"{name}={_shown(value)}" for name, value in fields.items())])


class Seldom(logging.Filter):
    """Lets a line through unless it was there within `seconds`, counts and durations apart. A library that tries again
    and again says so every time."""

    def __init__(self, seconds: float = 60.0, *, most: int = 100) -> None:
        super().__init__()
        self._seconds = seconds
        self._most = most
        self._seen: dict[str, float] = {}
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = _COUNTS.sub("", f"{record.getMessage()} {getattr(record, 'error', '')}"), time.monotonic()
        with self._lock:
            if text in self._seen and now - self._seen[text] < self._seconds:
                return False
            self._seen.pop(text, None)  # so that it is the last to be forgotten
            self._seen[text] = now
            if len(self._seen) > self._most:
                del self._seen[next(iter(self._seen))]
            return True


def seldom(name: str) -> logging.Logger:
    """The logger of this name, which does not repeat itself."""
    found = logging.getLogger(name)
    if not any(isinstance(each, Seldom) for each in found.filters):
        found.addFilter(Seldom())
    return found


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


def configure_logs(level: str) -> None:
    """Headwater's events from `level` on, other libraries' warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldsFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("headwater").setLevel(level.upper())
