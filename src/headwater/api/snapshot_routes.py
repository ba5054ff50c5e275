"""/api/v1/topics/{topic}/snapshots, tags, branches, changes and diff: a topic's past, and the way back to it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from headwater.api.described import binary, problems, text
from headwater.api.models import Page, Pending, QueryBody, Status
from headwater.api.query_routes import MAX_LIMIT, answered
from headwater.api.records import ARROW, NDJSON
from headwater.api.snapshot_models import (
    AT_EXAMPLES,
    DiffAnswer,
    MomentBody,
    PickAnswer,
    PickBody,
    RefBody,
    RefList,
    RollbackAnswer,
    RollbackBody,
    SnapshotList,
    ViewSnapshotList,
)
from headwater.api.state import Shared, State
from headwater.api.topic_routes import TopicPath
from headwater.api.view_routes import ViewPath
from headwater.errors import InvalidInput
from headwater.sql.moments import AsOf, moment_of, parse_moment
from headwater.sql.snapshot_statements import MAX_SNAPSHOTS, changes_query, checked_ref, checked_retain
from headwater.sql.statements import (
    SHOWN_SNAPSHOTS,
    CherryPick,
    CreateRef,
    DiffTopic,
    DropRef,
    RefKind,
    RollbackTopic,
    ShowRefs,
    ShowSnapshots,
    Statement,
)

router = APIRouter(prefix="/api/v1", tags=["snapshots"])

Limit = Annotated[int, Query(ge=1, le=MAX_SNAPSHOTS, description="Snapshots at the most.")]
RefPath = Annotated[str, Path(description="The name of the tag or branch.", examples=["before_import"])]
Replace = Annotated[bool, Query(description="Let it stand for another snapshot if there is one of this name.")]
IfNotExists = Annotated[bool, Query(description="Leave one of this name as it is.")]
IfExists = Annotated[bool, Query(description="Do not fail if there is none.")]
_AT = "A snapshot's id, a tag or branch, or a time."
Start = Annotated[str, Query(alias="from", min_length=1, max_length=256, description=_AT, examples=AT_EXAMPLES)]
End = Annotated[str, Query(alias="to", min_length=1, max_length=256, description=_AT, examples=AT_EXAMPLES)]


@router.get(
    "/topics/{topic}/snapshots", operation_id="list_snapshots", response_model=SnapshotList, responses=problems(404)
)
async def list_snapshots(shared: Shared, topic: TopicPath, limit: Limit = SHOWN_SNAPSHOTS) -> dict[str, Any]:
    """The latest snapshots of a topic, the newest first, and the offsets that rollbacks took away."""
    return await _info(shared, ShowSnapshots(topic, limit, "topic"))


@router.get(
    "/views/{view}/snapshots",
    operation_id="list_view_snapshots",
    response_model=ViewSnapshotList,
    responses=problems(404),
)
async def list_view_snapshots(shared: Shared, view: ViewPath, limit: Limit = SHOWN_SNAPSHOTS) -> dict[str, Any]:
    """The latest snapshots of a materialized view's table, the newest first."""
    return await _info(shared, ShowSnapshots(view, limit, "view"))


@router.post(
    "/topics/{topic}/snapshots/rollback",
    operation_id="rollback_topic",
    response_model=RollbackAnswer,
    responses=problems(404, 409),
)
async def rollback_topic(shared: Shared, topic: TopicPath, body: RollbackBody) -> dict[str, Any]:
    """Make a topic what it was at one of its snapshots, or tell what that would do."""
    to = _moment(body)
    if not to:
        raise InvalidInput("rollback names no snapshot", hint="Give one of version, timestamp and tag.")
    statement = RollbackTopic(topic, to, body.base, body.dry_run)
    return dict((await shared.call_slow(lambda: shared.lake.execute(statement).info))["rollback"])


@router.post(
    "/topics/{topic}/snapshots/cherry-pick",
    operation_id="cherry_pick_snapshot",
    response_model=PickAnswer,
    responses=problems(404, 409),
)
async def cherry_pick_snapshot(shared: Shared, topic: TopicPath, body: PickBody) -> dict[str, Any]:
    """Apply what a snapshot did that is not part of the topic any more, or tell what that would do."""
    statement = CherryPick(topic, body.version, body.dry_run)
    return dict((await shared.call_slow(lambda: shared.lake.execute(statement).info))["cherry_pick"])


