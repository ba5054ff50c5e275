"""Views that are refreshed without being told to: in the background of a service, and before a query reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headwater.catalog.views import View
from headwater.config import LakePaths, Settings
from headwater.state.holders import holder_name
from headwater.state.leases import Leases, open_state
from headwater.topics.log import Log
from headwater.views.history import History
from headwater.views.loop import Pace, ViewLoop
from headwater.views.on_query import OnQuery
from headwater.views.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Refreshing:
    """The refresher of one lake, once it is started, and what queries ask before they read."""

    def __init__(
        self,
        paths: LakePaths,
        settings: Settings,
        upkeep: Upkeep,
        history: History,
        wal: Log,
        spark: Callable[[], SparkSession],
    ) -> None:
        self._settings = settings
        self._upkeep = upkeep
        self._history = history
        self._spark = spark
        self._state = open_state(paths.state, settings.busy_timeout)
        self._on_query = OnQuery(upkeep, wal, self._leases("queries"), wait=settings.refresh_wait)
        self._loop: ViewLoop | None = None

    def _leases(self, part: str) -> Leases:
        """Leases of a holder of its own: the parts of a process keep out of each other's way too."""
        holder = holder_name(f"{id(self)}:{part}")
        return Leases(self._state, holder, self._settings.lease_ttl)

    def start(self) -> None:
        """Refresh in the background until `stop`."""
        settings = self._settings
        pace = Pace(
            settings.refresh_poll,
            settings.max_concurrent_refreshes,
            settings.refresh_retry,
            settings.refresh_retry_max,
        )
        self._loop = ViewLoop(self._upkeep, self._spark, self._leases("views"), pace, verified=self._history.verified)
        self._loop.start()

    def wake(self) -> None:
        """Something was committed to a topic."""
        if self._loop is not None:
            self._loop.wake()

    def before_read(self, views: Sequence[View]) -> None:
        """Refresh those of the views that a query must not read as they are."""
        self._on_query.before_read(views)

    def stop(self) -> None:
        """Finish or cancel what is under way in the background."""
        if self._loop is not None:
            self._loop.stop()

    def close(self) -> None:
        self._state.dispose()
