"""The FastAPI app of one lake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from headwater import __version__
from headwater.api import (
    care_routes,
    parquet_routes,
    problems,
    query_routes,
    record_routes,
    row_routes,
    service_routes,
    snapshot_routes,
    stream_routes,
    tail_routes,
    topic_routes,
    view_routes,
)
from headwater.api.guard import Guard, HostRule
from headwater.api.request_limits import RequestLimits
from headwater.api.state import State
from headwater.engine import Lake

DESCRIPTION = """\
Topics, records, views and queries of one lake.

Errors are RFC 9457 problem details; `code` is stable, `hint` says what to do.
"""
TAGS = [
    {"name": "topics", "description": "Definitions, and commits of what waits in the log."},
    {"name": "records", "description": "Producing."},
    {"name": "snapshots", "description": "A topic's past, tags and branches, and the way back."},
    {"name": "views", "description": "Materialized views: definitions, refreshes, rows."},
    {"name": "streams", "description": "Streams, and the continuous views and connectors that run."},
    {"name": "care", "description": "Compaction, expiry, retention and the rest of the care of tables."},
    {"name": "queries", "description": "Reading."},
    {"name": "service", "description": "Health, metrics, version."},
]


def create_app(lake: Lake, host: str | None = None, stopping: Callable[[], bool] = lambda: False) -> FastAPI:
    """The app for a lake that stays the caller's; `host` is the address that the server is bound to.

    `stopping` says whether the server is about to stop, which a response that never ends has to ask.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state = app.state.headwater = State(lake, stopping)
        sweeper = asyncio.create_task(state.sweep_forever())
        try:
            yield
        finally:
            sweeper.cancel()
            await state.close()

    app = FastAPI(
        title="Headwater",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    app.add_middleware(problems.CatchAll)
    app.add_middleware(
        RequestLimits, max_bytes=lake.settings.max_request_bytes, body_seconds=lake.settings.body_timeout
    )
    # Added last, so it is the outermost.
    app.add_middleware(Guard, hosts=HostRule.of(host or lake.settings.host, lake.settings.allowed_hosts))
    topical = (care_routes, parquet_routes, topic_routes, record_routes, row_routes, snapshot_routes, tail_routes)
    for module in (*topical, view_routes, stream_routes, query_routes, service_routes):
        app.include_router(module.router)
    return app
