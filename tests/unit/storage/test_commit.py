from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField, TimestamptzType, UUIDType

from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topic, Topics
from headwater.errors import SnapshotGone, StaleCommit
from headwater.storage import commit
from headwater.storage.commit import Change, Committed, append
from headwater.storage.commit import commit as commit_change
from headwater.storage.writer import PartitionedWriter, local_path
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import Offsets, Partition, TopicDefinition


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    create_catalog_file(tmp_path / "catalog.db", 5.0)
    tables = Tables(tmp_path / "catalog.db", tmp_path / "warehouse", 5.0)
    tables.catalog.create_namespace("topics")
    yield Topics(tables)
    tables.close()


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


def test_files_that_were_deleted_meanwhile_are_not_committed(topics: Topics, topic: Topic) -> None:
    """As orphans, because the work took too long, or the clock went on by days."""
    written = files(topic, Offsets(0, 3))
    local_path(written[0].file_path).unlink()
    with pytest.raises(StaleCommit, match="1 of 1 new files"):
        append(loader(topics, topic), written, Offsets(0, 3), POSITION, topic.id)
    assert topics.load("t").snapshot_id is None and topics.load("t").committed == 0
    append(loader(topics, topic), files(topic, Offsets(0, 3)), Offsets(0, 3), POSITION, topic.id)
    assert numbers(topics) == [0, 1, 2]


# -- changes of every kind ------------------------------------------------------------------------------------------


def anything(_: Table) -> None:
    """A check that accepts every base."""


def summary_of(topics: Topics) -> dict[str, object]:
    snapshot = topics.load("t").table.metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def add(topics: Topics, topic: Topic, *ranges: Offsets) -> list[DataFile]:
    """Each range as a commit with one file; all the files."""
    made = []
    for offsets in ranges:
        (file,) = files(topic, offsets)
        commit_change(loader(topics, topic), Change([file]), anything)
        made.append(file)
    return made


@pytest.mark.parametrize("operation", ["overwrite", "replace"])
def test_files_go_and_come_in_one_snapshot(topics: Topics, topic: Topic, operation: Any) -> None:
    first, second, _ = add(topics, topic, Offsets(0, 3), Offsets(3, 5), Offsets(5, 9))
    new = files(topic, Offsets(20, 22))
    done = commit_change(
        loader(topics, topic), Change(new, [first, second], operation, {"why": "test"}, {"headwater.x": "1"}), anything
    )
    now = topics.load("t")
    assert numbers(topics) == [5, 6, 7, 8, 20, 21]
    assert done == Committed(now.snapshot_id, 1, 2, new[0].file_size_in_bytes)  # type: ignore[arg-type]
    assert now.table.metadata.properties["headwater.x"] == "1"
    told = summary_of(topics)
    wanted = {
        "operation": operation,
        "why": "test",
        "added-data-files": "1",
        "added-records": "2",
        "deleted-data-files": "2",
        "deleted-records": "5",
        "total-records": "6",
        "total-data-files": "2",
    }
    assert wanted.items() <= told.items()


@pytest.mark.parametrize(
    "part",
    [
        Partition("identity", "u"),
        Partition("identity", "f"),
        Partition("bucket", "u", 3),
        Partition("day", "at"),
        Partition("identity", "d"),
    ],
    ids=str,
)
def test_files_of_every_kind_of_partition_can_be_removed(topics: Topics, part: Partition) -> None:
    schema = Schema(
        NestedField(1, "u", UUIDType()),
        NestedField(2, "f", DoubleType()),
        NestedField(3, "at", TimestamptzType()),
        NestedField(4, "d", DecimalType(9, 2)),
    )
    topic = topics.create(TopicDefinition("t", schema, (part,)))
    rows = pa.record_batch(
        {
            "u": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), bytes([1] * 16), None], pa.binary(16))),
            "f": pa.array([float("nan"), -0.0, None]),
            "at": pa.array([-1, 2**45, None], pa.timestamp("us", "UTC")),
            "d": pa.array([Decimal("-1.25"), Decimal("1e6"), None], pa.decimal128(9, 2)),
        }
    )
    writer = PartitionedWriter(target(topic), _ids())
    writer.write(pa.Table.from_batches([with_system_columns(rows, Offsets(0, 3), 0)]))
    written = writer.close()
    commit_change(loader(topics, topic), Change(written), anything)
    live = [task.file for task in topics.load("t").table.scan().plan_files()]
    for number, file in enumerate(live, 1):
        commit_change(loader(topics, topic), Change((), [file], "overwrite"), anything)
        assert len(list(topics.load("t").table.scan().plan_files())) == len(live) - number


def _ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: str(next(numbers))


