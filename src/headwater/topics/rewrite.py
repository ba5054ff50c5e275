"""DELETE and UPDATE of a topic's rows: files that hold a matching row are written anew, in one Iceberg commit.

What was acknowledged before is flushed first, so it is covered; what is produced meanwhile is neither touched nor in
the way. `_offset` and `_timestamp` stay, and so does the topic's position: deleted offsets are not given again.

Crash behaviour: before the commit, new files are orphans and the table is as it was; after it, all rows are changed.
If another rewrite or a compaction removed one of the files first, the commit is refused and everything starts over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headwater.catalog.topics import Topic, Topics
from headwater.errors import Conflict, Corrupt, InvalidStatement, StaleCommit
from headwater.observability.failpoints import failpoint
from headwater.spark.jobs import RunningQuery
from headwater.sql.cursor import Cursor
from headwater.sql.mentions import scan
from headwater.sql.statements import DeleteRows, RowStatement
from headwater.sql.tokens import tokenise
from headwater.storage.checksums import THREADS, verify_file
from headwater.storage.commit import Change, Committed, MadeFor, commit
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import local_path
from headwater.topics.ingest import remove_files, target
from headwater.topics.ingest_failures import storage_error, storage_errors
from headwater.types import SYSTEM_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ATTEMPTS = 10

S_DELETED = "headwater.deleted-rows"
S_UPDATED = "headwater.updated-rows"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a statement did: the rows it deleted or updated, the files that went and came; no snapshot if none did."""

    topic: str
    rows: int
    files_removed: int
    files_added: int
    bytes: int
    snapshot_id: int | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Work:
    """Files that are written, and files that they stand for."""

    files: Sequence[DataFile]
    touched: Sequence[DataFile]
    rows: int


class Rewriter:
    """Runs DELETE and UPDATE on the topics of one lake."""

    def __init__(
        self,
        topics: Topics,
        manifests: ManifestCache,
        flush: Callable[[str], object],
        spark: Callable[[], SparkSession],
    ) -> None:
        self._topics = topics
        self._manifests = manifests
        self._flush = flush
        self._spark = spark

    def run(
        self,
        statement: RowStatement,
        row_filter: BooleanExpression | None = None,
        running: Callable[[RunningQuery], None] = lambda _: None,
    ) -> Rewritten:
        """Change the rows. `row_filter` holds wherever the condition does, and saves reading; `running` may cancel."""
        began = time.perf_counter()
        check_columns(statement, self._topics.load(statement.topic))
        check_relations(statement, self._topics)
        self._flush(statement.topic)
        for attempt in range(ATTEMPTS):
            try:
                done = self._attempt(statement, row_filter or AlwaysTrue(), running)
                return replace(done, seconds=time.perf_counter() - began)
            except storage_errors() as failed:
                work = f'change of topic "{statement.topic}"'
                raise storage_error(failed, work, "Its rows are as they were, or all are changed.") from failed
            except StaleCommit as stale:
                log.info("rewrite starts over", extra={"topic": statement.topic, "attempt": attempt, "why": str(stale)})
        raise Conflict(
            f'files of topic "{statement.topic}" were rewritten {ATTEMPTS} times meanwhile', hint="Try again."
        )

    def _attempt(
        self, statement: RowStatement, row_filter: BooleanExpression, running: Callable[[RunningQuery], None]
    ) -> Rewritten:
        topic = self._topics.load(statement.topic)
        candidates = plan_scan(topic.table, topic.snapshot_id, row_filter, self._manifests).files
        failpoint("rewrite.planned")
        session = self._spark()
        query = RunningQuery(session, f"headwater-rewrite-{uuid4().hex}")
        running(query)
        with query:
            work = self._write(session, topic, statement, candidates, row_filter)
        failpoint("rewrite.files_written")
        if not work.touched:
            return Rewritten(topic.name, 0, 0, 0, 0, None)
        done = self._commit(topic, statement, work)
        failpoint("rewrite.after_commit")
        log.info("rows changed", extra={"topic": topic.name, "rows": work.rows, "files": len(work.touched)})
        return Rewritten(topic.name, work.rows, len(work.touched), done.files, done.bytes, done.snapshot_id)

    def _write(
        self,
        session: SparkSession,
        topic: Topic,
        statement: RowStatement,
        candidates: Sequence[DataFile],
        row_filter: BooleanExpression,
    ) -> _Work:
        from headwater.topics.rewrite_spark import open_rewrite

        with open_rewrite(session, self._topics, self._manifests, self._flush, topic, statement) as rewrite:
            if not candidates:
                return _Work((), (), 0)
            found = rewrite.find(candidates, row_filter)
            touched = [file for file in candidates if file.file_path in found.by_file]
            failpoint("rewrite.found")
            kept = [file for file in touched if not _goes_whole(statement, file, found.by_file)]
            _verify(kept)
            files = rewrite.write(found, kept, target(topic))
        _check_rows(topic, statement, files, kept, found.by_file)
        return _Work(files, touched, sum(found.by_file.values()))

    def _commit(self, topic: Topic, statement: RowStatement, work: _Work) -> Committed:
        said = S_DELETED if isinstance(statement, DeleteRows) else S_UPDATED
        made_for = MadeFor.of(topic.table)
        change = Change(work.files, work.touched, "overwrite", {said: str(work.rows)}, made_for=made_for)

        def check(table: Table) -> None:
            if str(table.metadata.table_uuid) != topic.id:
                raise StaleCommit(f'topic "{topic.name}" was made anew')

        try:
            return commit(lambda: self._topics.tables.load_for_commit(topic.table_name), change, check)
        except (StaleCommit, Conflict, NoSuchTableError):
            remove_files(work.files)  # no table will ever refer to them
            self._topics.load(topic.name)  # TopicNotFound, if that is why
            raise


