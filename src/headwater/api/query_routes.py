"""/api/v1/query: run reading statements, page or stream their results, cancel them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from headwater.api.described import binary, problems, text
from headwater.api.models import Page, Pending, QueryBody, RunList, RunSummary
from headwater.api.problems import problem
from headwater.api.records import ARROW, NDJSON
from headwater.api.runs import Reading, Run
from headwater.api.spool import Spool
from headwater.api.state import Shared, State
from headwater.api.streams import ArrowEncoder, Encoder, NdjsonEncoder, Outbound, Streamed, pieces
from headwater.config import Settings
from headwater.errors import NotAcceptable, QueryNotFound, StatementNotAllowed
from headwater.sql.parse import parse
from headwater.sql.statements import (
    AlterStream,
    AlterView,
    CompactView,
    CreateStream,
    CreateTopic,
    CreateView,
    DescribeStream,
    DescribeTopic,
    DescribeView,
    DropStream,
    DropTopic,
    DropView,
    Explain,
    ExplainCreateView,
    ExplainRefresh,
    FlushTopic,
    RefreshView,
    RestartStream,
    ShowRefreshes,
    ShowStreams,
    ShowStreamStatus,
    ShowTopics,
    ShowViews,
    StartStream,
    StopStream,
    VerifyView,
)
from headwater.sql.statements import Query as QueryStatement
from headwater.storage.encode import json_rows

router = APIRouter(prefix="/api/v1", tags=["queries"])

QUERY_ID = "Headwater-Query"
MAX_LIMIT = 10_000
MAX_WAIT = 30.0
CANCEL_SECONDS = 2.0

ELSEWHERE: dict[type, str] = {
    CreateTopic: "POST /api/v1/topics",
    DropTopic: "DELETE /api/v1/topics/{topic}",
    ShowTopics: "GET /api/v1/topics",
    DescribeTopic: "GET /api/v1/topics/{topic}",
    FlushTopic: "POST /api/v1/flush",
    CreateView: "POST /api/v1/views",
    ExplainCreateView: "POST /api/v1/explain/view",
    DropView: "DELETE /api/v1/views/{view}",
    AlterView: "PATCH /api/v1/views/{view}",
    ShowViews: "GET /api/v1/views",
    DescribeView: "GET /api/v1/views/{view}",
    RefreshView: "POST /api/v1/views/{view}/refresh",
    VerifyView: "POST /api/v1/views/{view}/verify",
    ExplainRefresh: "GET /api/v1/views/{view}/explain",
    ShowRefreshes: "GET /api/v1/refreshes",
    CompactView: "POST /api/v1/views/{view}/compact",
    CreateStream: "POST /api/v1/streams",
    DropStream: "DELETE /api/v1/streams/{stream}",
    AlterStream: "PATCH /api/v1/streams/{stream}",
    ShowStreams: "GET /api/v1/streams",
    DescribeStream: "GET /api/v1/streams/{stream}",
    StartStream: "POST /api/v1/streams/{stream}/start",
    StopStream: "POST /api/v1/streams/{stream}/stop",
    RestartStream: "POST /api/v1/streams/{stream}/restart",
    ShowStreamStatus: "GET /api/v1/status/streams",
}
FORMS = {"application/json": "json", NDJSON: "ndjson", ARROW: "arrow"}
Form = Literal["json", "ndjson", "arrow"]
RunId = Annotated[str, Path(description="The query's id.", max_length=64)]


def reading(body: QueryBody, settings: Settings, max_rows: int | None) -> Reading:
    """The statement of a request, if it only reads; StatementNotAllowed names the route for any other.

    What the request says about limits can only lower the service's own.
    """
    statement = parse(body.sql)
    match statement:
        case QueryStatement():
            return _set(statement, body, settings, max_rows)
        case Explain(query):
            return replace(statement, query=_set(query, body, settings, max_rows))
    elsewhere = ELSEWHERE.get(type(statement))
    raise StatementNotAllowed(
        "this route only reads", hint=f"Use {elsewhere}." if elsewhere else None, endpoint=elsewhere
    )


def _set(query: QueryStatement, body: QueryBody, settings: Settings, max_rows: int | None) -> QueryStatement:
    return replace(
        query,
        engine=body.engine,
        tail=query.tail and body.tail,
        max_rows=max_rows,
        timeout=min(body.timeout or settings.query_timeout, settings.query_timeout),
    )


def negotiated(accept: str) -> Form:
    """The form of a result that the client prefers; JSON if it does not say."""
    return preferred(accept, FORMS)  # type: ignore[return-value]


def preferred(accept: str, forms: Mapping[str, str]) -> str:
    """The one of the forms, by media type, that the client prefers; the first if it does not say."""
    default, wanted = next(iter(forms)), sorted(_preferences(accept), key=lambda each: -each[1])
    for name, _ in wanted:
        if name in ("*/*", f"{default.partition('/')[0]}/*"):
            return forms[default]
        if form := forms.get(name):
            return form
    if not wanted:
        return forms[default]
    raise NotAcceptable(f'accept "{accept[:64]}" cannot be met', detail=f"Results come as {', '.join(forms)}.")


def _preferences(accept: str) -> list[tuple[str, float]]:
    found = []
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        with suppress(ValueError):
            if name and float(quality) > 0:
                found.append((name, float(quality)))
    return found


@router.post(
    "/query",
    operation_id="run_query",
    response_model=Page,
    responses={
        200: {
            "description": "The first page, or the whole result as a stream.",
            "content": {NDJSON: text(), ARROW: binary()},
        },
        202: {"model": Pending, "description": "It still runs; ask again at Location."},
        **problems(404, 406, 408, 409, 413, 429, 503),
    },
)
async def run_query(shared: Shared, request: Request, body: QueryBody) -> Response:
    """Run a reading statement.

    As JSON, the first page comes at once if the query is quick; otherwise an id to ask with. With Accept
    application/x-ndjson or application/vnd.apache.arrow.stream the whole result streams, and a client that goes away
    stops the query.
    """
    return await answered(shared, request, body)


async def answered(shared: State, request: Request, body: QueryBody) -> Response:
    """The query's answer in the form that the request prefers."""
    form, settings = negotiated(request.headers.get("accept", "")), shared.lake.settings
    if form == "json":
        max_rows = min(body.max_rows or settings.query_max_rows, settings.query_max_rows)
        statement = await shared.call(reading, body, settings, max_rows)
        return await _paged(shared, request, body, statement, max_rows)
    statement = await shared.call(reading, body, settings, body.max_rows)
    encoder: Encoder = NdjsonEncoder() if form == "ndjson" else ArrowEncoder()
    return await _streamed(shared, request, body, statement, encoder, NDJSON if form == "ndjson" else ARROW)


