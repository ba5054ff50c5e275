"""Health, readiness, metrics and version: what a supervisor asks."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from headwater import __version__
from headwater.api.described import problems, text
from headwater.api.models import Health, Readiness, Version
from headwater.api.state import Shared
from headwater.engine import Lake
from headwater.errors import full_disk

log = logging.getLogger(__name__)

LEAST_DISK = 16 * 1024**2
"""Bytes that must be free for the service to be ready: a request that is acknowledged may need as many."""

router = APIRouter(tags=["service"])


@router.get("/health", operation_id="health", response_model=Health, responses=problems())
async def health() -> dict[str, Any]:
    """The process is alive and answers."""
    return {"status": "alive"}


@router.get(
    "/ready",
    operation_id="ready",
    response_model=Readiness,
    responses={
        **problems(),
        503: {"model": Readiness, "description": "A part does not answer, or the disk is full."},
    },
)
async def ready(shared: Shared, response: Response) -> dict[str, Any]:
    """The catalog and the log answer, and the disk has space; Spark may still start: small queries do not need it."""
    found = await shared.call(_probe, shared.lake)
    answering = all(answer == "ok" for answer in found.values())
    if not answering:
        response.status_code = 503
    return {
        "status": "ready" if answering else "not ready",
        **found,
        "spark": shared.spark(),
        "query_worker": shared.lake.query_worker_state,
    }


def _probe(lake: Lake) -> dict[str, str]:
    """`ok` or the reason why not, for each part that must answer."""
    checks: dict[str, Callable[[], object]] = {
        "catalog": lake.topics.names,
        "log": lake.log.waiting,
        "disk": lambda: _check_disk(lake.paths.root),
    }
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = "ok"
        except Exception as failed:
            found[name] = str(failed) or type(failed).__name__
    return found


def _check_disk(folder: Path) -> None:
    """StorageBusy if there is too little space for the log to go on."""
    if shutil.disk_usage(folder).free < LEAST_DISK:
        raise full_disk(str(folder))


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": text()}}, **problems()},
)
async def metrics(shared: Shared) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(await shared.call(_scraped, shared.lake), media_type=CONTENT_TYPE_LATEST)


def _scraped(lake: Lake) -> bytes:
    try:
        lake.measure_views()
    except Exception as failed:  # the other metrics are wanted most when something is wrong
        log.warning("lag of views was not measured", extra={"error": str(failed)})
    try:
        lake.measure_tables()
    except Exception as failed:
        log.warning("tables were not measured", extra={"error": str(failed)})
    try:
        lake.measure_streams()
    except Exception as failed:
        log.warning("streams were not measured", extra={"error": str(failed)})
    return lake.metrics.exposition()


@router.get("/api/v1/version", operation_id="version", response_model=Version, responses=problems())
async def version() -> dict[str, Any]:
    """Which Headwater this is."""
    return {"version": __version__, "api": "v1"}
