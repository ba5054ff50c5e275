"""The log on Kafka: a journal that every replica has, and an index of it in a SQLite file.

An append makes its changes in the index, inside a transaction that is still open, and writes them with its rows to the
journal. It is acknowledged when all replicas have it and it counts; then the index is committed. When another writer
came first, the index is taken back, brought up to date, and the append is made again on what is there now. So a request
is decided upon by nobody who did not know everything before it, and a crash anywhere leaves an index that is behind.
"""

from __future__ import annotations

import logging
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa

from headwater.errors import Corrupt, HeadwaterError, StorageBusy, Unavailable
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import named_errors, storage_error, transaction
from headwater.topics.log import Append, Entry, EntryReader, LogAck, LogTopic, TailBatch
from headwater.topics.log_group import GroupCommit, Outcome
from headwater.topics.log_index import IndexedLog
from headwater.topics.log_kafka_changes import KafkaWriter, place_of
from headwater.topics.log_kafka_index import Wrote, catch_up, note_written, open_index, standing
from headwater.topics.log_kafka_journal import Journal, message_count
from headwater.topics.log_kafka_place import KafkaPlace, make_topic
from headwater.topics.log_kafka_reader import KafkaReader
from headwater.topics.log_tables import Prepared
from headwater.types import LogKind

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[KafkaWriter], T]

RACES = 3
"""Appends that lose so often against others' hold the log for the next try."""
GARBAGE = 64 * 1024**2


class _Held(Exception):
    """Another holds the log: who, and how often it has said so."""


@dataclass(frozen=True, slots=True)
class _Tried(Generic[T]):
    """What a try came to. What it `wrote` counts for sure, or the journal has to be asked for the blob `mark`, or
    whether there was anything else to know."""

    result: T
    mark: bytes | None = None
    wrote: Wrote | None = None


