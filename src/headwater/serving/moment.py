"""Topics as one query sees them: each is read at once, snapshot and tail, the first time the query names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.schema import Schema

from headwater.catalog.topics import Topics
from headwater.errors import InvalidName, TopicNotFound
from headwater.serving.agreement import ScanNeeds
from headwater.serving.plan import Scan
from headwater.serving.tail import TopicAtOnce, read_at_once, read_committed
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.topics.log import Log


class Moment(Mapping[str, Schema]):
    """Schemas by topic name, read on demand; remembers what was read and what was not there."""

    def __init__(self, topics: Topics, log: Log, manifests: ManifestCache, *, tail: bool) -> None:
        self._topics = topics
        self._log = log
        self._manifests = manifests
        self.tail = tail
        self._read: dict[str, TopicAtOnce] = {}
        self.missing: dict[str, TopicNotFound | InvalidName] = {}

    def topic(self, name: str) -> TopicAtOnce:
        """The topic at this moment; TopicNotFound if there is none."""
        if name not in self._read:
            self._read[name] = (
                read_at_once(self._topics, self._log, name) if self.tail else read_committed(self._topics, name)
            )
        return self._read[name]

    def scan(self, name: str, needs: ScanNeeds) -> Scan:
        """What the query reads of the topic."""
        at = self.topic(name)
        files = plan_scan(at.topic.table, at.topic.snapshot_id, needs.filter, self._manifests)
        return Scan(at.topic, needs, files, at.offsets if self.tail else None, at.rows)

    def __getitem__(self, name: str) -> Schema:
        try:
            return self.topic(name.lower()).topic.schema
        except (TopicNotFound, InvalidName) as missing:
            self.missing[name] = missing
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics.names())

    def __len__(self) -> int:
        return len(self._topics.names())
