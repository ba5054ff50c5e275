"""What the routes of one app share: the lake, its queries, the budget for bodies, and the threads that do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal, ParamSpec, TypeVar

from fastapi import Depends, Request

from headwater.api.admission import Budget
from headwater.api.records import Limits
from headwater.api.runs import Runs
from headwater.api.spool import Spool
from headwater.api.tails import Tails
from headwater.engine import Lake

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 32
"""Producers wait for the disk in these: as many as one group commit may usefully have."""
SLOW_THREADS = 4
"""Flushes and refreshes wait for Spark in these."""
SWEEP_SECONDS = 30.0


class State:
    """Made with the app, closed when it stops. The lake itself belongs to the caller."""

    def __init__(self, lake: Lake, stopping: Callable[[], bool] = lambda: False) -> None:
        settings = lake.settings
        self.lake = lake
        self.budget = Budget(settings.memory_limit // 4)
        self.limits = Limits(settings.max_body_bytes, settings.max_record_bytes)
        self.runs = Runs(lake.execute, concurrency=settings.query_concurrency)
        self.tails = Tails(lake.tailing, settings.max_tails, stopping)
        # Threads of our own, not the framework's: the log keeps a connection for each thread that ever reads it.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="headwater-api")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="headwater-slow")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that touches the lake in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def call_slow(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what may take minutes, so that nothing else waits behind it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._slow, lambda: function(*args, **kwargs))

    def new_spool(self, max_rows: int) -> Spool:
        """A place for one result that will be paged."""
        return Spool(self.lake.paths.scratch / "queries", max_rows, self.lake.settings.query_max_result_bytes)

    def spark(self) -> Literal["not started", "starting", "ready"]:
        """How far Spark is; asking does not start it."""
        return self.lake.spark_state

    async def sweep_forever(self) -> None:
        """Forget old results also when nobody asks for anything."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.call(self.runs.sweep)

    async def close(self) -> None:
        """Stop the queries and wait for the requests that still write."""
        await self.call(self.runs.close)
        self.tails.close()
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def state_of(request: Request) -> State:
    state: State = request.app.state.headwater
    return state


Shared = Annotated[State, Depends(state_of)]
