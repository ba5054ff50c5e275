"""What queries needed of topics, remembered without making any query wait.

A query leaves a reference to what it needed in a bounded queue. A thread of its own turns that into patterns and
writes them every few seconds; a lake that closes writes what is left.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    Reference,
    StartsWith,
)
from pyiceberg.expressions.visitors import rewrite_not

from headwater.catalog.topics import Topic
from headwater.serving.agreement import ScanNeeds
from headwater.serving.plan import Scan
from headwater.state.usage import Pattern, TopicUsage, UsageStore, Use
from headwater.storage.filter_json import filter_json

log = logging.getLogger(__name__)

WRITE_EVERY = 10.0
"""Seconds between two writes at the least."""
MAX_WAITING = 1_000
"""Scans that wait to be written; of more than these, the oldest are lost."""

_USES: dict[type[BooleanExpression], Use] = {
    EqualTo: "equal",
    In: "equal",
    LessThan: "range",
    LessThanOrEqual: "range",
    GreaterThan: "range",
    GreaterThanOrEqual: "range",
    StartsWith: "prefix",
    IsNull: "null",
    NotNull: "null",
}


class UsageRecorder:
    """Takes what queries need; `close` writes what is left."""

    def __init__(self, store: UsageStore, every: float = WRITE_EVERY) -> None:
        self._store = store
        self._every = every
        self._waiting: deque[tuple[str, ScanNeeds]] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._writing: threading.Thread | None = None
        self._closed = threading.Event()

    def record(self, scans: Iterable[Scan]) -> None:
        """Remember what a query needs of topics; views have none of this."""
        self._waiting.extend((scan.of.id, scan.needs) for scan in scans if isinstance(scan.of, Topic))
        if self._waiting and self._writing is None:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._writing is None and not self._closed.is_set():
                self._writing = threading.Thread(target=self._write_soon, name="headwater-usage", daemon=True)
                self._writing.start()

    def _write_soon(self) -> None:
        """Write once, after a while: the thread ends then, so that an idle lake has none."""
        self._closed.wait(self._every)
        with self._lock:
            self._writing = None
        if not self._closed.is_set():
            self.write()

    def write(self) -> None:
        """Write what waits; it is lost, and said so, if the state file cannot be written."""
        seen = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not seen:
            return
        try:
            self._store.add(_summed((topic, pattern_of(needs)) for topic, needs in seen))
        except sqlite3.Error as failed:
            log.warning("usage of columns was not recorded", extra={"error": str(failed)})

    def of(self, topic: str) -> TopicUsage:
        """What is known of the topic with this id, the latest queries included."""
        self.write()
        return self._store.of(topic)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            writing = self._writing
        if writing is not None:
            writing.join()
        self.write()


def _summed(seen: Iterable[tuple[str, Pattern]]) -> list[tuple[str, Pattern]]:
    """Each pattern of a topic once, with its count and its filters."""
    found: dict[tuple[str, str], Pattern] = {}
    for topic, pattern in seen:
        before = found.get((topic, pattern.key))
        queries, filters = (before.queries, before.filters) if before is not None else (0, ())
        found[topic, pattern.key] = Pattern(
            pattern.reads, pattern.uses, queries + pattern.queries, (*filters, *pattern.filters)
        )
    return [(topic, pattern) for (topic, _), pattern in found.items()]


def pattern_of(needs: ScanNeeds) -> Pattern:
    """The pattern of one scan."""
    row_filter = rewrite_not(needs.filter)
    uses = tuple(sorted(set(_uses(row_filter))))
    filters = () if isinstance(row_filter, AlwaysTrue) else (filter_json(row_filter),)
    return Pattern(tuple(sorted(needs.columns)), uses, 1, filters)


def _uses(of: BooleanExpression) -> Iterator[tuple[str, Use]]:
    if isinstance(of, And | Or):
        yield from _uses(of.left)
        yield from _uses(of.right)
    elif (use := _USES.get(type(of))) is not None and isinstance(term := getattr(of, "term", None), Reference):
        yield term.name, use
