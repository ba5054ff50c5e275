"""Logs of a service: one line per event, a lower-case fragment with its fields as key=value."""

from __future__ import annotations

import logging
import sys

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """Appends what was passed as `extra`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return " ".join([super().formatMessage(record), *(f"{name}={_shown(value)}" for name, value in fields.items())])


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text


def configure_logs(level: str) -> None:
    """Headwater's events from `level` on, other libraries' warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldsFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("headwater").setLevel(level.upper())
