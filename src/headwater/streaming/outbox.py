"""Rows of an epoch that go to a topic, once: how far was sent is kept in the log, in the transaction of the rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headwater.topics.log import Log, Moved
from headwater.topics.produce import Ack, Source

Append = Callable[[str, list[pa.Table], Source], Ack]
At = tuple[int, int, int]
"""A generation, an epoch and a part of it."""


class Outbox:
    """Sends parts of epochs to one topic; `source` is the name of the position that it keeps."""

    def __init__(self, topic: str, source: str, log: Log, append: Append) -> None:
        self._topic = topic
        self._source = source
        self._log = log
        self._append = append

    def send(self, at: At, rows: pa.Table) -> None:
        """Send a part of an epoch, unless it was sent before."""
        known = self._log.position(self._source)
        if known is None or _read(known) < at:
            moved = Moved(self._source, known, ".".join(map(str, at)))
            self._append(self._topic, [rows], Source("stream", moved=moved))

    @property
    def sent(self) -> At | None:
        """The last part that was sent."""
        known = self._log.position(self._source)
        return None if known is None else _read(known)


def _read(text: str) -> At:
    generation, epoch, part = map(int, text.split("."))
    return generation, epoch, part
