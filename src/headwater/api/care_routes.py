"""/api/v1/maintain, /api/v1/maintenance and what belongs to one topic: the care of tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from headwater.api.care_models import CareAnswer, CompactBody, MaintainAllBody, MaintainBody, MaintenanceList
from headwater.api.described import problems, text
from headwater.api.records import NDJSON
from headwater.api.state import Shared, State
from headwater.api.streams import told_lines, told_while
from headwater.api.topic_routes import TopicPath
from headwater.serving.result import Result
from headwater.sql.care_statements import MAX_STEPS, checked_steps
from headwater.sql.statements import SHOWN_STEPS, Maintain, Optimize, ShowMaintenance

router = APIRouter(prefix="/api/v1", tags=["care"])

_ANSWER: dict[str, Any] = {
    "response_model": CareAnswer,
    "responses": {200: {"content": {NDJSON: text()}}, **problems(404, 409)},
}


@router.post("/maintain", operation_id="maintain", **_ANSWER)
async def maintain(shared: Shared, request: Request, body: MaintainAllBody | None = None) -> Any:
    """Take care of a topic, a view or all tables; answers when that is done. A step that fails is told in its line.

    With Accept application/x-ndjson, lines {"step": ...} tell of each step when it begins and while it goes on; the
    last line is {"answer": ...}. The work goes on when the client leaves.
    """
    asked = body or MaintainAllBody.model_validate({})
    return await _run(shared, request, Maintain(asked.name, checked_steps(asked.only), asked.dry_run))


@router.post("/topics/{topic}/maintain", operation_id="maintain_topic", **_ANSWER)
async def maintain_topic(shared: Shared, request: Request, topic: TopicPath, body: MaintainBody | None = None) -> Any:
    """Take care of one topic, as POST /api/v1/maintain does."""
    asked = body or MaintainBody.model_validate({})
    await shared.call(shared.lake.topics.load, topic)
    return await _run(shared, request, Maintain(topic, checked_steps(asked.only), asked.dry_run))


@router.post("/topics/{topic}/parquet/compact", operation_id="compact_topic", **_ANSWER)
async def compact_topic(shared: Shared, request: Request, topic: TopicPath, body: CompactBody | None = None) -> Any:
    """Pack and sort a topic's files, as OPTIMIZE does; answers as POST /api/v1/maintain does."""
    asked = body or CompactBody.model_validate({})
    return await _run(shared, request, Optimize(topic, asked.full, asked.dry_run))


@router.get("/maintenance", operation_id="list_maintenance", response_model=MaintenanceList, responses=problems(404))
async def list_maintenance(
    shared: Shared,
    name: Annotated[str | None, Query(description="A topic or a view; all tables unless it is said.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS, description="Steps at the most.")] = SHOWN_STEPS,
) -> dict[str, Any]:
    """The latest steps of maintenance, the newest first, and those that run now with how far they are."""
    return dict(await shared.call(lambda: shared.lake.execute(ShowMaintenance(name, limit)).info))


async def _run(shared: State, request: Request, statement: Maintain | Optimize) -> Any:
    if NDJSON not in request.headers.get("accept", ""):
        return _answer(await shared.call_slow(shared.lake.take_care, statement))
    lines = _told(shared, statement)
    first = await anext(lines)  # an error before it is an answer of its own
    return StreamingResponse(told_lines(first, lines, "maintenance"), media_type=NDJSON)


async def _told(shared: State, statement: Maintain | Optimize) -> AsyncIterator[dict[str, Any]]:
    done: list[Result] = []

    def work(tell: Callable[[dict[str, Any]], None]) -> Awaitable[object]:
        return shared.call_slow(lambda: done.append(shared.lake.take_care(statement, tell)))

    async for step in told_while(work):
        yield {"step": step}
    yield {"answer": _answer(done[0])}


def _answer(result: Result) -> dict[str, Any]:
    return {"steps": result.info["steps"], "notices": list(result.notices)}
