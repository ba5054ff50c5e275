"""/api/v1/topics: create, list, describe, drop, flush."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from headwater.api.described import problems
from headwater.api.models import (
    NAME,
    ORDERS,
    DefinitionBody,
    Flushed,
    Status,
    TopicCreated,
    TopicDescription,
    TopicList,
)
from headwater.api.state import Shared
from headwater.engine import Lake
from headwater.sql.schema_files import definition_from_dict
from headwater.sql.statements import CreateTopic, DescribeTopic, DropTopic, ShowTopics
from headwater.topics.ingest import Ingested
from headwater.types import MAX_NAME, TopicDefinition

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
    definition: Annotated[
        dict[str, Any], Body(json_schema_extra=DefinitionBody.model_json_schema(), examples=[ORDERS])
    ],
    if_not_exists: Annotated[bool, Query(description="Do not fail if there is one of this name.")] = False,
) -> dict[str, Any]:
    """Create a topic."""
    created = await shared.call(_create, shared.lake, definition_from_dict(definition), if_not_exists)
    if created["status"].endswith("exists already"):
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/topics/{created['topic']}"
    return created


def _create(lake: Lake, definition: TopicDefinition, if_not_exists: bool) -> dict[str, Any]:
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


@router.delete("/topics/{topic}", operation_id="drop_topic", response_model=Status, responses=problems(404))
async def drop_topic(
    shared: Shared,
    topic: TopicPath,
    if_exists: Annotated[bool, Query(description="Do not fail if there is none.")] = False,
) -> dict[str, Any]:
    """Drop a topic with all its records and its dead letters."""
    return (await shared.call(lambda: shared.lake.execute(DropTopic(topic, if_exists)).rows()))[0]


@router.post("/topics/{topic}/flush", operation_id="flush_topic", response_model=Flushed, responses=problems(404, 409))
async def flush_topic(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """Commit what waits in the log of a topic to its table now; starts Spark if there is anything."""
    return _flushed(await shared.call_slow(shared.lake.flush, topic))


@router.post("/flush", operation_id="flush", response_model=Flushed, responses=problems(409))
async def flush(shared: Shared) -> dict[str, Any]:
    """Commit what waits in the log of every topic."""
    return _flushed(await shared.call_slow(shared.lake.flush))


def _flushed(done: list[Ingested]) -> dict[str, Any]:
    commits = [
        {
            "topic": each.topic,
            "offsets": [each.offsets.start, each.offsets.end],
            "snapshot": each.snapshot_id,
            "files": each.files,
            "bytes": each.bytes,
            "seconds": each.seconds,
            "reason": each.reason,
        }
        for each in done
    ]
    return {"commits": commits}