def test_a_file_that_is_gone_already_stops_the_commit(topics: Topics, topic: Topic) -> None:
    (first,) = add(topics, topic, Offsets(0, 3))
    commit_change(loader(topics, topic), Change((), [first], "overwrite"), anything)
    metadata = local_path(topic.table.location()) / "metadata"
    before, snapshot = set(metadata.iterdir()), topics.load("t").snapshot_id
    with pytest.raises(StaleCommit, match="1 files to remove are not in the table any more"):
        commit_change(loader(topics, topic), Change(files(topic, Offsets(3, 4)), [first], "overwrite"), anything)
    assert topics.load("t").snapshot_id == snapshot
    assert set(metadata.iterdir()) == before


def test_a_change_without_files_makes_a_snapshot(topics: Topics, topic: Topic) -> None:
    first = commit_change(loader(topics, topic), Change(properties={"headwater.x": "1"}), anything)
    add(topics, topic, Offsets(0, 3))
    second = commit_change(loader(topics, topic), Change(properties={"headwater.x": "2"}, summary={"a": "b"}), anything)
    now = topics.load("t")
    assert now.snapshot_id == second.snapshot_id != first.snapshot_id
    assert (second.files, second.rows, second.bytes) == (0, 0, 0)
    assert now.table.metadata.properties["headwater.x"] == "2"
    assert numbers(topics) == [0, 1, 2]
    assert {"operation": "append", "a": "b", "total-records": "3"}.items() <= summary_of(topics).items()


def test_an_append_that_removes_is_a_mistake(topic: Topic) -> None:
    with pytest.raises(ValueError, match="an append removes no files"):
        Change((), files(topic, Offsets(0, 1)))


