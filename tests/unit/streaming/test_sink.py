"""A stream whose batches emit nothing still tells its table how far it is, before a checkpoint forgets that epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.catalog.progress import BATCHES_RETAINED, BATCHES_UNCOMMITTED, P_STREAM, Progress, progress_of
from headwater.catalog.view_layout import Layout
from headwater.catalog.views import Position, view_properties
from headwater.engine import Lake
from headwater.storage.scan import ManifestCache
from headwater.storage.view_tables import create_view_table, view_table_schema
from headwater.streaming.checkpoint import Batch
from headwater.streaming.reading import TopicFiles
from headwater.streaming.sink import Handled, Sink
from headwater.types import TableName, ViewDefinition

pytestmark = pytest.mark.leaves_damage  # the view has no checkpoint

NAME = TableName.view("v")


def epoch_of(lake: Lake) -> int:
    found = progress_of(lake.views.load("v").table.metadata.properties)
    assert found is not None
    return found.epoch


def sink_of(lake: Lake) -> Sink:
    """As a run of the view's query opens it."""
    progress = progress_of(lake.views.load("v").table.metadata.properties)
    assert progress is not None
    plan: Any = SimpleNamespace(name="v")  # all that a batch without rows needs of it
    read = TopicFiles(lake.topics, {}, ManifestCache(), lake.paths.streams / "cut")
    return Sink(plan, lake.views, lake.paths.streams / "checkpoint", read, progress)


@pytest.fixture
def view(lake: Lake) -> None:
    texts: dict[str, Any] = dict.fromkeys(("read", "read_base", "read_signed", "compact"), "SELECT 1")
    layout = Layout("rows", (("n", "bigint", "n"),)).to_json()
    properties = view_properties(
        ViewDefinition("v", "SELECT n FROM t"), layout=layout, types={}, sources=(), position=Position({}), **texts
    )
    schema = view_table_schema([("n", "bigint"), ("__weight", "int"), ("__base", "boolean")], 0)
    told = {P_STREAM: Progress(1, "v-01", epoch=3).to_json()}
    create_view_table(
        lake.views.tables.catalog, NAME, schema, lake.topics.new_location(NAME), properties | told, (), {}
    )


def test_batches_without_output_are_committed_before_their_checkpoint_is_too_far_ahead(lake: Lake, view: None) -> None:
    sink, gaps = sink_of(lake), []
    for number in range(4, 4 + 5 * BATCHES_UNCOMMITTED):
        if number % 33 == 0:  # killed: what was not committed is not known to the next run
            sink = sink_of(lake)
        batch = Batch(number, {}, {}, 0, 0)
        sink._account(batch, (), Handled())
        sink._commit(batch, (), signed=False)
        gaps.append(number - epoch_of(lake))
    assert max(gaps) == BATCHES_UNCOMMITTED - 1, "it commits no more often than it must"
    assert BATCHES_UNCOMMITTED <= BATCHES_RETAINED // 2
    assert len(lake.views.load("v").table.metadata.snapshots) == 1 + 5


def test_a_query_that_ends_commits_how_far_it_came(lake: Lake, view: None) -> None:
    sink = sink_of(lake)
    batch = Batch(4, {}, {}, 0, 0)
    sink._account(batch, (), Handled())
    sink._commit(batch, (), signed=False)
    assert epoch_of(lake) == 3
    sink.settle()
    assert epoch_of(lake) == 4
