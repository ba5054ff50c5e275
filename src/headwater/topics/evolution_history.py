"""The columns that a topic has had: `SHOW SCHEMAS OF`. Told by the table's own metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.catalog.definitions import user_columns
from headwater.catalog.evolve_fields import paths
from headwater.catalog.evolve_updates import P_SCHEMA
from headwater.catalog.topics import Topic
from headwater.sql.alter_changes import Path, dotted
from headwater.sql.schema_text import render_columns, render_type
from headwater.types import id_text


def schema_history(topic: Topic) -> list[dict[str, Any]]:
    """Every schema of the topic, from the first to the current one, and what it changed in the one before."""
    metadata = topic.table.metadata
    schemas = sorted(metadata.schemas, key=lambda schema: schema.schema_id)
    changes = [[], *(list(differences(user_columns(old), user_columns(new))) for old, new in pairwise(schemas))]
    return [
        {
            "schema": schema.schema_id,
            "current": schema.schema_id == metadata.current_schema_id,
            "since": _since(topic, schema.schema_id),
            "snapshot": id_text(_first_snapshot(topic, schema.schema_id)),
            "columns": render_columns(user_columns(schema)),
            "changes": made,
        }
        for schema, made in zip(schemas, changes, strict=True)
    ]


def _since(topic: Topic, schema_id: int) -> str | None:
    said = topic.table.metadata.properties.get(f"{P_SCHEMA}{schema_id}")
    if said is not None:
        return str(json.loads(said)["at"])
    first = [at.timestamp_ms for at in topic.table.metadata.snapshots if at.schema_id == schema_id]
    return datetime.fromtimestamp(min(first) / 1000, UTC).isoformat() if first else None


def _first_snapshot(topic: Topic, schema_id: int) -> int | None:
    """The oldest snapshot that is kept of those which are read in this schema."""
    found = [at for at in topic.table.metadata.snapshots if at.schema_id == schema_id]
    return min(found, key=lambda at: at.sequence_number or 0).snapshot_id if found else None


def differences(old: Schema, new: Schema) -> Iterator[str]:
    """What turned one schema into the other, field by field as their ids tell."""
    before, after = _by_id(old), _by_id(new)
    for id_, (path, field) in before.items():
        if id_ not in after and _parent_is_kept(path, before, after):
            yield f"dropped {dotted(path)} {render_type(field.field_type)}"
    for id_, (path, field) in after.items():
        if id_ not in before:
            if _parent_is_kept(path, after, before):
                yield f"added {dotted(path)} {render_type(field.field_type)}"
        else:
            yield from _changed(*before[id_], path, field)
    if [each.field_id for each in old.fields if each.field_id in after] != [
        each.field_id for each in new.fields if each.field_id in before
    ]:
        yield f"reordered: {', '.join(each.name for each in new.fields)}"


def _by_id(schema: Schema) -> dict[int, tuple[Path, NestedField]]:
    return {field.field_id: (path, field) for path, field in paths(schema.fields)}


def _parent_is_kept(
    path: Path, here: dict[int, tuple[Path, NestedField]], there: dict[int, tuple[Path, NestedField]]
) -> bool:
    """Whether what the field is inside of is in both schemas, so that the field is worth a word of its own."""
    parent = next((id_ for id_, (each, _) in here.items() if each == path[:-1]), None)
    return len(path) == 1 or parent in there


def _changed(old_path: Path, old: NestedField, path: Path, new: NestedField) -> Iterator[str]:
    if old.name != new.name:
        yield f"renamed {dotted(old_path)} to {dotted(path)}"
    if old.field_type.is_primitive and old.field_type != new.field_type:
        yield f"{dotted(path)} is {render_type(new.field_type)} instead of {render_type(old.field_type)}"
    if old.required != new.required:
        yield f"{dotted(path)} {'is NOT NULL' if new.required else 'may be null'}"
    if (old.doc or "") != (new.doc or ""):
        yield f"{dotted(path)} has another comment"
