"""/api/v1/topics/{topic}/delete and /update: changes of rows that are stored already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter

from headwater.api.described import problems
from headwater.api.models import DeleteBody, RowsChanged, UpdateBody
from headwater.api.state import Shared, State
from headwater.api.topic_routes import TopicPath
from headwater.sql.row_statements import delete_of, update_of
from headwater.sql.statements import RowStatement

router = APIRouter(prefix="/api/v1", tags=["topics"])


@router.post(
    "/topics/{topic}/delete", operation_id="delete_rows", response_model=RowsChanged, responses=problems(404, 409)
)
async def delete_rows(shared: Shared, topic: TopicPath, body: DeleteBody) -> dict[str, Any]:
    """Delete the rows for which a condition is true; answers when they are gone. Views follow at their next refresh."""
    return await _run(shared, partial(delete_of, topic, body.where))


@router.post(
    "/topics/{topic}/update", operation_id="update_rows", response_model=RowsChanged, responses=problems(404, 409)
)
async def update_rows(shared: Shared, topic: TopicPath, body: UpdateBody) -> dict[str, Any]:
    """Set columns in the rows for which a condition is true; answers when it is done. Views follow at their next
    refresh."""
    return await _run(shared, partial(update_of, topic, body.set, body.where))


async def _run(shared: State, read: Callable[[], RowStatement]) -> dict[str, Any]:
    """Run the statement; it is read in the thread, too, since a long text takes a while."""
    return dict((await shared.call_slow(lambda: shared.lake.execute(read()).rows()))[0])
