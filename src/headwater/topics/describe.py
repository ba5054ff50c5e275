"""What there is to know about a topic: definition, table, log; as plain data for every surface."""

from __future__ import annotations

from typing import Any

from headwater.catalog.kept import DamagedTable
from headwater.catalog.metadata import summary_count
from headwater.catalog.topics import Topic
from headwater.errors import Unavailable
from headwater.sql.options import render_options
from headwater.sql.schema_text import render_type
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log
from headwater.types import id_text


def damaged_summary(damaged: DamagedTable) -> dict[str, Any]:
    """The line about a topic that cannot be read."""
    return {
        "topic": damaged.name,
        "records": None,
        "tail": None,
        "files": None,
        "bytes": None,
        "description": "",
        "damage": str(damaged.error),
    }


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
        "damage": None,
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
        "snapshot": id_text(topic.snapshot_id),
        "location": topic.table.location(),
        "metadata": topic.table.metadata_location,
    }


def _totals(topic: Topic) -> dict[str, int]:
    snapshot = topic.table.metadata.current_snapshot()
    keys = {"records": "total-records", "files": "total-data-files", "bytes": "total-files-size"}
    return {name: summary_count(snapshot, key) for name, key in keys.items()}
