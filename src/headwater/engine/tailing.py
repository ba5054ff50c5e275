"""Tails of an open lake: which topic or view is meant, and waiting for what comes next.

Who appends through this lake tells of it, and a tail looks at once. Other processes append to the same log without a
word, so every tail also looks by itself, several times a second; a look that finds nothing reads one row of SQLite.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError

from headwater.catalog.topics import Topics
from headwater.catalog.views import Views
from headwater.serving.duck import Duck
from headwater.serving.held_rows import HeldRows
from headwater.serving.query import Queries
from headwater.serving.tail_request import TailRequest
from headwater.serving.tailing import Followed, TopicTail
from headwater.serving.tailing_views import ViewTail
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log
from headwater.types import DEAD_SUFFIX, TableName

LOOK = 0.1
"""Seconds between two looks when nobody tells of anything."""


class News:
    """Who wants to be told when this process appends to a topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self.closed = False

    def tell(self, topic: str) -> None:
        """Something was appended to the topic, and perhaps to its dead letters. Costs nothing where nobody listens."""
        if self._listeners:
            with self._lock:
                told = [*self._listeners.get(topic, ()), *self._listeners.get(topic + DEAD_SUFFIX, ())]
            for wake in told:
                wake()

    @contextmanager
    def listening(self, topic: str, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` for every append while the block runs, from the thread that appends."""
        with self._lock:
            self._listeners[topic].append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._listeners[topic].remove(wake)
                if not self._listeners[topic]:
                    del self._listeners[topic]

    def close(self) -> None:
        """Let everybody look once more, and find that it is over."""
        self.closed = True
        with self._lock:
            told = [wake for listeners in self._listeners.values() for wake in listeners]
        for wake in told:
            wake()


class Tailing:
    """Opens tails of one lake."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        log: Log,
        queries: Queries,
        manifests: ManifestCache,
        duck: Callable[[], Duck],
    ) -> None:
        self._topics = topics
        self._views = views
        self._log = log
        self._queries = queries
        self._manifests = manifests
        self._held = HeldRows(lambda *asked: duck().verify(*asked))
        self.news = News()

    def follow(self, asked: TailRequest) -> Followed:
        """The topic or view of this name, to be looked at page by page."""

        def run(query: Any, given: Any) -> Any:
            return self._queries.run(query, None, given)

        if self._is_view(asked.name):
            return ViewTail(self._views, self._manifests, self._held, run, asked)
        return TopicTail(self._topics, self._log, run, asked)

    def _is_view(self, name: str) -> bool:
        try:
            self._views.tables.load(TableName.view(name))
        except NoSuchTableError:
            return False
        return True


class Tail:
    """The rows of a topic, or the changes of a view, as they come: as dicts, or as Arrow from `batches()`.

    Read it once, in one thread; `close` may be called from another, and so may the lake's.
    """

    def __init__(self, followed: Followed, news: News, name: str, *, follow: bool, limit: int | None) -> None:
        self._followed = followed
        self._news = news
        self._name = name
        self._follow = follow
        self._left = limit
        self._woken = threading.Event()
        self._closed = False
        self._at = followed.at

    @property
    def at(self) -> str:
        """The mark of what was given last: a tail with `after` this goes on behind it."""
        return self._at

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come, some at a time; columns that are added meanwhile are in later batches."""
        try:
            with self._news.listening(self._name, self._woken.set):
                yield from self._limited()
        finally:
            self._followed.close()

    def _limited(self) -> Iterator[pa.RecordBatch]:
        while self._left != 0 and not self._ended:
            self._woken.clear()  # before the look: what is appended from here on is looked for again
            page = self._followed.poll()
            if page is None:
                if not self._follow:
                    return
                self._woken.wait(LOOK)
            else:
                page = page.first(self._left)
                self._at = page.at
                if page.rows.num_rows:
                    self._left = None if self._left is None else self._left - page.rows.num_rows
                    yield page.rows

    @property
    def _ended(self) -> bool:
        return self._closed or self._news.closed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()

    def close(self) -> None:
        """End it; who waits for the next row is woken."""
        self._closed = True
        self._woken.set()
