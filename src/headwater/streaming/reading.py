"""The files that batches read, for as long as a batch that is under way may ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from headwater.catalog.topics import Topics
from headwater.errors import StreamFailed
from headwater.storage.scan import ManifestCache
from headwater.streaming.checkpoint import Batch
from headwater.streaming.offsets import Place, Span, remove_cuts, span

_KEPT = 16


class TopicFiles:
    """Answers what a query's streams read between two places; `ids` are those of the topics that it was made for."""

    def __init__(self, topics: Topics, ids: Mapping[str, str], cache: ManifestCache, scratch: Path) -> None:
        self._topics = topics
        self._ids = ids
        self._cache = cache
        self._scratch = scratch
        self._known: dict[tuple[Place, Place], Span] = {}
        self._lock = Lock()

    def __call__(self, start: Place, end: Place) -> str:
        return self._between(start, end).to_json()

    def span(self, batch: Batch, topic: str) -> Span:
        """What the batch read of a topic."""
        end = batch.ends[topic]
        start = batch.starts.get(topic, Place(topic))
        return Span(()) if start == end else self._between(start, end)

    def _between(self, start: Place, end: Place) -> Span:
        with self._lock:
            if (known := self._known.get((start, end))) is not None:
                return known
            topic = self._topics.load(end.topic)
            if topic.id != self._ids.get(topic.name, topic.id):
                raise StreamFailed(
                    f'topic "{topic.name}" was dropped and made anew',
                    hint="Create the view again, with CREATE OR REPLACE MATERIALIZED VIEW.",
                )
            found = self._known[(start, end)] = span(topic, start, end, self._cache, self._scratch)
            while len(self._known) > _KEPT:
                self._known.pop(next(iter(self._known)))
            remove_cuts(self._scratch, [path for each in self._known.values() for path, _, _ in each.files])
            return found
