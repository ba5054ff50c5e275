"""/api/v1/topics/{topic}/tail and /api/v1/views/{view}/tail: rows as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from headwater.api.described import binary, problems, text
from headwater.api.query_routes import preferred
from headwater.api.records import ARROW, NDJSON
from headwater.api.state import Shared, State
from headwater.api.tail_forms import EVENTS, FORMS
from headwater.api.topic_routes import TopicPath
from headwater.api.view_routes import ViewPath
from headwater.serving.tail_request import TailRequest, tail_request

router = APIRouter(prefix="/api/v1")

Where = Annotated[str | None, Query(max_length=4000, description="A condition in SQL.", examples=["amount > 10"])]
Columns = Annotated[str | None, Query(max_length=8000, description="Names of columns, separated by commas.")]
Limit = Annotated[int | None, Query(ge=1, le=2**53, description="End after so many rows.")]
Follow = Annotated[bool, Query(description="Wait for what comes; otherwise end when everything was sent.")]
After = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=64,
        description="The id of the last event that was received: the tail goes on behind it, and `from` is not read.",
    ),
]
_EVENT = {
    "type": "object",
    "description": "One event.",
    "properties": {
        "id": {"type": "string", "description": "What Last-Event-ID takes."},
        "event": {"type": "string", "enum": ["row", "problem", "end"]},
        "data": {"type": "string", "description": "The row, or the problem, as JSON."},
        "retry": {"type": "integer"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Rows for as long as the client stays.",
        "content": {
            EVENTS: {"schema": _EVENT, "example": 'id: 17\nevent: row\ndata: {"order_id":1,"_offset":17}\n\n'},
            NDJSON: text(),
            ARROW: binary(),
        },
    },
    **problems(404, 406, 408, 429),
}


@router.get(
    "/topics/{topic}/tail",
    operation_id="tail_topic",
    tags=["records"],
    responses=_RESPONSES,
    response_class=Response,
)
async def tail_topic(
    shared: Shared,
    request: Request,
    topic: TopicPath,
    start: Annotated[
        str,
        Query(
            alias="from",
            max_length=64,
            description="Where it begins: earliest, latest, an offset, a time, or a duration ago.",
            examples=["earliest", "1200", "10 min"],
        ),
    ] = "latest",
    where: Where = None,
    columns: Columns = None,
    limit: Limit = None,
    follow: Follow = True,
    after: After = None,
) -> Response:
    """A topic's records as they are acknowledged, in the order of offsets, each once.

    Server-sent events: `row` events with the offset as their id, `problem` if the tail fails, `end` if it ends by
    itself. Comments come when nothing else does. As application/x-ndjson a line is a record; as
    application/vnd.apache.arrow.stream, streams follow each other, each with the id in its schema's metadata.
    """
    asked = tail_request(topic, start, after=after, where=where, columns=_names(columns))
    return await _tailed(shared, request, asked, shared.lake.topics.load, follow, limit)


@router.get(
    "/views/{view}/tail", operation_id="tail_view", tags=["views"], responses=_RESPONSES, response_class=Response
)
async def tail_view(
    shared: Shared,
    request: Request,
    view: ViewPath,
    start: Annotated[
        str,
        Query(
            alias="from",
            max_length=64,
            description="Where it begins: latest, behind a snapshot, or behind what there was at a time.",
            examples=["latest", "10 min"],
        ),
    ] = "latest",
    where: Where = None,
    columns: Columns = None,
    limit: Limit = None,
    follow: Follow = True,
    after: After = None,
) -> Response:
    """What the snapshots of a materialized view change, one after the other, in the forms of a topic's tail.

    `_op` says what happened to a row: `+` new, `-` gone, `~` a group as it is now.
    """
    asked = tail_request(view, start, after=after, where=where, columns=_names(columns))
    return await _tailed(shared, request, asked, shared.lake.views.load, follow, limit)


async def _tailed(
    shared: State, request: Request, asked: TailRequest, load: Callable[[str], Any], follow: bool, limit: int | None
) -> Response:
    encoder = FORMS[preferred(request.headers.get("accept", ""), {name: name for name in FORMS})]()
    await shared.call(load, asked.name)
    return await shared.tails.open(asked, encoder, follow=follow, limit=limit)


def _names(columns: str | None) -> list[str]:
    return columns.split(",") if columns else []