async def _paged(shared: State, request: Request, body: QueryBody, statement: Reading, max_rows: int) -> Response:
    spool = await shared.call(shared.new_spool, max_rows)
    run = await shared.call(shared.runs.submit, statement, body.sql, spool, "finished", body.id)
    wait = shared.lake.settings.query_sync_seconds if body.wait is None else body.wait
    async with _stopped_with(request, shared, run):
        await _ended(run, wait)
    return await shared.call(_progress, run, 0, body.limit)


async def _streamed(
    shared: State, request: Request, body: QueryBody, statement: Reading, encoder: Encoder, media_type: str
) -> Response:
    outbound = Outbound()
    sink = Streamed(outbound, encoder, body.max_rows)
    run = await shared.call(shared.runs.submit, statement, body.sql, sink, "streamed", body.id)
    try:
        async with _stopped_with(request, shared, run):
            first = await outbound.take()
    except BaseException:
        await _abandon(shared, run)
        raise

    async def content() -> AsyncIterator[bytes]:
        sent = False
        try:
            async for piece in pieces(first, outbound):
                yield piece
            sent = True
        finally:
            if not sent:
                await _abandon(shared, run)

    return StreamingResponse(content(), headers={QUERY_ID: run.id}, media_type=media_type)


async def _abandon(shared: State, run: Run) -> None:
    """Stop a query that nobody reads any more."""
    if run.ended is None:
        await asyncio.shield(shared.call(run.cancel))


