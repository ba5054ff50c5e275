"""Time travel for Python programs: a topic's past, its tags, and the way back, over the same statements as SQL's."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from headwater.serving.result import Result
from headwater.sql.moments import AsOf, checked_version, moment_of
from headwater.sql.snapshot_statements import changes_query, checked_ref, checked_retain, past_query
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

Moment = int | str | datetime | AsOf
"""A snapshot's id, a tag or branch, or a time (as text or datetime; without zone, UTC)."""

Retain = str | float | None
"""A duration such as '30 days', or seconds; None means for ever."""


class Executes(Protocol):
    """An open lake, or one behind a service."""

    def execute(self, statement: Statement) -> Result: ...


class TimeTravelManager:
    """Reads and changes which state of a topic is meant. `lake` is an open lake or a RemoteLake."""

    def __init__(self, lake: Executes) -> None:
        self._lake = lake

    # -- reading --------------------------------------------------------------------------------------------------

    def read_at_snapshot(self, topic: str, snapshot_id: int | str) -> Result:
        """The topic's rows at a snapshot, in the columns that it had then."""
        return self._lake.execute(past_query(topic, AsOf(version=checked_version(str(snapshot_id)))))

    def read_at_timestamp(self, topic: str, timestamp: str | datetime) -> Result:
        """The topic's committed rows at a time."""
        text = timestamp.isoformat() if isinstance(timestamp, datetime) else timestamp
        return self._lake.execute(past_query(topic, AsOf(timestamp=text)))

    def read_at(self, topic: str, at: Moment) -> Result:
        """The topic's rows at a snapshot, a tag or branch, or a time."""
        return self._lake.execute(past_query(topic, moment_of(at)))

    def changes(self, topic: str, start: Moment, end: Moment, *, where: str | None = None) -> Result:
        """The rows that came, went or changed between two states, with `_change` saying which."""
        return self._lake.execute(changes_query(topic, moment_of(start), moment_of(end), where))

    def diff(self, topic: str, start: Moment, end: Moment) -> dict[str, Any]:
        """How two states differ, in numbers."""
        return dict(self._info(DiffTopic(topic, moment_of(start), moment_of(end)))["diff"])

    # -- snapshots, tags, branches --------------------------------------------------------------------------------

    def list_snapshots(self, name: str, limit: int = SHOWN_SNAPSHOTS) -> list[dict[str, Any]]:
        """The latest snapshots of a topic or a view, newest first."""
        return list(self._info(ShowSnapshots(name, limit))["snapshots"])

    def list_refs(self, topic: str) -> list[dict[str, Any]]:
        """The topic's tags and branches."""
        return list(self._info(ShowRefs(topic))["refs"])

    def tag(
        self, topic: str, name: str, at: Moment | None = None, *, retain: Retain = None, replace: bool = False
    ) -> None:
        """Name a snapshot, the newest unless said otherwise, which then does not expire."""
        self._create("tag", topic, name, at, retain, replace)

    def untag(self, topic: str, name: str, *, if_exists: bool = False) -> None:
        """Remove a tag."""
        self._lake.execute(DropRef("tag", checked_ref("tag", name), topic, if_exists))

    def branch(
        self, topic: str, name: str, at: Moment | None = None, *, retain: Retain = None, replace: bool = False
    ) -> None:
        """Begin a branch at a snapshot, the newest unless said otherwise."""
        self._create("branch", topic, name, at, retain, replace)

    def unbranch(self, topic: str, name: str, *, if_exists: bool = False) -> None:
        """Remove a branch."""
        self._lake.execute(DropRef("branch", checked_ref("branch", name), topic, if_exists))

    # -- the way back ---------------------------------------------------------------------------------------------

    def rollback(
        self, topic: str, to: Moment, *, dry_run: bool = False, base: int | str | None = None
    ) -> dict[str, Any]:
        """Make the topic what it was; what that does, or would do. With `base`, only if that is still its snapshot."""
        expected = None if base is None else checked_version(str(base))
        return dict(self._info(RollbackTopic(topic, moment_of(to), expected, dry_run))["rollback"])

    def rollback_to_snapshot(self, topic: str, snapshot_id: int | str, dry_run: bool = False) -> dict[str, Any]:
        """The same, to a snapshot's id."""
        return self.rollback(topic, AsOf(version=checked_version(str(snapshot_id))), dry_run=dry_run)

    def rollback_to_timestamp(self, topic: str, timestamp: str | datetime, dry_run: bool = False) -> dict[str, Any]:
        """The same, to what the topic was at a time."""
        text = timestamp.isoformat() if isinstance(timestamp, datetime) else timestamp
        return self.rollback(topic, AsOf(timestamp=text), dry_run=dry_run)

    def cherry_pick(self, topic: str, snapshot_id: int | str, *, dry_run: bool = False) -> dict[str, Any]:
        """Apply what a snapshot did that is not part of the topic any more; what that does, or would do."""
        return dict(self._info(CherryPick(topic, checked_version(str(snapshot_id)), dry_run))["cherry_pick"])

    def _create(self, kind: RefKind, topic: str, name: str, at: Moment | None, retain: Retain, replace: bool) -> None:
        state = AsOf() if at is None else moment_of(at)
        self._lake.execute(CreateRef(kind, checked_ref(kind, name), topic, state, checked_retain(retain), replace))

    def _info(self, statement: Statement) -> Any:
        return self._lake.execute(statement).info
