"""A clock that goes back must not make a table that Iceberg's Java library refuses to read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace

import pyiceberg.table.snapshots
import pyiceberg.table.update
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

import headwater.catalog.metadata
from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.storage.commit import Change, commit, tag
from headwater.types import TOPICS, TableName

NAME = TableName(TOPICS, "t")
BACK = 3600.0


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    create_catalog_file(tmp_path / "catalog.db", 1.0)
    with closing(Tables(tmp_path / "catalog.db", tmp_path / "warehouse", 1.0)) as tables:
        tables.catalog.create_namespace(TOPICS)
        tables.catalog.create_table(NAME.identifier, Schema(NestedField(1, "n", LongType())))
        yield tables


class Earlier(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - timedelta(seconds=BACK)


def turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock by which PyIceberg dates snapshots and metadata."""
    monkeypatch.setattr(pyiceberg.table.snapshots, "time", SimpleNamespace(time=lambda: time.time() - BACK))
    monkeypatch.setattr(pyiceberg.table.update, "datetime", Earlier)
    monkeypatch.setattr(headwater.catalog.metadata, "datetime", Earlier)


def make(tables: Tables) -> int:
    return commit(lambda: tables.load_for_commit(NAME), Change(), lambda _: None).snapshot_id


def assert_forward(table: Table, first: int) -> None:
    metadata = table.metadata
    dates = [each.timestamp_ms for each in metadata.snapshot_log]
    assert dates == sorted(dates)
    assert [each.timestamp_ms for each in metadata.metadata_log] == sorted(
        each.timestamp_ms for each in metadata.metadata_log
    )
    assert metadata.last_updated_ms >= max(first, *dates)
    assert all(each.timestamp_ms >= first for each in metadata.snapshots)


def test_commits_after_the_clock_went_back_are_dated_no_earlier(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make(tables)
    first = tables.load(NAME).metadata.last_updated_ms
    turn_back(monkeypatch)
    new = make(tables)
    assert_forward(tables.load(NAME), first)
    tag(lambda: tables.load_for_commit(NAME), "kept", old)
    with tables.load_for_commit(NAME).transaction() as transaction:
        transaction.set_properties({"a": "b"})
    assert_forward(tables.load(NAME), first)
    monkeypatch.undo()
    make(tables)
    assert_forward(tables.load(NAME), first)
    assert tables.load(NAME).metadata.snapshot_by_id(new) is not None
    assert tables.load(NAME).metadata.last_updated_ms > first, "the clock counts again once it is right"