def check_relations(statement: RowStatement, topics: Topics) -> None:
    """TopicNotFound if a subquery of the statement names no topic; Spark, which would find that too, takes seconds."""
    assignments = () if isinstance(statement, DeleteRows) else statement.assignments
    for text in (statement.condition or "", *(value for _, value in assignments)):
        mentions, ctes = scan(Cursor(text, tokenise(text), context="condition"))
        for mention in mentions:
            if mention.name not in ctes:
                topics.load(mention.name)


def check_columns(statement: RowStatement, topic: Topic) -> None:
    """InvalidStatement if the statement assigns a column that it cannot."""
    if isinstance(statement, DeleteRows):
        return
    names = [field.name for field in topic.definition.schema.fields]
    for column, _ in statement.assignments:
        if column in SYSTEM_COLUMNS:
            raise InvalidStatement(
                f'system column "{column}" cannot be assigned',
                detail="It says where and when the record was acknowledged.",
            )
        if column not in names:
            raise InvalidStatement(
                f'column "{column}" does not exist in topic "{topic.name}"', hint=f"Its columns are {', '.join(names)}."
            )


def _goes_whole(statement: RowStatement, file: DataFile, found: Mapping[str, int]) -> bool:
    """Whether no row of the file is left, so that it need not be read again."""
    return isinstance(statement, DeleteRows) and found[file.file_path] == file.record_count


def _verify(files: Sequence[DataFile]) -> None:
    """Corrupt if one is damaged: what is written anew gets new checksums, which would vouch for it."""
    with ThreadPoolExecutor(THREADS, "headwater-verify") as pool:
        list(pool.map(lambda file: verify_file(local_path(file.file_path), None, file.record_count), files))


def _check_rows(
    topic: Topic,
    statement: RowStatement,
    files: Sequence[DataFile],
    kept: Sequence[DataFile],
    found: Mapping[str, int],
) -> None:
    """Corrupt unless the new files hold every row of those they stand for, without the deleted ones."""
    deleted = sum(found[file.file_path] for file in kept) if isinstance(statement, DeleteRows) else 0
    expected = sum(file.record_count for file in kept) - deleted
    written = sum(file.record_count for file in files)
    if written != expected:
        remove_files(files)
        raise Corrupt(f'new files of topic "{topic.name}" hold {written} rows instead of {expected}')
