"""/api/v1/streams: create, list, describe, alter, drop; start, stop, restart and how each of them runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from headwater.api.described import problems, schema_of
from headwater.api.models import NAME, Status
from headwater.api.state import Shared, State
from headwater.api.stream_models import (
    ORDERS,
    StreamBody,
    StreamChanged,
    StreamDescription,
    StreamList,
    StreamOptionsBody,
    StreamState,
    StreamStates,
)
from headwater.engine import Lake
from headwater.sql.statements import (
    AlterStream,
    CreateStream,
    DescribeStream,
    DropStream,
    RestartStream,
    ShowStreams,
    ShowStreamStatus,
    StartStream,
    StopStream,
    StreamStatement,
)
from headwater.sql.stream_json import stream_from_dict
from headwater.types import MAX_NAME, checked_name

router = APIRouter(prefix="/api/v1", tags=["streams"])

# Described, not enforced here: the engine's own error about a name says more.
_NAME = {"pattern": NAME, "maxLength": MAX_NAME}
StreamPath = Annotated[str, Path(description="The stream's name.", examples=["orders"], json_schema_extra=_NAME)]
JobPath = Annotated[
    str,
    Path(
        description="The name of a continuous view, or of a stream with a connector.",
        examples=["hourly_sales"],
        json_schema_extra=_NAME,
    ),
]


@router.post(
    "/streams",
    operation_id="create_stream",
    status_code=201,
    response_model=StreamChanged,
    responses={
        200: {"model": StreamChanged, "description": "It existed already, or was replaced."},
        **problems(404, 409),
    },
)
async def create_stream(
    shared: Shared,
    response: Response,
    definition: Annotated[dict[str, Any], Body(json_schema_extra=schema_of(StreamBody), examples=[ORDERS])],
    if_not_exists: Annotated[bool, Query(description="Do not fail if there is one of this name.")] = False,
    or_replace: Annotated[bool, Query(description="Let it take the place of one of this name.")] = False,
) -> dict[str, Any]:
    """Create a stream, and its topic if there is none."""
    statement = CreateStream(await shared.call(stream_from_dict, definition), if_not_exists, or_replace)
    made = await shared.call(_changed, shared.lake, statement, statement.definition.name)
    if not made["status"].endswith("created"):
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/streams/{statement.definition.name}"
    return made


def _changed(lake: Lake, statement: CreateStream | AlterStream, name: str) -> dict[str, Any]:
    done = lake.execute(statement)
    about = lake.execute(DescribeStream(name)).info
    return {"status": done.rows()[0]["status"], "notices": list(done.notices), "stream": dict(about)}


@router.get("/streams", operation_id="list_streams", response_model=StreamList, responses=problems())
async def list_streams(shared: Shared) -> dict[str, Any]:
    """All streams."""
    return await _info(shared, ShowStreams())


@router.get(
    "/streams/{stream}", operation_id="describe_stream", response_model=StreamDescription, responses=problems(404)
)
async def describe_stream(shared: Shared, stream: StreamPath) -> dict[str, Any]:
    """A stream's columns, event time and options."""
    return await _info(shared, DescribeStream(stream))


@router.patch(
    "/streams/{stream}", operation_id="alter_stream", response_model=StreamChanged, responses=problems(404, 409)
)
async def alter_stream(shared: Shared, stream: StreamPath, body: StreamOptionsBody) -> dict[str, Any]:
    """Change options of a stream; what runs by the old ones starts again."""
    return await shared.call_slow(_changed, shared.lake, AlterStream(stream, body.options), stream)


@router.delete("/streams/{stream}", operation_id="drop_stream", response_model=Status, responses=problems(404, 409))
async def drop_stream(
    shared: Shared,
    stream: StreamPath,
    if_exists: Annotated[bool, Query(description="Do not fail if there is none.")] = False,
) -> dict[str, Any]:
    """Forget a stream; its topic and what that holds stay."""
    statement = DropStream(checked_name(stream, "stream"), if_exists)
    return (await shared.call_slow(lambda: shared.lake.execute(statement).rows()))[0]


# Not below /streams, where it would take the name of a stream.
@router.get("/status/streams", operation_id="stream_states", response_model=StreamStates, responses=problems())
async def stream_states(shared: Shared) -> dict[str, Any]:
    """How all continuous views and connectors run."""
    return await _info(shared, ShowStreamStatus())


@router.get(
    "/streams/{stream}/status", operation_id="stream_state", response_model=StreamState, responses=problems(404)
)
async def stream_state(shared: Shared, stream: JobPath) -> dict[str, Any]:
    """How a continuous view or a connector runs: rates, watermark, lag, state, late rows, last error."""
    return dict((await _info(shared, ShowStreamStatus(stream)))["streams"][0])


_RUN: dict[str, Any] = {"response_model": StreamState, "responses": problems(404, 409)}


@router.post("/streams/{stream}/start", operation_id="start_stream", **_RUN)
async def start_stream(shared: Shared, stream: JobPath) -> dict[str, Any]:
    """Run a continuous view or a connector from now on."""
    return await _state(shared, StartStream(stream))


@router.post("/streams/{stream}/stop", operation_id="stop_stream", **_RUN)
async def stop_stream(shared: Shared, stream: JobPath) -> dict[str, Any]:
    """Finish what is under way, and do not run it again until it is started; answers when it has stopped."""
    return await _state(shared, StopStream(stream))


@router.post("/streams/{stream}/restart", operation_id="restart_stream", **_RUN)
async def restart_stream(shared: Shared, stream: JobPath) -> dict[str, Any]:
    """Stop and start; one that failed and waits does not wait any longer."""
    return await _state(shared, RestartStream(stream))


async def _state(shared: State, statement: StartStream | StopStream | RestartStream) -> dict[str, Any]:
    return dict(await shared.call_slow(lambda: shared.lake.execute(statement).info["streams"][0]))


async def _info(shared: State, statement: StreamStatement) -> dict[str, Any]:
    return dict(await shared.call(lambda: shared.lake.execute(statement).info))
