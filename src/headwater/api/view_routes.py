"""/api/v1/views: create, list, describe, alter, drop, refresh, query, explain, verify, compact, history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from headwater.api.described import binary, problems, text
from headwater.api.models import NAME, Page, Pending, QueryBody, Status
from headwater.api.query_routes import MAX_LIMIT, answered
from headwater.api.records import ARROW, NDJSON
from headwater.api.state import Shared, State
from headwater.api.streams import told_lines, told_while
from headwater.api.view_models import (
    SALES,
    CompactedView,
    OptionsBody,
    Plan,
    RefreshAnswer,
    RefreshBody,
    RefreshList,
    VerifiedView,
    VerifyBody,
    ViewBody,
    ViewChanged,
    ViewDescription,
    ViewList,
)
from headwater.engine import Lake
from headwater.serving.result import Result
from headwater.sql.statements import (
    SHOWN_REFRESHES,
    AlterView,
    CompactView,
    CreateView,
    DescribeView,
    DropView,
    ExplainCreateView,
    ExplainRefresh,
    RefreshView,
    ShowRefreshes,
    ShowViews,
    Statement,
    Verify,
    VerifyView,
)
from headwater.sql.view_definition import view_from_dict
from headwater.sql.view_query import view_query
from headwater.types import MAX_NAME

router = APIRouter(prefix="/api/v1", tags=["views"])

# Described, not enforced here: the engine's own error about a name says more.
_NAME = {"pattern": NAME, "maxLength": MAX_NAME}
ViewPath = Annotated[str, Path(description="The view's name.", examples=["sales_by_city"], json_schema_extra=_NAME)]
Definition = Annotated[dict[str, Any], Body(json_schema_extra=ViewBody.model_json_schema(), examples=[SALES])]


@router.post(
    "/views",
    operation_id="create_view",
    status_code=201,
    response_model=ViewChanged,
    responses={
        200: {"model": ViewChanged, "description": "It existed already, or was replaced."},
        **problems(404, 409),
    },
)
async def create_view(
    shared: Shared,
    response: Response,
    definition: Definition,
    if_not_exists: Annotated[bool, Query(description="Do not fail if there is one of this name.")] = False,
    or_replace: Annotated[bool, Query(description="Let it take the place of one of this name.")] = False,
) -> dict[str, Any]:
    """Create a materialized view and compute it; answers when that is done."""
    statement = CreateView(await shared.call(view_from_dict, definition), or_replace, if_not_exists)
    made = await shared.call_slow(_changed, shared.lake, statement, statement.definition.name)
    if not made["status"].endswith("created"):
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/views/{statement.definition.name}"
    return made


def _changed(lake: Lake, statement: CreateView | AlterView, name: str) -> dict[str, Any]:
    done = lake.execute(statement)
    about = lake.execute(DescribeView(name)).info
    return {"status": done.rows()[0]["status"], "notices": list(done.notices), "view": dict(about)}


# Not below /views, where it would take the name of a view.
@router.post("/explain/view", operation_id="explain_view", response_model=Plan, responses=problems(404))
async def explain_view(shared: Shared, definition: Definition) -> dict[str, Any]:
    """How a materialized view would be kept, without making it."""
    return await _plan(shared, ExplainCreateView(await shared.call(view_from_dict, definition)))


@router.get("/views", operation_id="list_views", response_model=ViewList, responses=problems())
async def list_views(shared: Shared) -> dict[str, Any]:
    """All materialized views, with how far each is behind."""
    return await _info(shared, ShowViews())


@router.get("/views/{view}", operation_id="describe_view", response_model=ViewDescription, responses=problems(404))
async def describe_view(shared: Shared, view: ViewPath) -> dict[str, Any]:
    """Everything about a materialized view: definition, table, sources and lag."""
    return await _info(shared, DescribeView(view))


@router.patch("/views/{view}", operation_id="alter_view", response_model=ViewChanged, responses=problems(404))
async def alter_view(shared: Shared, view: ViewPath, body: OptionsBody) -> dict[str, Any]:
    """Change options of a materialized view."""
    return await shared.call(_changed, shared.lake, AlterView(view, body.options), view)


@router.delete("/views/{view}", operation_id="drop_view", response_model=Status, responses=problems(404, 409))
async def drop_view(
    shared: Shared,
    view: ViewPath,
    if_exists: Annotated[bool, Query(description="Do not fail if there is none.")] = False,
) -> dict[str, Any]:
    """Drop a materialized view with its files."""
    return (await shared.call(lambda: shared.lake.execute(DropView(view, if_exists)).rows()))[0]


@router.post(
    "/views/{view}/refresh",
    operation_id="refresh_view",
    response_model=RefreshAnswer,
    responses={200: {"content": {NDJSON: text()}}, **problems(404, 409)},
)
async def refresh_view(shared: Shared, request: Request, view: ViewPath, body: RefreshBody | None = None) -> Any:
    """Bring a materialized view, and those that it reads, up to date; answers when that is done.

    With Accept application/x-ndjson, a line {"planned": ...} tells of each view when its refresh begins; the last line
    is {"answer": ...}, or {"problem": ...} if it fails after the first one. The work goes on when the client leaves.
    """
    asked = body or RefreshBody.model_validate({})
    verify = Verify(asked.sample) if asked.verify or asked.sample is not None else None
    statement = RefreshView(view, asked.full, verify)
    if NDJSON not in request.headers.get("accept", ""):
        return _answer(await shared.call_slow(shared.lake.refresh_view, statement))
    lines = _refreshing(shared, statement)
    first = await anext(lines)  # an error before it is an answer of its own
    return StreamingResponse(told_lines(first, lines, "refresh"), media_type=NDJSON)


async def _refreshing(shared: State, statement: RefreshView) -> AsyncIterator[dict[str, Any]]:
    done: list[Result] = []

    def work(tell: Callable[[Mapping[str, Any]], None]) -> Awaitable[object]:
        return shared.call_slow(lambda: done.append(shared.lake.refresh_view(statement, tell)))

    async for plan in told_while(work):
        yield {"planned": dict(plan)}
    yield {"answer": _answer(done[0])}


def _answer(result: Result) -> dict[str, Any]:
    return {"refreshed": result.info["refreshed"], "verified": result.info["verified"]}


@router.get(
    "/views/{view}/query",
    operation_id="query_view",
    response_model=Page,
    responses={
        200: {
            "description": "The first page, or the whole result as a stream.",
            "content": {NDJSON: text(), ARROW: binary()},
        },
        202: {"model": Pending, "description": "It still runs; ask again at Location."},
        **problems(404, 406, 408, 409, 413, 429),
    },
)
async def query_view(
    shared: Shared,
    request: Request,
    view: ViewPath,
    where: Annotated[
        str | None, Query(max_length=4000, description="A condition in SQL.", examples=["total > 10"])
    ] = None,
    fresh: Annotated[bool, Query(description="Read it as if it were refreshed now.")] = False,
    limit: Annotated[int | None, Query(ge=1, le=2**53, description="Rows at the most; all unless it is said.")] = None,
) -> Response:
    """The rows of a materialized view, as a query gives them: pages in JSON, or a stream."""
    query = view_query(view, where, fresh=fresh, limit=limit)
    page = min(limit, MAX_LIMIT) if limit is not None else 1000
    return await answered(shared, request, QueryBody.model_validate({"sql": query.text, "limit": page}))


@router.get("/views/{view}/history", operation_id="list_refreshes", response_model=RefreshList, responses=problems(404))
async def list_refreshes(
    shared: Shared,
    view: ViewPath,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Refreshes at the most.")] = SHOWN_REFRESHES,
) -> dict[str, Any]:
    """The latest refreshes of a materialized view, the newest first."""
    return await _info(shared, ShowRefreshes(view, limit))


@router.get("/refreshes", operation_id="list_all_refreshes", response_model=RefreshList, responses=problems())
async def list_all_refreshes(
    shared: Shared,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Refreshes at the most.")] = SHOWN_REFRESHES,
) -> dict[str, Any]:
    """The latest refreshes of all materialized views, the newest first."""
    return await _info(shared, ShowRefreshes(None, limit))


@router.get("/views/{view}/explain", operation_id="explain_refresh", response_model=Plan, responses=problems(404, 409))
async def explain_refresh(
    shared: Shared,
    view: ViewPath,
    full: Annotated[bool, Query(description="What a recompute would do.")] = False,
) -> dict[str, Any]:
    """What the next refresh would do, and why; nothing is run."""
    return await _plan(shared, ExplainRefresh(view, full))


@router.post(
    "/views/{view}/verify", operation_id="verify_view", response_model=VerifiedView, responses=problems(404, 409)
)
async def verify_view(shared: Shared, view: ViewPath, body: VerifyBody | None = None) -> dict[str, Any]:
    """Compare a materialized view with its query over the snapshots that it stands for; answers when that is done."""
    statement = VerifyView(view, body.sample if body is not None else None)
    return dict(await shared.call_slow(lambda: shared.lake.execute(statement).info["verified"]))


@router.post(
    "/views/{view}/compact", operation_id="compact_view", response_model=CompactedView, responses=problems(404, 409)
)
async def compact_view(shared: Shared, view: ViewPath) -> dict[str, Any]:
    """Fold the states that refreshes appended; answers when that is done."""
    return dict(await shared.call_slow(lambda: shared.lake.execute(CompactView(view)).info["compacted"]))


async def _info(shared: State, statement: Statement) -> dict[str, Any]:
    return dict(await shared.call(lambda: shared.lake.execute(statement).info))


async def _plan(shared: State, statement: ExplainRefresh | ExplainCreateView) -> dict[str, Any]:
    def explained() -> dict[str, Any]:
        result = shared.lake.execute(statement)
        lines = [row["plan"] for row in result.rows()]
        return {"lines": lines, "plan": result.info["plan"], "notices": list(result.notices)}

    run = shared.call_slow if isinstance(statement, ExplainCreateView) else shared.call  # one of them needs Spark
    return await run(explained)
