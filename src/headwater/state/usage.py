"""Which columns queries read and filter by, topic by topic: what advice about layouts is drawn from.

Queries of one kind are one pattern: the columns they read, those they filter by and how. A pattern keeps a count and
the latest filters. Advice lives on it and nothing else does: it is bounded, it forgets, and losing some costs nothing.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headwater.state.sqlite import connect, transaction

Use = Literal["equal", "range", "prefix", "null"]

MAX_PATTERNS = 256
"""Of one topic; those unused for longest leave first."""
MAX_FILTERS = 8
"""Filters that a pattern keeps, the latest ones."""
MAX_FILTER = 4096
"""Characters of a filter that is kept; a longer one only counts."""
HORIZON = 90 * 86_400.0
"""Seconds after which a pattern that no query had again is forgotten."""

_MAKE = """
CREATE TABLE IF NOT EXISTS query_patterns (
    topic TEXT NOT NULL, pattern TEXT NOT NULL, queries INTEGER NOT NULL, last_used REAL NOT NULL,
    filters TEXT NOT NULL, PRIMARY KEY (topic, pattern)) WITHOUT ROWID
"""
_PUT = """
INSERT INTO query_patterns VALUES (?, ?, ?, ?, ?) ON CONFLICT (topic, pattern) DO UPDATE
SET queries = queries + excluded.queries, last_used = excluded.last_used, filters = excluded.filters
"""
_FORGET = """
DELETE FROM query_patterns WHERE topic = ?1 AND pattern NOT IN
    (SELECT pattern FROM query_patterns WHERE topic = ?1 ORDER BY last_used DESC, pattern LIMIT ?2)
"""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Queries of one kind: columns read, columns filtered by and how, and the latest filters as Iceberg's JSON."""

    reads: tuple[str, ...]
    uses: tuple[tuple[str, Use], ...] = ()
    queries: int = 1
    filters: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return json.dumps([self.reads, self.uses])


@dataclass(frozen=True, slots=True)
class ColumnUsage:
    """How many queries read a column, and filtered by it in which way."""

    reads: int = 0
    equal: int = 0
    range: int = 0
    prefix: int = 0
    null: int = 0


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """What was asked of a topic, the most frequent pattern first."""

    patterns: tuple[Pattern, ...] = ()

    @property
    def queries(self) -> int:
        return sum(each.queries for each in self.patterns)

    @property
    def columns(self) -> dict[str, ColumnUsage]:
        """By column, those that any query needed."""
        names = dict.fromkeys(
            name for each in self.patterns for name in (*each.reads, *(name for name, _ in each.uses))
        )
        return {name: self.of(name) for name in names}

    def of(self, column: str) -> ColumnUsage:
        reads = sum(each.queries for each in self.patterns if column in each.reads)
        return ColumnUsage(reads, *(self._used(column, use) for use in ("equal", "range", "prefix", "null")))

    def _used(self, column: str, use: str) -> int:
        return sum(each.queries for each in self.patterns if (column, use) in each.uses)


class UsageStore:
    """The patterns of a lake, in its state file; shared by processes."""

    def __init__(self, path: Path, busy_timeout: float, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._now = now

    def add(self, seen: Sequence[tuple[str, Pattern]]) -> None:
        """Count patterns of topics, by the topics' ids, in one transaction."""
        with closing(self._open()) as db, transaction(db, write=True):
            for topic, pattern in seen:
                self._put(db, topic, pattern)
            for topic in {topic for topic, _ in seen}:
                db.execute(_FORGET, (topic, MAX_PATTERNS))
            # Of all topics: nobody else forgets those that were dropped.
            db.execute("DELETE FROM query_patterns WHERE last_used < ?", (self._now() - HORIZON,))

    def of(self, topic: str) -> TopicUsage:
        """What is known of the topic with this id."""
        asked = "SELECT pattern, queries, filters FROM query_patterns WHERE topic = ? ORDER BY queries DESC, pattern"
        with closing(self._open()) as db:
            return TopicUsage(tuple(_pattern(*row) for row in db.execute(asked, (topic,))))

    def _open(self) -> sqlite3.Connection:
        db = connect(self._path, self._busy_timeout)
        # Not worth an fsync: what a crash takes away, later queries bring back.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(_MAKE)
        return db

    def _put(self, db: sqlite3.Connection, topic: str, pattern: Pattern) -> None:
        known = db.execute("SELECT filters FROM query_patterns WHERE topic = ? AND pattern = ?", (topic, pattern.key))
        before = [text for row in known for text in json.loads(row[0])]
        filters = _latest((*before, *pattern.filters))
        db.execute(_PUT, (topic, pattern.key, pattern.queries, self._now(), json.dumps(filters)))


def _latest(filters: Iterable[str]) -> list[str]:
    """The last few of them, each once, at its latest place."""
    once = list(dict.fromkeys(reversed([text for text in filters if len(text) <= MAX_FILTER])))
    return once[:MAX_FILTERS][::-1]


def _pattern(key: str, queries: int, filters: str) -> Pattern:
    reads, uses = json.loads(key)
    return Pattern(tuple(reads), tuple((name, use) for name, use in uses), queries, tuple(json.loads(filters)))
