from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from headwater.catalog.iceberg import Tables, create_catalog_file, open_catalog
from headwater.catalog.topics import Topic, Topics
from headwater.errors import StaleCommit
from headwater.storage import commit
from headwater.storage.commit import append
from headwater.storage.writer import PartitionedWriter
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import Offsets, TopicDefinition


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    create_catalog_file(tmp_path / "catalog.db", 5.0)
    catalog = open_catalog(tmp_path / "catalog.db", tmp_path / "warehouse", 5.0)
    catalog.create_namespace("topics")
    yield Topics(Tables(catalog))
    catalog.close()


@pytest.fixture
def topic(topics: Topics) -> Topic:
    return topics.create(TopicDefinition("t", Schema(NestedField(1, "n", LongType()))))


def files(topic: Topic, offsets: Offsets) -> list:
    writer = PartitionedWriter(target(topic), lambda: f"{offsets.start}-{offsets.end}")
    rows = pa.record_batch({"n": pa.array(range(offsets.start, offsets.end), pa.int64())})
    writer.write(pa.Table.from_batches([with_system_columns(rows, offsets, 0)]))
    return writer.close()


def loader(topics: Topics, topic: Topic):
    return lambda: topics.tables.load_for_commit(topic.table_name)


def numbers(topics: Topics) -> list[int]:
    return sorted(topics.load("t").table.scan().to_arrow().column("n").to_pylist())


def test_position_and_summary_move_with_the_files(topics: Topics, topic: Topic) -> None:
    done = append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    now = topics.load("t")
    assert now.committed == 3
    assert now.snapshot_id == done.snapshot_id
    summary = now.table.metadata.current_snapshot().summary  # type: ignore[union-attr]
    assert (summary["headwater.offset-from"], summary["headwater.offset-to"]) == ("0", "3")  # type: ignore[index]
    assert numbers(topics) == [0, 1, 2]


def test_the_same_range_cannot_be_committed_twice(topics: Topics, topic: Topic) -> None:
    append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    with pytest.raises(StaleCommit, match="came too late"):
        append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    assert numbers(topics) == [0, 1, 2]


def test_a_commit_planned_before_another_ingester_is_fenced(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second ingester loads the table, then the first commits: the catalog refuses, and the retry sees why."""
    inner, raced = commit._commit, []

    def race(table: Table, *rest: object):
        if not raced:
            raced.append(True)
            append(loader(topics, topic), files(topic, Offsets(0, 2)), Offsets(0, 2), POSITION, topic.id)
        return inner(table, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_commit", race)
    with pytest.raises(StaleCommit):
        append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    assert numbers(topics) == [0, 1]


def test_a_change_that_consumes_nothing_does_not_stop_a_commit(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, raced = commit._commit, []

    def race(table: Table, *rest: object):
        if not raced:
            raced.append(True)
            other = loader(topics, topic)()
            with other.transaction() as transaction, transaction.update_snapshot().fast_append():
                pass
        return inner(table, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_commit", race)
    append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    assert numbers(topics) == [0, 1, 2]


def test_a_lost_reply_is_recognised_as_a_commit(topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = commit._commit

    def lose_reply(*arguments: object):
        inner(*arguments)  # type: ignore[arg-type]
        raise ConnectionError("the reply was lost")

    monkeypatch.setattr(commit, "_commit", lose_reply)
    done = append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    assert done.snapshot_id == topics.load("t").snapshot_id
    assert numbers(topics) == [0, 1, 2]


def test_a_topic_made_anew_is_another_topic(topics: Topics, topic: Topic) -> None:
    topics.drop("t")
    topics.create(TopicDefinition("t", Schema(NestedField(1, "n", LongType()))))
    with pytest.raises(StaleCommit):
        append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