@asynccontextmanager
async def _stopped_with(request: Request, shared: State, run: Run) -> AsyncIterator[None]:
    """While it lasts, a client that goes away stops its query: nobody else knows of it."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        await shared.call(run.cancel)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


async def _ended(run: Run, seconds: float) -> None:
    """Wait until the query has ended, but not longer than `seconds`."""
    await asyncio.wait([asyncio.wrap_future(run.future)], timeout=seconds)


def _progress(run: Run, offset: int, limit: int) -> Response:
    """A page of an ended query, its error, or word that it still runs."""
    if run.ended is None:
        location = f"/api/v1/query/{run.id}"
        pending = {"id": run.id, "status": run.status, "location": location}
        return _json(pending, 202, {"Location": location})
    if run.error is not None:
        raise run.error.with_traceback(None)  # or each read would add its frames to those of the ones before
    if not isinstance(run.sink, Spool):
        raise QueryNotFound(f'query "{run.id}" has no result to read', detail="It was streamed to its client.")
    return _json(_page(run, run.sink, offset, limit))


def _page(run: Run, spool: Spool, offset: int, limit: int) -> dict[str, Any]:
    rows = [row for batch in spool.page(offset, limit) for row in json_rows(batch)]
    end = offset + len(rows)
    return {
        "id": run.id,
        "status": "finished",
        "columns": [{"name": field.name, "type": _type(field.type)} for field in spool.schema],
        "rows": rows,
        "row_count": spool.rows,
        "offset": offset,
        "plan": run.info.get("plan"),
        "notices": list(run.notices),
        "next": f"/api/v1/query/{run.id}?offset={end}&limit={limit}" if end < spool.rows else None,
    }


def _type(of: Any) -> str:
    return str(getattr(of, "extension_name", of)).removeprefix("arrow.")


def _json(value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    return Response(content.encode("utf-8", "backslashreplace"), status, headers, "application/json")


@router.get(
    "/query/{id}",
    operation_id="read_query",
    response_model=Page,
    responses={202: {"model": Pending, "description": "It still runs."}, **problems(404, 408, 409, 413, 503)},
)
async def read_query(
    shared: Shared,
    id: RunId,
    offset: Annotated[int, Query(ge=0, le=2**53, description="The first row.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Rows at the most.")] = 1000,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for the end.")] = 0,
) -> Response:
    """A page of a query's result; the query's own error if it failed."""
    run = await shared.call(shared.runs.get, id)
    if wait and run.ended is None:
        await _ended(run, wait)
    return await shared.call(_progress, run, offset, limit)


@router.delete("/query/{id}", operation_id="cancel_query", response_model=RunSummary, responses=problems(404))
async def cancel_query(shared: Shared, id: RunId) -> dict[str, Any]:
    """Stop a query that runs or waits; forget the result of one that has ended."""
    run = await shared.call(shared.runs.forget, id)
    await _ended(run, CANCEL_SECONDS)
    return _summary(run)


@router.get("/queries", operation_id="list_queries", response_model=RunList, responses=problems())
async def list_queries(shared: Shared) -> dict[str, Any]:
    """Queries that run, wait, or ended a short while ago; the newest first."""
    return {"queries": [_summary(run) for run in await shared.call(shared.runs.all)]}


def _summary(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "status": run.status,
        "sql": run.sql,
        "submitted_at": run.submitted_at.isoformat().replace("+00:00", "Z"),
        "seconds": round(run.seconds, 3),
        "row_count": run.row_count,
        "error": problem(run.error) if run.error is not None else None,
    }
