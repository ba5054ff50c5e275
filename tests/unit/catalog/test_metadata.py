"""A commit costs the same however many snapshots a table has, and its metadata files say what they said before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from headwater.catalog.iceberg import Tables, create_catalog_file, file_location
from headwater.storage.commit import Change, commit, tag
from headwater.storage.maintenance.expire import Keep, plan_expiry, run_expiry
from headwater.storage.scan import ManifestCache
from headwater.types import TOPICS, TableName

NAME = TableName(TOPICS, "t")


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    create_catalog_file(tmp_path / "catalog.db", 1.0)
    with closing(Tables(tmp_path / "catalog.db", tmp_path / "warehouse", 1.0)) as tables:
        tables.catalog.create_namespace(TOPICS)
        tables.catalog.create_table(NAME.identifier, Schema(NestedField(1, "n", LongType())))
        yield tables


def make(tables: Tables, **properties: str) -> int:
    change = Change(summary={"note": 'a "snapshots":[] inside'}, properties=properties)
    return commit(lambda: tables.load_for_commit(NAME), change, lambda _: None).snapshot_id


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions `work` calls in this thread."""
    count = 0

    def seen(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def assert_stored(tables: Tables) -> None:
    """The newest metadata file is what PyIceberg would have written."""
    table = tables.load(NAME)
    text = Path(table.metadata_location.removeprefix("file://")).read_text()
    assert text == table.metadata.model_dump_json(exclude_none=True)


def test_a_commit_does_not_cost_more_with_every_snapshot(tables: Tables) -> None:
    for _ in range(10):
        make(tables)
    few = calls(lambda: make(tables))
    for _ in range(200):
        make(tables)
    many = calls(lambda: make(tables))
    assert len(tables.load(NAME).metadata.snapshots) == 212
    assert many < few * 1.1


def test_what_was_committed_is_not_read_again(tables: Tables) -> None:
    make(tables)
    location = Path(tables.load_for_commit(NAME).metadata_location.removeprefix("file://"))
    location.write_text("damaged")  # whoever reads it fails
    assert tables.load(NAME).metadata is tables.load_for_commit(NAME).metadata
    make(tables)
    assert_stored(tables)


def test_metadata_files_say_what_they_always_said(tables: Tables) -> None:
    first = make(tables)
    make(tables, note='"snapshots":[]')
    assert_stored(tables)
    tag(lambda: tables.load_for_commit(NAME), "kept", first)
    assert_stored(tables)
    for _ in range(5):
        make(tables)
    keep = Keep(0.0, least=2)
    run_expiry(
        lambda: tables.load_for_commit(NAME),
        lambda table: plan_expiry(table.metadata, keep, 1e12),
        lambda _: None,
        ManifestCache(),
    )
    assert_stored(tables)
    assert len(tables.load(NAME).metadata.snapshots) == 3
    with closing(Tables(*tables._place)) as other:
        assert other.load(NAME).metadata == tables.load(NAME).metadata


def test_commits_of_other_processes_are_seen_and_their_snapshots_shared(tables: Tables, tmp_path: Path) -> None:
    for _ in range(3):
        make(tables)
    known = tables.load(NAME).metadata
    with SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=file_location(tmp_path / "warehouse")
    ) as foreign:
        table = foreign.load_table(NAME.identifier)
        table.transaction().set_properties(foreign="yes").commit_transaction()
        seen = tables.load(NAME).metadata
        assert seen == foreign.load_table(NAME.identifier).metadata
        assert seen.properties["foreign"] == "yes"
        assert all(new is old for new, old in zip(seen.snapshots, known.snapshots, strict=True))
        table.maintenance.expire_snapshots().by_id(known.snapshots[0].snapshot_id).commit()
        seen = tables.load(NAME).metadata
        assert seen == foreign.load_table(NAME.identifier).metadata
    assert seen.snapshots[0].parent_snapshot_id is None  # PyIceberg's expiry takes the parent's id away
    make(tables)
    assert_stored(tables)
