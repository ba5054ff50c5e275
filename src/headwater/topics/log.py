"""The log's port: where a record is durable before it is in the table.

An append is acknowledged after the log has it on disk. Offsets are dense from 0 in each topic. A reader takes the tail
from the first offset that its snapshot lacks; what was trimmed meanwhile is in a newer snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headwater.types import LogKind, Offsets


@dataclass(frozen=True, slots=True)
class LogTopic:
    """A topic as the log knows it: the table's UUID, its name for people, where to start when it is new here, and
    which log has it."""

    id: str
    name: str
    committed: int
    log: LogKind = "sqlite"
    acknowledged: int = field(default=0, compare=False)
    """At least this many records had been acknowledged when the table last moved."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """One key per row (None keeps the row), and how long a key is remembered."""

    keys: tuple[bytes | None, ...] = field(repr=False)
    horizon: float


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for one topic, without system columns; `columns` are theirs with the ids of the topic's fields."""

    topic: LogTopic
    batches: tuple[pa.RecordBatch, ...] = field(repr=False)
    dedup: Dedup | None = None
    columns: pa.Schema | None = field(default=None, repr=False)

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a source has been read into the log: `start` is what its reader went on from, None at the beginning."""

    source: str
    start: str | None
    end: str


@dataclass(frozen=True, slots=True)
class Append:
    """One request: its parts are stored together or not at all, and once per (producer, sequence)."""

    parts: tuple[Part, ...]
    producer: str | None = None
    sequence: int = 0
    verify: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called while nobody else can append, if the first part's topic is guarded: raises if the rows do not fit now."""
    moved: Moved | None = None
    """Stored with the parts, which may be without rows; StaleCommit when the source is not at `moved.start`."""


@dataclass(frozen=True, slots=True)
class PartAck:
    offsets: Offsets
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class LogAck:
    """Where each part went; `repeated` when this producer's sequence had been stored before."""

    parts: tuple[PartAck, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored append: a run of offsets with one timestamp (microseconds)."""

    id: int
    offsets: Offsets
    appended_at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TailBatch:
    entry: Entry
    batch: pa.RecordBatch = field(repr=False)


@dataclass(frozen=True, slots=True)
class LogStats:
    """What the log holds of a topic: `[start, end)`, its bytes, and when its oldest entry came (microseconds)."""

    start: int
    end: int
    bytes: int
    entries: int
    oldest: int | None


class EntryReader(Protocol):
    """Reads entries in another process: it can be pickled, and opens what it needs there."""

    def read(self, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """The rows of each entry, in order; Corrupt when one is damaged or gone."""
        ...


class Log(Protocol):
    """Implemented on SQLite (embedded) and on Kafka."""

    def append(self, request: Append) -> LogAck:
        """Store the request, together with what other threads send meanwhile; returns once it is on disk."""
        ...

    def position(self, source: str) -> str | None:
        """How far the source has been read; None when nothing of it was stored, or its topic was dropped."""
        ...

    def stats(self, topic: LogTopic) -> LogStats: ...

    def entries(self, topic: LogTopic, start: int) -> list[Entry]:
        """The entries from offset `start` on, in order."""
        ...

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        """The rows from `start` on, dense, at one moment; None when some were trimmed or the topic was dropped."""
        ...

    def reader(self, topic: LogTopic, entries: Sequence[Entry]) -> EntryReader:
        """What reads these entries of the topic, or some of them, in a worker."""
        ...

    def guard(self, topic: LogTopic) -> None:
        """Verify every later append to the topic: what it takes is going to be narrowed."""
        ...

    def holding(self, topic: LogTopic) -> AbstractContextManager[None]:
        """Nothing is appended to the topic, by any process, while the block runs; what was acknowledged before can be
        read."""
        ...

    def trim(self, topic: LogTopic, before: int) -> None:
        """Forget what is below `before`. Only what a table has committed may be trimmed."""
        ...

    def forget_keys(self, topic: LogTopic, horizon: float) -> None:
        """Forget deduplication keys that are older than `horizon` seconds."""
        ...

    def waiting(self) -> list[LogTopic]:
        """The topics of which the log holds anything."""
        ...

    def drop(self, topic: LogTopic) -> None:
        """Forget the topic and refuse later appends to it."""
        ...

    def close(self) -> None: ...
