"""How far a stream has come is told by the view's table, for as long as a stream keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.catalog.progress import P_STREAM, Progress, progress_of
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import Position, view_properties
from headwater.engine import Lake
from headwater.engine.stream_views import is_streamed
from headwater.errors import StaleCommit, ViewExists
from headwater.storage.commit import Change, commit
from headwater.storage.scan import ManifestCache
from headwater.storage.view_tables import create_view_table, replace_view_table, view_table_schema
from headwater.types import TableName, ViewDefinition

COLUMNS = [("n", "bigint"), ("__weight", "int"), ("__base", "boolean")]
NAME = TableName.view("v")


def properties(**more: str) -> dict[str, str]:
    texts: dict[str, Any] = dict.fromkeys(("read", "read_base", "read_signed", "compact"), "SELECT 1")
    layout = Layout("rows", (("n", "bigint", "n"),)).to_json()
    made = view_properties(
        ViewDefinition("v", "SELECT n FROM t"), layout=layout, types={}, sources=(), position=Position({}), **texts
    )
    return made | more


def test_progress_comes_back_from_its_property() -> None:
    told = Progress(3, "v-01", 7, 1_000, 10, 9, 1, 2)
    assert progress_of({P_STREAM: told.to_json()}) == told
    assert progress_of({}) is None


def test_a_successor_that_no_stream_keeps_says_nothing_of_one(lake: Lake) -> None:
    views, schema = lake.views, view_table_schema(COLUMNS, 0)
    told = {P_STREAM: Progress(1, "v-01").to_json()}
    where = lake.topics.new_location(NAME)
    create_view_table(views.tables.catalog, NAME, schema, where, properties(**told), (), {})
    with pytest.raises(ViewExists):
        create_view_table(views.tables.catalog, NAME, schema, where, properties(**told), (), {})
    old = views.load("v")
    assert is_streamed(old)
    again = view_table_schema(COLUMNS, old.table.metadata.last_column_id)
    next_one = properties(**{P_STREAM: Progress(2, "v-02").to_json()})
    replace_view_table(views.tables, old, again, next_one, (), {}, ManifestCache())
    second = views.load("v")
    assert progress_of(second.table.metadata.properties) == Progress(2, "v-02")
    assert second.id == old.id
    with pytest.raises(StaleCommit, match="changed while its successor was built"):
        replace_view_table(views.tables, old, again, properties(), (), {}, ManifestCache())
    last = view_table_schema(COLUMNS, second.table.metadata.last_column_id)
    replace_view_table(views.tables, second, last, properties(), (), {}, ManifestCache())
    assert not is_streamed(views.load("v"))


@pytest.mark.leaves_damage
def test_a_commit_without_files_moves_it(lake: Lake) -> None:
    schema = view_table_schema(COLUMNS, 0)
    told = {P_STREAM: Progress(1, "v-01").to_json()}
    create_view_table(
        lake.views.tables.catalog, NAME, schema, lake.topics.new_location(NAME), properties(**told), (), {}
    )
    moved = Change(properties={P_STREAM: Progress(1, "v-01", epoch=4).to_json()})
    commit(lambda: lake.views.tables.load_for_commit(NAME), moved, lambda _: None)
    view = lake.views.load("v")
    found = progress_of(view.table.metadata.properties)
    assert found is not None and found.epoch == 4
    assert len(view.table.metadata.snapshots) == 2
