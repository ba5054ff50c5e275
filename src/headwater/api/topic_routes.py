"""/api/v1/topics: create, list, describe, alter, drop, flush."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from headwater.api.described import problems, schema_of, text
from headwater.api.models import (
    NAME,
    ORDERS,
    AlterBody,
    DefinitionBody,
    Flushed,
    Status,
    TopicAltered,
    TopicCreated,
    TopicDescription,
    TopicList,
    TopicSchemas,
)
from headwater.api.problems import problem, unexpected_error
from headwater.api.records import NDJSON
from headwater.api.state import Shared, State
from headwater.api.streams import told_while
from headwater.engine import Lake
from headwater.errors import HeadwaterError
from headwater.sql.alter import alter_of
from headwater.sql.schema_files import definition_from_dict
from headwater.sql.statements import CreateTopic, DescribeTopic, DropTopic, ShowSchemas, ShowTopics
from headwater.topics.ingest import Ingested
from headwater.types import MAX_NAME, id_text

router = APIRouter(prefix="/api/v1", tags=["topics"])

# Described, not enforced here: the engine's own error about a name says more.
_NAME = {"pattern": NAME, "maxLength": MAX_NAME}
TopicPath = Annotated[str, Path(description="The topic's name.", examples=["orders"], json_schema_extra=_NAME)]


@router.post(
    "/topics",
    operation_id="create_topic",
    status_code=201,
    response_model=TopicCreated,
    responses={200: {"model": TopicCreated, "description": "It existed already."}, **problems(409)},
)
async def create_topic(
    shared: Shared,
    response: Response,
    definition: Annotated[dict[str, Any], Body(json_schema_extra=schema_of(DefinitionBody), examples=[ORDERS])],
    if_not_exists: Annotated[bool, Query(description="Do not fail if there is one of this name.")] = False,
) -> dict[str, Any]:
    """Create a topic."""
    created = await shared.call(_create, shared.lake, definition, if_not_exists)
    if created["status"].endswith("exists already"):
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/topics/{created['topic']}"
    return created


def _create(lake: Lake, body: dict[str, Any], if_not_exists: bool) -> dict[str, Any]:
    definition = definition_from_dict(body)
    done = lake.execute(CreateTopic(definition, if_not_exists))
    about = lake.execute(DescribeTopic(definition.name)).info
    return {**about, "status": done.rows()[0]["status"], "notices": list(done.notices)}


@router.get("/topics", operation_id="list_topics", response_model=TopicList, responses=problems())
async def list_topics(shared: Shared) -> dict[str, Any]:
    """All topics."""
    return {"topics": await shared.call(lambda: shared.lake.execute(ShowTopics()).rows())}


@router.get("/topics/{topic}", operation_id="describe_topic", response_model=TopicDescription, responses=problems(404))
async def describe_topic(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """Everything about a topic: definition, table and log."""
    return dict(await shared.call(lambda: shared.lake.execute(DescribeTopic(topic)).info))


@router.patch("/topics/{topic}", operation_id="alter_topic", response_model=TopicAltered, responses=problems(404, 409))
async def alter_topic(shared: Shared, topic: TopicPath, body: AlterBody) -> dict[str, Any]:
    """Change a topic's columns, options, partitioning or ordering, all of it in one commit."""

    def alter() -> dict[str, Any]:
        return dict(shared.lake.execute(alter_of(topic, body.changes, dry_run=body.dry_run)).info)

    return await shared.call_slow(alter)


@router.get(
    "/topics/{topic}/schemas", operation_id="list_topic_schemas", response_model=TopicSchemas, responses=problems(404)
)
async def list_schemas(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """The columns that a topic has had, from the first to those it has now."""
    return {"schemas": await shared.call(lambda: shared.lake.execute(ShowSchemas(topic)).rows())}


@router.delete("/topics/{topic}", operation_id="drop_topic", response_model=Status, responses=problems(404))
async def drop_topic(
    shared: Shared,
    topic: TopicPath,
    if_exists: Annotated[bool, Query(description="Do not fail if there is none.")] = False,
) -> dict[str, Any]:
    """Drop a topic with all its records and its dead letters."""
    return (await shared.call(lambda: shared.lake.execute(DropTopic(topic, if_exists)).rows()))[0]


@router.post(
    "/topics/{topic}/flush",
    operation_id="flush_topic",
    response_model=Flushed,
    responses={200: {"content": {NDJSON: text()}}, **problems(404, 409)},
)
async def flush_topic(shared: Shared, request: Request, topic: TopicPath) -> Any:
    """Commit what waits in the log of a topic to its table now; starts Spark if there is anything.

    With Accept application/x-ndjson, a line tells of each commit as soon as it is done; if it fails later on, the last
    line is {"problem": ...}.
    """
    return await _flush(shared, request, topic)


@router.post(
    "/flush",
    operation_id="flush",
    response_model=Flushed,
    responses={200: {"content": {NDJSON: text()}}, **problems(409)},
)
async def flush(shared: Shared, request: Request) -> Any:
    """Commit what waits in the log of every topic; answers as the flush of one topic does."""
    return await _flush(shared, request, None)


async def _flush(shared: State, request: Request, topic: str | None) -> Any:
    if NDJSON not in request.headers.get("accept", ""):
        return {"commits": [_commit(done) for done in await shared.call_slow(shared.lake.flush, topic)]}

    def work(tell: Callable[[Ingested], None]) -> Awaitable[object]:
        return shared.call_slow(shared.lake.flush, topic, tell)

    commits = told_while(work)
    first = await anext(commits, None)  # an error before it is an answer of its own
    return StreamingResponse(_lines(first, commits), media_type=NDJSON)


async def _lines(first: Ingested | None, others: AsyncIterator[Ingested]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield _line(_commit(first))
        async for done in others:
            yield _line(_commit(done))
    except Exception as failed:
        told = failed if isinstance(failed, HeadwaterError) else unexpected_error(failed, "flush")
        yield _line({"problem": problem(told)})


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, default=str).encode() + b"\n"


def _commit(done: Ingested) -> dict[str, Any]:
    return {
        "topic": done.topic,
        "offsets": [done.offsets.start, done.offsets.end],
        "snapshot": id_text(done.snapshot_id),
        "files": done.files,
        "bytes": done.bytes,
        "seconds": done.seconds,
        "reason": done.reason,
    }