@router.get("/topics/{topic}/refs", operation_id="list_refs", response_model=RefList, responses=problems(404))
async def list_refs(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """The tags and branches of a topic."""
    return await _info(shared, ShowRefs(topic))


@router.get("/topics/{topic}/tags", operation_id="list_tags", response_model=RefList, responses=problems(404))
async def list_tags(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """The tags of a topic."""
    return await _info(shared, ShowRefs(topic, "tag"))


@router.get("/topics/{topic}/branches", operation_id="list_branches", response_model=RefList, responses=problems(404))
async def list_branches(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """The branches of a topic."""
    return await _info(shared, ShowRefs(topic, "branch"))


@router.put(
    "/topics/{topic}/tags/{name}", operation_id="create_tag", response_model=Status, responses=problems(404, 409)
)
async def create_tag(
    shared: Shared,
    topic: TopicPath,
    name: RefPath,
    body: RefBody | None = None,
    replace: Replace = False,
    if_not_exists: IfNotExists = False,
) -> dict[str, Any]:
    """Name a snapshot of a topic, which then does not expire."""
    return await _create(shared, "tag", topic, name, body, replace, if_not_exists)


@router.delete(
    "/topics/{topic}/tags/{name}", operation_id="drop_tag", response_model=Status, responses=problems(404, 409)
)
async def drop_tag(shared: Shared, topic: TopicPath, name: RefPath, if_exists: IfExists = False) -> dict[str, Any]:
    """Remove a tag."""
    return await _status(shared, DropRef("tag", checked_ref("tag", name), topic, if_exists))


@router.put(
    "/topics/{topic}/branches/{name}", operation_id="create_branch", response_model=Status, responses=problems(404, 409)
)
async def create_branch(
    shared: Shared,
    topic: TopicPath,
    name: RefPath,
    body: RefBody | None = None,
    replace: Replace = False,
    if_not_exists: IfNotExists = False,
) -> dict[str, Any]:
    """Begin a branch at a snapshot of a topic."""
    return await _create(shared, "branch", topic, name, body, replace, if_not_exists)


@router.delete(
    "/topics/{topic}/branches/{name}", operation_id="drop_branch", response_model=Status, responses=problems(404, 409)
)
async def drop_branch(shared: Shared, topic: TopicPath, name: RefPath, if_exists: IfExists = False) -> dict[str, Any]:
    """Remove a branch."""
    return await _status(shared, DropRef("branch", checked_ref("branch", name), topic, if_exists))


@router.get(
    "/topics/{topic}/changes",
    operation_id="query_changes",
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
async def query_changes(
    shared: Shared,
    request: Request,
    topic: TopicPath,
    start: Start,
    end: End,
    where: Annotated[
        str | None, Query(max_length=4000, description="A condition in SQL.", examples=["_change = 'deleted'"])
    ] = None,
    limit: Annotated[int | None, Query(ge=1, le=2**53, description="Rows at the most; all unless it is said.")] = None,
) -> Response:
    """The rows of a topic that came, went or changed between two states; pages in JSON, or a stream."""
    query = changes_query(topic, moment_of(start), moment_of(end), where, limit)
    page = min(limit, MAX_LIMIT) if limit is not None else 1000
    return await answered(shared, request, QueryBody.model_validate({"sql": query.text, "limit": page}))


@router.get("/topics/{topic}/diff", operation_id="diff_topic", response_model=DiffAnswer, responses=problems(404))
async def diff_topic(shared: Shared, topic: TopicPath, start: Start, end: End) -> dict[str, Any]:
    """How two states of a topic differ, in numbers."""
    statement = DiffTopic(topic, moment_of(start), moment_of(end))
    return dict((await shared.call_slow(lambda: shared.lake.execute(statement).info))["diff"])


async def _create(
    shared: State, kind: RefKind, topic: str, name: str, body: RefBody | None, replace: bool, if_not_exists: bool
) -> dict[str, Any]:
    if replace and if_not_exists:
        raise InvalidInput("replace and if_not_exists contradict each other")
    asked = body or RefBody.model_validate({})
    retain = checked_retain(asked.retain)
    made = CreateRef(kind, checked_ref(kind, name), topic, _moment(asked), retain, replace, if_not_exists)
    return await _status(shared, made)


def _moment(body: MomentBody) -> AsOf:
    if sum(each is not None for each in (body.version, body.timestamp, body.tag)) > 1:
        raise InvalidInput("more than one snapshot is named", hint="Give one of version, timestamp and tag.")
    if body.timestamp is not None:
        parse_moment(body.timestamp)
    return AsOf(body.version, body.timestamp, body.tag)


async def _status(shared: State, statement: Statement) -> dict[str, Any]:
    return dict((await shared.call(lambda: shared.lake.execute(statement).rows()))[0])


async def _info(shared: State, statement: Statement) -> dict[str, Any]:
    return dict(await shared.call(lambda: shared.lake.execute(statement).info))
