"""The small results that statements about topics give, the same from an open lake and from a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result
from headwater.topics.ingest import Ingested
from headwater.types import id_text

TOPICS = pa.schema(
    {
        "topic": pa.string(),
        "records": pa.int64(),
        "tail": pa.int64(),
        "files": pa.int64(),
        "bytes": pa.int64(),
        "description": pa.string(),
        "damage": pa.string(),
    }
)
COLUMNS = pa.schema({"column": pa.string(), "type": pa.string(), "nullable": pa.bool_(), "comment": pa.string()})
FLUSHED = pa.schema(
    {
        "topic": pa.string(),
        "records": pa.int64(),
        "files": pa.int64(),
        "bytes": pa.int64(),
        "seconds": pa.float64(),
        "snapshot": pa.string(),
    }
)

CHANGED = pa.schema(
    {
        "topic": pa.string(),
        "rows": pa.int64(),
        "files_removed": pa.int64(),
        "files_added": pa.int64(),
        "bytes": pa.int64(),
        "seconds": pa.float64(),
        "snapshot": pa.string(),
    }
)


ALTERED = pa.schema({"topic": pa.string(), "change": pa.string(), "effect": pa.string()})
SCHEMAS = pa.schema(
    {
        "schema": pa.int64(),
        "current": pa.bool_(),
        "since": pa.string(),
        "snapshot": pa.string(),
        "columns": pa.string(),
        "changes": pa.list_(pa.string()),
    }
)


def altered(done: Mapping[str, Any]) -> Result:
    """What ALTER TOPIC answers, from what it did: a row for each change."""
    return Result.of_rows(ALTERED, done["changes"], info=done, notices=done["notices"])


def schemas(found: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW SCHEMAS answers."""
    return Result.of_rows(SCHEMAS, found)


def changed_rows(done: Mapping[str, Any]) -> Result:
    """What DELETE and UPDATE answer."""
    return Result.of_rows(CHANGED, [done])


def listed(summaries: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW TOPICS answers, from the summary of each topic."""
    return Result.of_rows(TOPICS, summaries)


def described(about: Mapping[str, Any]) -> Result:
    """What DESCRIBE TOPIC answers, from the topic's description, which is the result's `info`."""
    rows = [{**column, "column": column["name"]} for column in about["columns"]]
    return Result.of_rows(COLUMNS, [{key: row[key] for key in COLUMNS.names} for row in rows], info=about)


def flushed(commits: Iterable[Ingested]) -> Result:
    """What FLUSH answers: a row for each commit."""
    return Result.of_rows(FLUSHED, [_row(each) for each in commits])


def _row(commit: Ingested) -> dict[str, Any]:
    return {
        "topic": commit.topic,
        "records": len(commit.offsets),
        "files": commit.files,
        "bytes": commit.bytes,
        "seconds": round(commit.seconds, 3),
        "snapshot": id_text(commit.snapshot_id),
    }
