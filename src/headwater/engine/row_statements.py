"""DELETE and UPDATE: which files may hold matching rows is asked of the serving side, the rest is the topics'."""

from __future__ import annotations

from pyiceberg.expressions import BooleanExpression

from headwater.catalog.topics import Topics
from headwater.serving.agreement import scan_needs
from headwater.serving.moment import Moment
from headwater.serving.query import Cancel
from headwater.serving.result import Result
from headwater.serving.topic_answers import changed_rows
from headwater.sql.names import normalise_topics
from headwater.sql.statements import RowStatement
from headwater.storage.scan import ManifestCache
from headwater.topics.log import Log
from headwater.topics.rewrite import Rewriter
from headwater.types import id_text


class RowStatements:
    """Answers statements that change rows of one lake's topics."""

    def __init__(self, topics: Topics, log: Log, manifests: ManifestCache, rewriter: Rewriter) -> None:
        self._topics = topics
        self._log = log
        self._manifests = manifests
        self._rewriter = rewriter

    def run(self, statement: RowStatement, cancel: Cancel | None = None) -> Result:
        cancel = cancel or Cancel()
        cancel.check()
        done = self._rewriter.run(statement, self._needed(statement), cancel.attach)
        row = {
            "topic": done.topic,
            "rows": done.rows,
            "files_removed": done.files_removed,
            "files_added": done.files_added,
            "bytes": done.bytes,
            "seconds": round(done.seconds, 3),
            "snapshot": id_text(done.snapshot_id),
        }
        return changed_rows(row)

    def _needed(self, statement: RowStatement) -> BooleanExpression | None:
        """A filter that holds for every row that matches; None when nothing is known."""
        if statement.condition is None:
            return None
        text = normalise_topics(f"SELECT 1 FROM `{statement.topic}` WHERE (\n{statement.condition}\n)")  # noqa: S608
        schemas = Moment(self._topics, self._log, self._manifests, tail=False)
        needs = scan_needs(text, schemas).get(statement.topic)
        return needs.filter if needs is not None else None
