"""The statements about snapshots: what there is, tags and branches, rollback, cherry-pick and the summary of changes.

A rollback and a pick are planned on what the topic is now, and run on exactly that: when the topic moved meanwhile,
they are planned again, unless somebody has seen the plan and said so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_never

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headwater.catalog.metadata import summary_count
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import View, Views
from headwater.engine.snapshot_diff import diff_topic
from headwater.errors import HeadwaterError, StaleCommit, TopicNotFound, ViewNotFound
from headwater.serving import snapshot_answers as answers
from headwater.serving.result import Result
from headwater.sql.moments import AsOf
from headwater.sql.statements import (
    CherryPick,
    CreateRef,
    DiffTopic,
    DropRef,
    Query,
    RollbackTopic,
    ShowRefs,
    ShowSnapshots,
    SnapshotStatement,
)
from headwater.storage.changes import Changes
from headwater.storage.commit import attempts
from headwater.storage.scan import ManifestCache
from headwater.storage.time_travel import Named, find_snapshot, list_refs, list_snapshots, made_at
from headwater.storage.time_travel_gaps import read_gaps
from headwater.storage.time_travel_pick import PickPlan, plan_pick, run_pick
from headwater.storage.time_travel_refs import create_ref, drop_ref
from headwater.storage.time_travel_rollback import RollbackPlan, plan_rollback, run_rollback
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log
from headwater.types import TableName, id_text

if TYPE_CHECKING:
    from headwater.engine.view_room import ViewRoom


class SnapshotStatements:
    """Answers statements about the snapshots of one lake's topics and views."""

    def __init__(
        self,
        topics: Topics,
        views: Views,
        log: Log,
        manifests: ManifestCache,
        *,
        query: Callable[[Query], Result],
        view_room: Callable[[], ViewRoom],
        on_commit: Callable[[], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._topics = topics
        self._views = views
        self._log = log
        self._manifests = manifests
        self._query = query
        self._view_room = view_room
        self._on_commit = on_commit
        self._now = now

    def run(self, statement: SnapshotStatement) -> Result:
        match statement:
            case ShowSnapshots():
                return self._show(statement)
            case ShowRefs(topic, kind):
                table = self._topics.load(topic).table
                return answers.named({"topic": topic, "refs": [_ref(each) for each in list_refs(table, kind)]})
            case CreateRef():
                return self._create_ref(statement)
            case DropRef():
                return self._drop_ref(statement)
            case RollbackTopic():
                return self._rollback(statement)
            case CherryPick():
                return self._pick(statement)
            case DiffTopic(name, start, end):
                return answers.different(diff_topic(self._topics.load(name), start, end, self._manifests, self._query))
            case _:
                assert_never(statement)

    # -- what there is --------------------------------------------------------------------------------------------

    def _show(self, asked: ShowSnapshots) -> Result:
        found = self._named(asked)
        gaps = read_gaps(found.table) if isinstance(found, Topic) else ()
        return answers.listed(
            {
                "topic" if isinstance(found, Topic) else "view": found.name,
                "current": id_text(found.snapshot_id),
                "snapshots": list_snapshots(found.table, asked.limit),
                "gaps": [{"from": gap.start, "to": gap.end, "why": gap.why, "at": gap.at} for gap in gaps],
            }
        )

    def _named(self, asked: ShowSnapshots) -> Topic | View:
        if asked.kind == "view":
            return self._views.load(asked.name)
        try:
            return self._topics.load(asked.name)
        except TopicNotFound:
            if asked.kind == "topic":
                raise
            try:
                return self._views.load(asked.name)
            except ViewNotFound:
                pass
            raise

    # -- tags and branches ----------------------------------------------------------------------------------------

    def _create_ref(self, asked: CreateRef) -> Result:
        self._topics.load(asked.topic)
        done = create_ref(lambda: self._for_commit(asked.topic), asked)
        kind, to = asked.kind, done.ref.snapshot_id
        if not done.changed:
            return Result.done(f'{kind} "{asked.name}" of topic "{asked.topic}" stands for snapshot {to} already')
        how = "moved to" if done.before is not None else "created for"
        kept = f", kept {answers.retained(asked.retain)}" if asked.retain is not None else ""
        return Result.done(f'{kind} "{asked.name}" of topic "{asked.topic}" {how} snapshot {to}{kept}')

    def _drop_ref(self, asked: DropRef) -> Result:
        self._topics.load(asked.topic)
        gone = drop_ref(lambda: self._for_commit(asked.topic), asked)
        done = "does not exist" if gone is None else "dropped"
        return Result.done(f'{asked.kind} "{asked.name}" of topic "{asked.topic}" {done}')

    # -- rollback -------------------------------------------------------------------------------------------------

    def _rollback(self, asked: RollbackTopic) -> Result:
        for _ in attempts(f'the rollback of topic "{asked.topic}"'):
            topic = self._topics.load(asked.topic)
            plan = self._plan_rollback(topic, asked)
            about = self._about_rollback(topic, plan, asked.dry_run)
            if asked.dry_run or plan.base == plan.target:
                return answers.rolled_back(about)
            try:
                run_rollback(lambda: self._for_commit(asked.topic), plan)
            except StaleCommit:
                if asked.base is not None:
                    raise
                continue
            self._on_commit()
            return answers.rolled_back(about)
        raise AssertionError

    def _plan_rollback(self, topic: Topic, asked: RollbackTopic) -> RollbackPlan:
        target = self._find(topic, asked.to)
        if asked.base is not None and asked.base != topic.snapshot_id:
            raise StaleCommit(
                f'topic "{topic.name}" is not at snapshot {asked.base} any more',
                detail=f"It is at {topic.snapshot_id}.",
                hint="Nothing was changed; look at a new plan with DRY RUN.",
            )
        at = f"{self._now():%Y-%m-%dT%H:%M:%SZ}"
        return plan_rollback(topic.name, topic.table, target, self._manifests, at)

    def _about_rollback(self, topic: Topic, plan: RollbackPlan, dry_run: bool) -> dict[str, Any]:
        before, after = (topic.table.metadata.snapshot_by_id(each) for each in (plan.base, plan.target))
        assert before is not None and after is not None
        return {
            "topic": topic.name,
            "dry_run": dry_run,
            "from": id_text(plan.base),
            "to": id_text(plan.target),
            "to_at": f"{made_at(after):%Y-%m-%d %H:%M:%S} UTC",
            "rows_before": _rows(before),
            "rows_after": _rows(after),
            **_files(plan.changes),
            "offsets_lost": [[each.start, each.end] for each in plan.offsets_lost],
            "offsets_regained": [[each.start, each.end] for each in plan.offsets_regained],
            "snapshots_left": [id_text(each.snapshot_id) for each in plan.left],
            "snapshots_regained": [id_text(each.snapshot_id) for each in plan.regained],
            "waiting": self._waiting(topic),
            "views": self._followers(topic, plan.target) if plan.base != plan.target else [],
        }

    # -- cherry-pick ----------------------------------------------------------------------------------------------

    def _pick(self, asked: CherryPick) -> Result:
        for _ in attempts(f'a pick into topic "{asked.topic}"'):
            topic = self._topics.load(asked.topic)
            source = self._find(topic, AsOf(version=asked.version))
            plan = plan_pick(topic.name, topic.table, source, self._manifests)
            about = self._about_pick(topic, plan, asked.dry_run)
            if asked.dry_run:
                return answers.picked(about)
            try:
                done = run_pick(lambda: self._for_commit(asked.topic), plan)
            except StaleCommit:
                continue
            self._on_commit()
            return answers.picked({**about, "snapshot": id_text(done.snapshot_id)})
        raise AssertionError

    def _about_pick(self, topic: Topic, plan: PickPlan, dry_run: bool) -> dict[str, Any]:
        before = topic.table.metadata.current_snapshot()
        rows = _rows(before) if before is not None else 0
        files = _files(plan.changes)
        return {
            "topic": topic.name,
            "dry_run": dry_run,
            "source": id_text(plan.source.snapshot_id),
            "base": id_text(plan.base),
            "snapshot": None,
            "rows_before": rows,
            "rows_after": rows + files["rows_added"] - files["rows_removed"],
            **files,
            "offsets_lost": [],
            "offsets_regained": [[plan.offsets.start, plan.offsets.end]] if plan.offsets is not None else [],
            "waiting": self._waiting(topic),
            "views": self._followers(topic, None),
        }

    # -- who reads it ---------------------------------------------------------------------------------------------

    def _followers(self, topic: Topic, target: int | None) -> list[dict[str, Any]]:
        """The views that follow a topic, and what their next refresh would do if `target` were its snapshot."""
        found: dict[str, dict[str, Any]] = {}
        for view in self._views.readers_of(topic.table_name):
            found[view.name] = _follower(view, None) | self._next_refresh(view, topic, target)
        for name in list(found):
            self._above(TableName.view(name), found)
        return list(found.values())

    def _above(self, below: TableName, found: dict[str, dict[str, Any]]) -> None:
        for view in self._views.readers_of(below):
            if view.name not in found:
                found[view.name] = _follower(view, below.name)
                self._above(view.table_name, found)

    def _next_refresh(self, view: View, topic: Topic, target: int | None) -> dict[str, Any]:
        if target is None:
            return {}
        from headwater.views.sources import Head

        try:
            head = Head(topic.table_name, topic.table, target)
            plan = self._view_room().upkeep.plan(view.name, {topic.table_name: head})
        except HeadwaterError as wrong:
            return {"reason": wrong.message}
        return {"method": plan.method, "reason": plan.chosen, "rows": plan.rows}

    # -- small parts ----------------------------------------------------------------------------------------------

    def _find(self, topic: Topic, at: AsOf) -> Snapshot:
        return find_snapshot(topic.table, at, Named("topic", topic.name))

    def _for_commit(self, topic: str) -> Table:
        return self._topics.tables.load_for_commit(TableName.topic(topic))

    def _waiting(self, topic: Topic) -> int:
        return max(0, self._log.stats(log_topic(topic)).end - topic.committed)


def _follower(view: View, through: str | None) -> dict[str, Any]:
    mode = view.definition.options.mode
    return {"view": view.name, "refresh": mode, "through": through, "method": None, "reason": None, "rows": None}


def _files(changes: Changes) -> dict[str, int]:
    sides = {"removed": changes.removed, "added": changes.added}
    return {
        f"{what}_{word}": number
        for word, files in sides.items()
        for what, number in (
            ("rows", sum(file.record_count for file in files)),
            ("files", len(files)),
            ("bytes", sum(file.file_size_in_bytes for file in files)),
        )
    }


def _rows(snapshot: Snapshot) -> int:
    return summary_count(snapshot, "total-records")


def _ref(about: dict[str, Any]) -> dict[str, Any]:
    return {**about, "retain": answers.retained(about["retain_seconds"])}
