"""A lake's log: each topic's own, SQLite or Kafka, chosen by the topic.

Kafka's is opened when the first topic needs it: a lake without one pays nothing, and does not import its client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock

from headwater.errors import Conflict, Unavailable
from headwater.topics.log import Append, Entry, EntryReader, Log, LogAck, LogStats, LogTopic, TailBatch

AGAIN = 1.0
"""Seconds after which brokers that did not answer for as long are asked again."""


class RoutedLog:
    """See `headwater.topics.log.Log`. `exists` says whether there is a log in Kafka to ask, without opening it."""

    def __init__(self, sqlite: Log, open_kafka: Callable[[], Log], exists: Callable[[], bool]) -> None:
        self.sqlite = sqlite
        self._open_kafka = open_kafka
        self._exists = exists
        self._opened: Log | None = None
        self._away: tuple[float, Unavailable] | None = None
        self._lock = Lock()

    @property
    def kafka(self) -> Log:
        """The log in Kafka, made if there is none."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Log:
        """Open it. While no broker answers, those who ask one after the other wait for one once, not each in turn."""
        if self._away is not None and time.monotonic() < self._away[0]:
            raise self._away[1]
        asked = time.monotonic()
        try:
            return self._open_kafka()
        except Unavailable as away:
            if (now := time.monotonic()) - asked >= AGAIN:
                self._away = now + AGAIN, away
            raise

    def _of(self, topic: LogTopic) -> Log:
        return self.sqlite if topic.log == "sqlite" else self.kafka

    def _all(self) -> list[Log]:
        return [self.sqlite, self.kafka] if self._opened is not None or self._exists() else [self.sqlite]

    def append(self, request: Append) -> LogAck:
        first = request.parts[0].topic
        for part in request.parts[1:]:
            if part.topic.log != first.log:
                raise Conflict(
                    f'topics "{first.name}" and "{part.topic.name}" have different logs',
                    detail="A request is stored whole or not at all, which takes one log. Nothing was written.",
                    hint=f"Make topic \"{part.topic.name}\" with log = '{first.log}'.",
                )
        return self._of(first).append(request)

    def position(self, source: str) -> str | None:
        return next((found for log in self._all() if (found := log.position(source)) is not None), None)

    def stats(self, topic: LogTopic) -> LogStats:
        return self._of(topic).stats(topic)

    def entries(self, topic: LogTopic, start: int) -> list[Entry]:
        return self._of(topic).entries(topic, start)

    def tail(self, topic: LogTopic, start: int) -> list[TailBatch] | None:
        return self._of(topic).tail(topic, start)

    def reader(self, topic: LogTopic, entries: Sequence[Entry]) -> EntryReader:
        return self._of(topic).reader(topic, entries)

    def guard(self, topic: LogTopic) -> None:
        self._of(topic).guard(topic)

    def holding(self, topic: LogTopic) -> AbstractContextManager[None]:
        return self._of(topic).holding(topic)

    def trim(self, topic: LogTopic, before: int) -> None:
        self._of(topic).trim(topic, before)

    def forget_keys(self, topic: LogTopic, horizon: float) -> None:
        self._of(topic).forget_keys(topic, horizon)

    def waiting(self) -> list[LogTopic]:
        return [topic for log in self._all() for topic in log.waiting()]

    def drop(self, topic: LogTopic) -> None:
        self._of(topic).drop(topic)

    def close(self) -> None:
        try:
            if self._opened is not None:
                self._opened.close()
        finally:
            self.sqlite.close()
