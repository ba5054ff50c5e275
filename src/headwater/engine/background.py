"""What runs beside a lake's statements until it is closed: ingest, refreshes of views, the care of tables."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from headwater.catalog.topics import Topics
from headwater.config import LakePaths, Settings
from headwater.observability.metrics import Metrics
from headwater.topics.ingest import Ingester
from headwater.topics.ingest_loop import IngestLoop
from headwater.topics.log import Log

if TYPE_CHECKING:
    from headwater.engine.care import Care
    from headwater.engine.refreshing import Refreshing
    from headwater.engine.streams import StreamRoom


class Background:
    """The loops of one lake; the one that was started last is stopped first."""

    def __init__(self, paths: LakePaths, settings: Settings) -> None:
        self._paths = paths
        self._settings = settings
        self._until = ExitStack()

    def ingest(self, topics: Topics, log: Log, ingester: Ingester, metrics: Metrics) -> IngestLoop:
        """Commit what producers send, when it is due."""
        from headwater.state.holders import holder_name
        from headwater.state.leases import Leases, open_state

        state = open_state(self._paths.state, self._settings.busy_timeout)
        leases = Leases(state, holder_name(str(id(self))), self._settings.lease_ttl)
        loop = IngestLoop(topics, log, ingester, leases, metrics, poll=self._settings.ingest_poll)
        loop.start()
        self._until.callback(state.dispose)
        self._until.callback(loop.stop)
        return loop

    def refresh(self, refreshing: Refreshing) -> None:
        """Keep views fresh."""
        refreshing.start()
        self._until.callback(refreshing.stop)

    def stream(self, streams: StreamRoom) -> None:
        """Run continuous views and connectors."""
        streams.start_background()
        self._until.callback(streams.stop_background)

    def take_care(self, care: Care) -> None:
        """Keep tables tidy."""
        from headwater.engine.care_loop import CareLoop

        loop = CareLoop(care, interval=self._settings.maintenance_interval)
        loop.start()
        self._until.callback(loop.stop)

    def close(self) -> None:
        self._until.close()
