"""Completion in the shell: keywords, topics, views and their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.client import LakeLike

KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "ORDER", "LIMIT", "OFFSET", "WITH", "AS", "DISTINCT"),
    *("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "OUTER", "CROSS", "ON", "USING", "UNION", "ALL", "EXCEPT", "INTERSECT"),
    *("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "EXISTS", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("CAST", "ASC", "DESC", "COUNT", "SUM", "AVG", "MIN", "MAX", "OVER", "PARTITION", "ROWS", "RANGE", "INTERVAL"),
    *(
        "TRUE",
        "FALSE",
        "VALUES",
        "LATERAL",
        "CREATE",
        "TOPIC",
        "TOPICS",
        "DROP",
        "SHOW",
        "DESCRIBE",
        "FLUSH",
        "EXPLAIN",
    ),
    *("ANALYZE", "IF", "PARTITIONED", "COMMENT", "TAIL", "OFF", "BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE"),
    *("DECIMAL", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING", "UUID", "FIXED", "BINARY", "ARRAY", "MAP"),
    *("STRUCT", "COALESCE", "DATE_TRUNC", "MATERIALIZED", "VIEW", "VIEWS", "REPLACE", "ALTER", "SET", "REFRESH"),
    *("ADD", "COLUMN", "COLUMNS", "RENAME", "REORDER", "TYPE", "SCHEMAS", "ORDERED", "CLUSTERED", "ZORDER"),
    *("OPTIMIZE", "MAINTAIN", "MAINTENANCE", "ONLY", "DRY", "RUN", "FULL"),
    *("PARQUET", "STATS", "SCHEMA", "RECOMMEND", "APPLY", "WITHOUT"),
    *("REFRESHES", "VERIFY", "SAMPLE", "COMPACT", "DELETE", "UPDATE", "VERSION", "TUMBLE", "HOP"),
    *("SNAPSHOTS", "TAG", "TAGS", "BRANCH", "BRANCHES", "RETAIN", "ROLLBACK", "CHERRY", "PICK", "DIFF", "CHANGES"),
)
COMMANDS = ("\\?", "\\d", "\\dv", "\\explain", "\\q", "\\timing")
_WORD = re.compile(r"[\\\w]+$")
_BEFORE_TOPIC = re.compile(r"\b(from|join|topic|view|flush|\\dv?)\s+[\w]*$", re.IGNORECASE)


class SqlCompleter(Completer):
    """Completes the word at the cursor; after FROM, JOIN, TOPIC or VIEW only topics and views."""

    def __init__(self, lake: LakeLike) -> None:
        self._lake = lake
        self._relations: dict[str, tuple[str, ...]] | None = None

    def forget(self) -> None:
        """Look at the lake again before the next completion: its topics or views have changed."""
        self._relations = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        found = _WORD.search(before)
        word = found.group() if found else ""
        for text, meta in self._candidates(before):
            if text.lower().startswith(word.lower()) and text != word:
                yield Completion(_in_case_of(word, text), -len(word), display_meta=meta)

    def _candidates(self, before: str) -> Iterator[tuple[str, str]]:
        if before.lstrip().startswith("\\") and " " not in before:
            yield from ((command, "") for command in COMMANDS)
            return
        relations = self._load()
        yield from ((name, "") for name in relations)
        if _BEFORE_TOPIC.search(before):
            return
        yield from ((column, f"column of {name}") for name, columns in relations.items() for column in columns)
        yield from ((keyword, "") for keyword in KEYWORDS)

    def _load(self) -> dict[str, tuple[str, ...]]:
        """Topics and views with their columns; none while the lake does not answer: a key press must not fail."""
        if self._relations is None:
            from headwater.sql.statements import DescribeTopic, DescribeView, ShowTopics, ShowViews

            run = self._lake.execute
            try:
                rows = {str(row["topic"]): run(DescribeTopic(row["topic"])).rows() for row in run(ShowTopics()).rows()}
                rows |= {str(row["view"]): run(DescribeView(row["view"])).rows() for row in run(ShowViews()).rows()}
            except HeadwaterError:
                return {}
            self._relations = {name: tuple(str(row["column"]) for row in each) for name, each in rows.items()}
        return self._relations


def _in_case_of(word: str, text: str) -> str:
    """A keyword in the case in which the person types."""
    return text.lower() if text.isupper() and word and word.islower() else text