class KafkaLog(IndexedLog):
    """See `headwater.topics.log.Log`. Safe for many threads, processes and machines; each machine has an index."""

    kind: ClassVar[LogKind] = "kafka"

    def __init__(
        self,
        place: KafkaPlace,
        index: Path,
        *,
        replication: int | None = None,
        busy_timeout: float = 30.0,
        max_tail_bytes: int = 256 * 1024**2,
        producer_horizon: float = 86_400.0,
        lease: float = 15.0,
        garbage: int = GARBAGE,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__(index, busy_timeout, max_tail_bytes)
        self._producer_horizon = int(producer_horizon * 1e6)
        self._now = now
        self._lease = lease
        self._garbage = garbage
        self._closed = False
        self._seen = -1
        self._schemas: dict[int, pa.Schema] = {}
        self._writing = threading.Lock()
        self._journal = Journal(place)
        with named_errors(index):
            self._db = open_index(index, busy_timeout)
        self._writer = KafkaWriter(self._db, max_tail_bytes=max_tail_bytes, now=now)
        self._group = GroupCommit(self._commit, lambda failed: storage_error(failed, index))
        try:
            if standing(self._db) is None:
                make_topic(place, replication)
            self._refresh()
        except BaseException:  # whoever tries again, while there is no broker, must not gather clients and files
            self.close()
            raise

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, request: Append) -> LogAck:
        return self._group.append(request)

    def _commit(self, group: Sequence[Prepared]) -> list[Outcome]:
        def store(writer: KafkaWriter) -> list[Outcome]:
            outcomes: list[Outcome] = []
            for prepared in group:
                try:
                    outcomes.append(writer.store(prepared))
                except HeadwaterError as refused:  # raised before anything of this request was written
                    outcomes.append(refused)
            return outcomes

        return self._append(store)

    def _append(self, work: Work[T]) -> T:
        """Do what must not happen while the log is held."""
        for _ in range(RACES):
            if (done := self._unless_held(work)) is not None:
                return done.result
        with self._hold() as holder:
            return self._insist(partial(self._unless_held, work, holder))

    def _publish(self, work: Work[T]) -> T:
        """Do what may happen at any time."""
        return self._insist(partial(self._try, work))

    def _insist(self, attempt: Callable[[], _Tried[T] | None]) -> T:
        """Try as often as it takes until no other writer comes first."""
        until = time.monotonic() + self._busy_timeout
        while (done := attempt()) is None:
            if time.monotonic() > until:
                raise StorageBusy("log in Kafka is too busy", detail="Others always wrote first.", hint="Try again.")
            time.sleep(random.uniform(0, 0.05))
        return done.result

    def _unless_held(self, work: Work[T], holder: str | None = None) -> _Tried[T] | None:
        """Try it once nobody but `holder` holds the log; whoever does and is silent has died."""
        until = time.monotonic() + self._busy_timeout
        seen, since = ("", 0), time.monotonic()
        while True:
            try:
                return self._try(work, partial(self._check_held, holder))
            except _Held as held:
                if held.args != seen:
                    seen, since = held.args, time.monotonic()
            if time.monotonic() - since > self._lease:
                log.warning("broke the hold of a writer that is silent", extra={"holder": seen[0]})
                self._publish(partial(KafkaWriter.release, holder=seen[0]))
            if time.monotonic() > until:
                raise StorageBusy("log in Kafka stayed held", detail="Nothing was written.", hint="Try again.")
            time.sleep(0.01)
            self._refresh()

    def _check_held(self, holder: str | None) -> None:
        row = self._db.execute("SELECT holder, beat FROM log_holds").fetchone()
        if row is not None and row[0] != holder:
            raise _Held(*row)

    def _try(self, work: Work[T], check: Callable[[], None] = lambda: None) -> _Tried[T] | None:
        """Do it on what the index knows, and write it down; None when another writer came first."""
        with named_errors(self._path), self._writing:
            self._check_open()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                check()
                tried = self._write(work)
                if tried.wrote is not None:
                    self._settle(tried.wrote)
                    return tried
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            counted = self._catch_up()
            # Without a blob it was decided upon what the index knew: that must have been everything.
            return tried if (tried.mark in counted if tried.mark else not counted) else None

    def _write(self, work: Work[T]) -> _Tried[T]:
        now = standing(self._db)
        assert now is not None
        self._writer.begin(now.next)
        result = work(self._writer)
        if not self._writer.changes:
            return _Tried(result)
        blob = self._writer.blob()
        failpoint("log.before_commit")
        mark, first, end = self._journal.write(blob, now.head)
        failpoint("kafka_log.journaled")
        if first != now.next or end - first != message_count(blob):
            return _Tried(result, mark)
        return _Tried(result, mark, Wrote(first, end, len(blob), snapshot=self._writer.changes[0][0] == "load"))

    def _settle(self, wrote: Wrote) -> None:
        """Commit the index, and keep what was appended for the queries that come next."""
        try:
            note_written(self._db, wrote)
            self._db.execute("COMMIT")
        except sqlite3.Error as failed:  # it is acknowledged all the same: the journal has it, the index catches up
            log.warning("index of the log was not written", extra={"error": str(failed)})
            return
        failpoint("log.after_commit")
        for entry, schema, data in self._writer.entries:
            self._tail.put(entry, pa.ipc.read_record_batch(data, self._schema(self._db, schema)))

    def _schema(self, db: sqlite3.Connection, schema: int) -> pa.Schema:
        if schema not in self._schemas:
            (data,) = db.execute("SELECT schema FROM log_schemas WHERE id = ?", (schema,)).fetchone()
            self._schemas[schema] = pa.ipc.read_schema(pa.py_buffer(data))
        return self._schemas[schema]

    # -- holding ------------------------------------------------------------------------------------------------

    def guard(self, topic: LogTopic) -> None:
        self._publish(lambda writer: writer.guard(topic))

    @contextmanager
    def holding(self, topic: LogTopic) -> Iterator[None]:
        """A mark in the journal: whoever appends anywhere, to any topic, comes after it and waits."""
        with self._hold():
            yield

    @contextmanager
    def _hold(self) -> Iterator[str]:
        holder, done = secrets.token_hex(8), threading.Event()
        self._insist(partial(self._unless_held, lambda writer: writer.hold(holder, 0)))
        renewing = threading.Thread(target=self._renew, args=(holder, done), name="kafka-log-hold", daemon=True)
        renewing.start()
        try:
            yield holder
        finally:
            done.set()
            renewing.join()
            with told_only("release the hold on"):
                self._publish(lambda writer: writer.release(holder))

    def _renew(self, holder: str, done: threading.Event) -> None:
        beat = 0
        while not done.wait(self._lease / 3):
            beat += 1
            with told_only("renew the hold on"):
                self._publish(partial(KafkaWriter.hold, holder=holder, beat=beat))

    # -- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the index, with everything that any process was told of before."""
        self._refresh()
        with super()._reading() as db:
            yield db

    def _refresh(self) -> None:
        """Bring the index up to the journal's end of now."""
        self._check_open()
        _, high = self._journal.bounds()
        with named_errors(self._path), super()._reading() as db:
            now = standing(db)
        if now is not None and high in (now.next, self._seen):
            return
        with named_errors(self._path), self._writing:
            self._catch_up()
        self._seen = high  # what an unfinished blob left at the end is not read again and again

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f'log in Kafka topic "{self._journal.place.topic}" is closed')

    def _catch_up(self) -> set[bytes]:
        with transaction(self._db, write=True):
            return catch_up(self._db, self._journal)

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        try:
            return super().tail(topic, start)
        except Corrupt:
            if self.stats(topic).start > start:  # trimmed, and deleted in Kafka, while it was read
                return None
            raise

    def _read(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        if entries:
            with self._journal.consumer() as consumer:
                yield from self._reader(db, entries).read_by(consumer, entries)

    def reader(self, topic: LogTopic, entries: Sequence[Entry]) -> EntryReader:
        with super()._reading() as db:
            return self._reader(db, entries)

    def _reader(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> KafkaReader:
        find = "SELECT schema, checksum FROM log_entries WHERE id = ?"
        stored = {entry.id: row for entry in entries if (row := db.execute(find, (entry.id,)).fetchone()) is not None}
        schemas = {schema: self._schema(db, schema) for schema, _ in stored.values()}
        return KafkaReader(self._journal.place, stored, schemas)

    # -- forgetting ---------------------------------------------------------------------------------------------

    def trim(self, topic: LogTopic, before: int) -> None:
        def work(writer: KafkaWriter) -> None:
            writer.trim(topic, before)
            writer.forget_producers(self._now() - self._producer_horizon)

        gone = {entry.id for entry in self.entries(topic, 0) if entry.offsets.end <= before}
        self._publish(work)
        self._tail.forget(gone)
        self._collect()

    def _collect(self) -> None:
        """Have Kafka delete what nobody needs, once it is much more than what has to be written anew for it."""
        with super()._reading() as db:
            now = standing(db)
            (held,) = db.execute("SELECT coalesce(sum(bytes), 0) FROM log_topics").fetchone()
        assert now is not None
        if now.bytes - held < max(self._garbage, 4 * now.snapshot_bytes):
            return
        self._publish(KafkaWriter.snapshot)
        before = self._publish(self._cut)
        with told_only("delete old messages of"):
            self._journal.cut(before)

    def _cut(self, writer: KafkaWriter) -> int:
        """Below the last snapshot and below the oldest entry."""
        now = standing(self._db)
        assert now is not None
        (oldest,) = self._db.execute("SELECT min(id) FROM log_entries").fetchone()
        before = now.snapshot_at if oldest is None else min(now.snapshot_at, place_of(oldest)[0])
        writer.cut(before)
        return before

    def forget_keys(self, topic: LogTopic, horizon: float) -> None:
        before = self._now() - int(horizon * 1e6)
        self._publish(lambda writer: writer.forget_keys(topic, before))

    def drop(self, topic: LogTopic) -> None:
        self._publish(lambda writer: writer.drop(topic))

    def close(self) -> None:
        """Finish the append under way, then stop."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
        self._close_readers()
        self._db.close()
        self._journal.close()


@contextmanager
def told_only(what: str) -> Iterator[None]:
    """For what others, or the next who tries, make good: that it failed is only told."""
    try:
        yield
    except HeadwaterError as failed:
        log.warning("could not %s the log", what, extra={"error": str(failed)})
