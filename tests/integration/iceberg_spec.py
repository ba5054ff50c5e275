"""Metadata files against what the Iceberg specification requires of format version 2.

Read with json and fastavro only: neither Headwater nor PyIceberg has a say in whether its own files are right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro

Json = Mapping[str, Any]

TABLE = {
    "format-version": int,
    "table-uuid": str,
    "location": str,
    "last-sequence-number": int,
    "last-updated-ms": int,
    "last-column-id": int,
    "schemas": list,
    "current-schema-id": int,
    "partition-specs": list,
    "default-spec-id": int,
    "last-partition-id": int,
    "sort-orders": list,
    "default-sort-order-id": int,
}
SNAPSHOT = {"snapshot-id": int, "sequence-number": int, "timestamp-ms": int, "manifest-list": str, "summary": dict}
FIELD = {"id": int, "name": str, "required": bool}
OPERATIONS = ("append", "replace", "overwrite", "delete")

MANIFEST_LIST = {
    "manifest_path": (500, "string"),
    "manifest_length": (501, "long"),
    "partition_spec_id": (502, "int"),
    "content": (517, "int"),
    "sequence_number": (515, "long"),
    "min_sequence_number": (516, "long"),
    "added_snapshot_id": (503, "long"),
    "added_files_count": (504, "int"),
    "existing_files_count": (505, "int"),
    "deleted_files_count": (506, "int"),
    "added_rows_count": (512, "long"),
    "existing_rows_count": (513, "long"),
    "deleted_rows_count": (514, "long"),
}
"""Names of required fields with their ids and types."""

DATA_FILE = {
    "content": (134, "int"),
    "file_path": (100, "string"),
    "file_format": (101, "string"),
    "partition": (102, None),
    "record_count": (103, "long"),
    "file_size_in_bytes": (104, "long"),
}
MANIFEST_HEADER = ("schema", "schema-id", "partition-spec", "partition-spec-id", "format-version", "content")
EXISTING, ADDED, DELETED = 0, 1, 2


def check_table(metadata: Path) -> Json:
    """AssertionError with a name where a metadata file, or one that it leads to, is not as it must be."""
    table = json.loads(metadata.read_text())
    _check_required(table, TABLE, "table")
    assert table["format-version"] == 2
    UUID(table["table-uuid"])
    _check_schemas(table)
    _check_specs(table)
    _check_sort_orders(table)
    snapshots = {each["snapshot-id"]: each for each in table.get("snapshots", [])}
    assert len(snapshots) == len(table.get("snapshots", [])), "a snapshot id is there twice"
    _check_current(table, snapshots)
    for snapshot in snapshots.values():
        _check_snapshot(snapshot, table)
    return table


def _check_required(value: Json, required: Mapping[str, type], what: str) -> None:
    for name, of in required.items():
        assert isinstance(value.get(name), of), f"{what}: {name} is {value.get(name)!r}"


def _check_schemas(table: Json) -> None:
    ids = [schema["schema-id"] for schema in table["schemas"]]
    assert len(set(ids)) == len(ids)
    assert table["current-schema-id"] in ids
    for schema in table["schemas"]:
        assert schema["type"] == "struct"
        fields = list(_fields(schema))
        assert len(set(fields)) == len(fields), "a field id is there twice"
        assert max(fields) <= table["last-column-id"]


def _fields(of: Json) -> Iterator[int]:
    """The ids of all fields below a type."""
    kind = of["type"]
    if kind == "struct":
        for field in of["fields"]:
            _check_required(field, FIELD, "field")
            yield field["id"]
            yield from _nested(field["type"])
    elif kind == "list":
        assert isinstance(of["element-required"], bool)
        yield of["element-id"]
        yield from _nested(of["element"])
    elif kind == "map":
        assert isinstance(of["value-required"], bool)
        yield from (of["key-id"], of["value-id"])
        yield from _nested(of["key"])
        yield from _nested(of["value"])
    else:
        raise AssertionError(f"type {kind!r}")


def _nested(of: Any) -> Iterator[int]:
    if not isinstance(of, str):
        yield from _fields(of)


def _check_specs(table: Json) -> None:
    ids = [spec["spec-id"] for spec in table["partition-specs"]]
    assert len(set(ids)) == len(ids)
    assert table["default-spec-id"] in ids
    known = {field for schema in table["schemas"] for field in _fields(schema)}
    by_id: dict[int, tuple[int, str]] = {}
    for field in (field for spec in table["partition-specs"] for field in spec["fields"]):
        _check_required(field, {"source-id": int, "field-id": int, "transform": str, "name": str}, "partition field")
        assert field["source-id"] in known
        assert 1000 <= field["field-id"] <= table["last-partition-id"]
        # A partition field's id always means the same.
        meant = (field["source-id"], field["transform"])
        assert by_id.setdefault(field["field-id"], meant) == meant


def _check_sort_orders(table: Json) -> None:
    orders = {order["order-id"]: order for order in table["sort-orders"]}
    assert table["default-sort-order-id"] in orders
    for number, order in orders.items():
        assert (number == 0) == (not order["fields"]), "order 0 is the unsorted one"
        for field in order["fields"]:
            _check_required(field, {"source-id": int, "transform": str}, "sort field")
            assert field["direction"] in ("asc", "desc")
            assert field["null-order"] in ("nulls-first", "nulls-last")


def _check_current(table: Json, snapshots: Mapping[int, Json]) -> None:
    current = table.get("current-snapshot-id", -1)
    refs = table.get("refs", {})
    if current in (None, -1):
        assert "main" not in refs
        return
    assert current in snapshots
    assert refs["main"] == {**refs["main"], "snapshot-id": current, "type": "branch"}
    for name, ref in refs.items():
        assert ref["snapshot-id"] in snapshots, name
        assert ref["type"] in ("tag", "branch")
    log = table.get("snapshot-log", [])
    assert log[-1]["snapshot-id"] == current
    assert [each["timestamp-ms"] for each in log] == sorted(each["timestamp-ms"] for each in log)
    assert all(snapshot["sequence-number"] <= table["last-sequence-number"] for snapshot in snapshots.values())


def _check_snapshot(snapshot: Json, table: Json) -> None:
    _check_required(snapshot, SNAPSHOT, "snapshot")
    assert snapshot["summary"]["operation"] in OPERATIONS
    assert all(isinstance(value, str) for value in snapshot["summary"].values())
    if (schema := snapshot.get("schema-id")) is not None:
        assert schema in {each["schema-id"] for each in table["schemas"]}
    with _local(snapshot["manifest-list"]).open("rb") as file:
        reader = fastavro.reader(file)
        _check_avro(reader.writer_schema, MANIFEST_LIST)
        manifests = list(reader)
    files = rows = size = 0
    for manifest in manifests:
        live = _check_manifest(manifest, snapshot, table)
        files, rows, size = files + live[0], rows + live[1], size + live[2]
    totals = {"total-data-files": files, "total-records": rows, "total-files-size": size}
    told = {name: int(snapshot["summary"][name]) for name in totals if name in snapshot["summary"]}
    assert told == totals, f"snapshot {snapshot['snapshot-id']} says {told}, and has {totals}"


def _check_avro(schema: Any, required: Mapping[str, tuple[int, str | None]]) -> None:
    fields = {field["name"]: field for field in schema["fields"]}
    for name, (field_id, of) in required.items():
        assert fields[name]["field-id"] == field_id, name
        assert of is None or fields[name]["type"] == of, f"{name} is {fields[name]['type']}"


def _check_manifest(manifest: Json, snapshot: Json, table: Json) -> tuple[int, int, int]:
    """The number, rows and bytes of the live files."""
    path = _local(manifest["manifest_path"])
    assert path.stat().st_size == manifest["manifest_length"]
    assert manifest["content"] == 0
    assert manifest["sequence_number"] <= snapshot["sequence-number"]
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        for key in MANIFEST_HEADER:
            assert key in reader.metadata, f"manifest has no {key}"
        assert reader.metadata["format-version"] == "2"
        assert int(reader.metadata["partition-spec-id"]) == manifest["partition_spec_id"]
        columns = {field["name"]: field for field in reader.writer_schema["fields"]}
        assert (columns["status"]["field-id"], columns["data_file"]["field-id"]) == (0, 2)
        _check_avro(columns["data_file"]["type"], DATA_FILE)
        entries = list(reader)
    counted = {EXISTING: [0, 0], ADDED: [0, 0], DELETED: [0, 0]}
    size = 0
    for entry in entries:
        _check_entry(entry, manifest, table)
        counted[entry["status"]][0] += 1
        counted[entry["status"]][1] += entry["data_file"]["record_count"]
        size += entry["data_file"]["file_size_in_bytes"] if entry["status"] != DELETED else 0
    for status, name in ((EXISTING, "existing"), (ADDED, "added"), (DELETED, "deleted")):
        assert counted[status] == [manifest[f"{name}_files_count"], manifest[f"{name}_rows_count"]], name
    live = (counted[EXISTING], counted[ADDED])
    return sum(each[0] for each in live), sum(each[1] for each in live), size


def _check_entry(entry: Json, manifest: Json, table: Json) -> None:
    file = entry["data_file"]
    assert entry["snapshot_id"] is not None or entry["status"] == ADDED
    if entry["status"] != ADDED:  # only what was added just now may inherit its number from the manifest
        assert entry["sequence_number"] is not None
        assert entry["sequence_number"] <= manifest["sequence_number"]
    assert file["content"] == 0
    assert file["file_format"].upper() == "PARQUET"
    assert file["sort_order_id"] in {None, *(order["order-id"] for order in table["sort-orders"])}
    if entry["status"] != DELETED:
        path = _local(file["file_path"])
        assert path.is_relative_to(_local(table["location"]))
        assert path.stat().st_size == file["file_size_in_bytes"]


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))
