"""What there is to know about a topic: definition, table, log; as plain data for every surface."""

from __future__ import annotations

from typing import Any

from headwater.catalog.topics import Topic
from headwater.errors import Unavailable
from headwater.sql.options import render_options
from headwater.sql.schema_text import render_type
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log


def summary(topic: Topic, log: Log) -> dict[str, Any]:
    """One line about a topic: `SHOW TOPICS`. A log that does not answer leaves its tail unknown, not all topics."""
    totals = _totals(topic)
    try:
        tail: int | None = max(0, log.stats(log_topic(topic)).end - topic.committed)
    except Unavailable:
        tail = None
    return {
        "topic": topic.name,
        "records": totals["records"] + (tail or 0),
        "tail": tail,
        "files": totals["files"],
        "bytes": totals["bytes"],
        "description": topic.definition.options.description,
    }


def description(topic: Topic, log: Log) -> dict[str, Any]:
    """Everything about a topic: `DESCRIBE TOPIC`."""
    stats = log.stats(log_topic(topic))
    return {
        **summary(topic, log),
        "id": topic.id,
        "columns": [
            {
                "name": column.name,
                "type": render_type(column.field_type),
                "nullable": not column.required,
                "comment": column.doc or "",
            }
            for column in topic.schema.fields
        ],
        "partitioned_by": [str(part) for part in topic.definition.partitioning],
        "ordered_by": [str(key) for key in topic.definition.ordering],
        "clustered_by": list(topic.definition.clustering),
        "options": render_options(topic.definition.options),
        "committed_offset": topic.committed,
        "next_offset": max(stats.end, topic.committed),
        "log_bytes": stats.bytes,
        "snapshot": topic.snapshot_id,
        "location": topic.table.location(),
        "metadata": topic.table.metadata_location,
    }


def _totals(topic: Topic) -> dict[str, int]:
    snapshot = topic.table.metadata.current_snapshot()
    totals = snapshot.summary if snapshot is not None else None
    keys = {"records": "total-records", "files": "total-data-files", "bytes": "total-files-size"}
    return {name: int(totals[key] or 0) if totals is not None else 0 for name, key in keys.items()}