def test_the_check_sees_every_base_and_stops_a_stale_one(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []

    def check(table: Table) -> None:
        seen.append(table.metadata.current_snapshot_id)
        if len(seen) == 2:
            raise StaleCommit("the base has moved")

    race(monkeypatch, lambda: add(topics, topic, Offsets(0, 3)))
    with pytest.raises(StaleCommit, match="the base has moved"):
        commit_change(loader(topics, topic), Change(files(topic, Offsets(3, 5))), check)
    assert seen == [None, topics.load("t").snapshot_id]
    assert numbers(topics) == [0, 1, 2]


def race(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Do something between the load and the first commit that follows."""
    inner, raced = commit._commit, []

    def first_the_other(*arguments: Any) -> None:
        if not raced:
            raced.append(True)
            meanwhile()
        inner(*arguments)

    monkeypatch.setattr(commit, "_commit", first_the_other)


def test_an_append_meanwhile_is_kept_by_an_overwrite(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = add(topics, topic, Offsets(0, 3))
    race(monkeypatch, lambda: add(topics, topic, Offsets(3, 5)))
    commit_change(loader(topics, topic), Change(files(topic, Offsets(7, 8)), [first], "overwrite"), anything)
    assert numbers(topics) == [3, 4, 7]


def test_a_removal_meanwhile_of_the_same_file_is_found(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = add(topics, topic, Offsets(0, 3))

    def other() -> None:
        commit_change(loader(topics, topic), Change(files(topic, Offsets(5, 6)), [first], "overwrite"), anything)

    race(monkeypatch, other)
    with pytest.raises(StaleCommit):
        commit_change(loader(topics, topic), Change(files(topic, Offsets(7, 8)), [first], "overwrite"), anything)
    assert numbers(topics) == [5]


def test_pyiceberg_does_not_move_a_commit_to_another_base(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables made by others ask PyIceberg to try again by itself, which would skip the check."""
    topic = topics.create(TopicDefinition("t", Schema(NestedField(1, "n", LongType()))))
    with topics.tables.load_for_commit(topic.table_name).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4", "commit.retry.min-wait-ms": "1"})
    seen: list[int | None] = []
    race(monkeypatch, lambda: add(topics, topic, Offsets(0, 3)))
    commit_change(
        loader(topics, topic),
        Change(files(topic, Offsets(3, 5))),
        lambda table: seen.append(table.metadata.current_snapshot_id),
    )
    assert len(seen) == 2
    assert numbers(topics) == [0, 1, 2, 3, 4]


def test_a_lost_reply_to_an_overwrite_is_not_repeated(
    topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = add(topics, topic, Offsets(0, 3))
    inner = commit._commit

    def lose_reply(*arguments: Any) -> None:
        inner(*arguments)
        monkeypatch.setattr(commit, "_commit", inner)
        add(topics, topic, Offsets(5, 6))  # another commit lands before the loser looks
        raise ConnectionError("the reply was lost")

    monkeypatch.setattr(commit, "_commit", lose_reply)
    done = commit_change(loader(topics, topic), Change((), [first], "overwrite"), anything)
    assert numbers(topics) == [5]
    assert done.snapshot_id in {snapshot.snapshot_id for snapshot in topics.load("t").table.metadata.snapshots}


def test_an_error_that_is_no_commit_is_raised(topics: Topics, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("nothing arrived")

    monkeypatch.setattr(commit, "_commit", fail)
    with pytest.raises(ConnectionError):
        commit_change(loader(topics, topic), Change(files(topic, Offsets(0, 3))), anything)
    assert numbers(topics) == []


def test_many_committers_at_once_lose_nothing(topics: Topics, topic: Topic) -> None:
    """Appenders, one that rewrites what it finds, and one that moves a tag, all on one table."""
    (kept,) = add(topics, topic, Offsets(0, 1))
    head = topics.load("t").snapshot_id
    failures: list[BaseException] = []

    def appending(begin: int) -> None:
        for number in range(begin, begin + 6):
            add(topics, topic, Offsets(number, number + 1))

    def rewriting() -> None:
        old = kept
        for number in range(6):
            (new,) = files(topic, Offsets(1000 + number, 1001 + number))
            commit_change(loader(topics, topic), Change([new], [old], "overwrite"), anything)
            old = new

    def tagging() -> None:
        for number in range(12):
            commit.tag(loader(topics, topic), "pin", None if number % 2 else head)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failed:
            failures.append(failed)

    works = [lambda: appending(100), lambda: appending(200), rewriting, tagging]
    threads = [threading.Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert numbers(topics) == sorted([*range(100, 106), *range(200, 206), 1005])


def test_manifests_without_live_files_are_left_behind(topics: Topics, topic: Topic) -> None:
    for number in range(5):
        (file,) = add(topics, topic, Offsets(number, number + 1))
        commit_change(loader(topics, topic), Change((), [file], "overwrite"), anything)
    table = topics.load("t").table
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 1  # the one that says what the last commit removed


def test_manifests_are_merged(topics: Topics, topic: Topic) -> None:
    with topics.tables.load_for_commit(topic.table_name).transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    made = add(topics, topic, *(Offsets(number, number + 1) for number in range(9)))
    commit_change(loader(topics, topic), Change(files(topic, Offsets(20, 21)), made[2:4], "replace"), anything)
    table = topics.load("t").table
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 3
    assert numbers(topics) == [0, 1, 4, 5, 6, 7, 8, 20]


# -- tags -----------------------------------------------------------------------------------------------------------


def tagged(topics: Topics) -> dict[str, int]:
    refs = topics.load("t").table.metadata.refs
    return {name: ref.snapshot_id for name, ref in refs.items() if name != "main"}


def test_a_tag_is_set_moved_and_removed(topics: Topics, topic: Topic) -> None:
    load = loader(topics, topic)
    first = commit_change(load, Change(), anything).snapshot_id
    second = commit_change(load, Change(), anything).snapshot_id
    commit.tag(load, "view.daily", first)
    assert tagged(topics) == {"view.daily": first}
    commit.tag(load, "view.daily", second)
    commit.tag(load, "view.daily", second)
    commit.tag(load, "view.other", first)
    assert tagged(topics) == {"view.daily": second, "view.other": first}
    commit.tag(load, "view.daily", None)
    commit.tag(load, "view.daily", None)
    assert tagged(topics) == {"view.other": first}
    assert topics.load("t").snapshot_id == second


def test_a_tag_needs_its_snapshot(topics: Topics, topic: Topic) -> None:
    with pytest.raises(SnapshotGone, match='snapshot 5 of table "t" does not exist'):
        commit.tag(loader(topics, topic), "pin", 5)


def test_a_snapshot_that_expires_while_it_is_tagged_is_named(topics: Topics, topic: Topic) -> None:
    load = loader(topics, topic)
    first = commit_change(load, Change(), anything).snapshot_id
    commit_change(load, Change(), anything)
    loaded: list[bool] = []

    def stale() -> Table:
        table = load()
        if not loaded:
            loaded.append(True)
            load().maintenance.expire_snapshots().by_id(first).commit()
        return table

    with pytest.raises(SnapshotGone):
        commit.tag(stale, "pin", first)


def test_columns_are_replaced_with_the_files_that_have_them(topics: Topics, topic: Topic) -> None:
    (first,) = add(topics, topic, Offsets(0, 3))
    fields = topic.table.schema().fields
    columns = Schema(NestedField(20, "m", LongType()), *fields[1:])
    into = replace(target(topic), schema=columns)
    writer = PartitionedWriter(into, _ids())
    rows = pa.record_batch({"m": pa.array([7, 8])})
    writer.write(pa.Table.from_batches([with_system_columns(rows, Offsets(3, 5), 0)]))
    commit_change(loader(topics, topic), Change(writer.close(), [first], "overwrite", schema=columns), anything)
    table = topics.tables.load_for_commit(topic.table_name)
    assert [field.name for field in table.schema().fields] == ["m", "_offset", "_timestamp"]
    assert table.scan().to_arrow().column("m").to_pylist() == [7, 8]
