"""Compaction through Spark's workers: rows, settings, order, damage, statements beside it, views over it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import TopicNotFound
from headwater.storage.maintenance.effect import Compacted
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_path
from headwater.topics import compaction
from headwater.topics.compaction import plan_compaction, run_compaction

pytestmark = pytest.mark.spark

_names = (f"compacted{number}" for number in itertools.count())


COLUMNS = "n BIGINT NOT NULL, s STRING, g DOUBLE, at TIMESTAMP, tags ARRAY<STRING>"


def record(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "s": None if n % 5 == 4 else f"s{n % 7}",
        "g": n / 2,
        "at": f"2026-01-{n % 2 + 1:02}T00:00:00Z",
        "tags": [f"t{n}"] * (n % 3),
    }


def make(lake: Lake, *batches: range, rest: str = "") -> str:
    """A topic with a commit per batch, and so with a file per batch and partition."""
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} ({COLUMNS}) {rest}")
    for batch in batches:
        lake.topic(name).append([record(n) for n in batch])
        lake.flush(name)
    return name


def files(lake: Lake, name: str) -> list[DataFile]:
    found = (task.file for task in lake.topics.load(name).table.scan().plan_files())
    return sorted(found, key=lambda file: file.file_path)


def on_disk(lake: Lake, name: str) -> set[str]:
    folder = local_path(lake.topics.load(name).table.location())
    return {f"file://{path}" for path in folder.rglob("*.parquet")}


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    return lake.sql(f"SELECT * FROM {name} ORDER BY _offset").rows()


def compact(lake: Lake, name: str, *, full: bool = False, asked: bool = True, **more: Any) -> Compacted:
    plan = plan_compaction(lake.topics.load(name), ManifestCache(), now=time.time(), full=full, asked=asked)
    return run_compaction(lake.topics, plan, lambda: lake.spark, ManifestCache(), **more)


def scattered(count: int, parts: int) -> list[range]:
    """Ranges of numbers of which each spans nearly all of them."""
    return [range(part, count, parts) for part in range(parts)]


def test_files_are_packed_and_every_row_is_as_it_was(lake: Lake) -> None:
    name = make(lake, *(range(at, at + 3) for at in range(0, 18, 3)), rest="PARTITIONED BY (days(at))")
    before, old = rows(lake, name), files(lake, name)
    start = lake.topics.load(name).snapshot_id
    told: list[dict[str, Any]] = []
    done = compact(lake, name, progress=told.append)
    assert rows(lake, name) == before
    assert lake.sql(f"SELECT * FROM {name} VERSION AS OF {start} ORDER BY _offset").rows() == before
    assert (len(old), len(files(lake, name))) == (12, 2)
    assert on_disk(lake, name) == {file.file_path for file in (*old, *files(lake, name))}
    said = done.describe()
    assert {key: said[key] for key in ("files_before", "files_after", "rows", "groups", "groups_stale")} == {
        "files_before": 12,
        "files_after": 2,
        "rows": 18,
        "groups": 2,
        "groups_stale": 0,
    }
    assert said["predicted"]["files_after"] == 2 and said["seconds"] > 0
    assert [each["groups"] for each in told] == [2]
    topic = lake.topics.load(name)
    snapshot = topic.table.metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert (snapshot.summary.operation.value, snapshot.summary["headwater.compaction"]) == ("replace", "pack")
    assert (topic.committed, snapshot.summary["total-records"]) == (18, "18")
    again = plan_compaction(topic, ManifestCache(), now=time.time(), asked=True)
    assert (again.groups, again.reason) == ((), "none of 2 files is worth rewriting")
    lake.topic(name).append([record(18)])
    assert [row["n"] for row in rows(lake, name)] == list(range(19))


def test_a_topic_is_sorted_across_files_with_less_memory_than_it_takes(lake: Lake) -> None:
    rest = "ORDERED BY (s DESC NULLS LAST, n) WITH (row_group_rows = 1000)"
    name = make(lake, *scattered(6000, 3), rest=rest)
    before = rows(lake, name)
    done = compact(lake, name, memory=400_000)  # less than the rows take
    assert rows(lake, name) == before
    assert done.describe()["files_before"] == 3
    order_id = lake.topics.load(name).table.metadata.default_sort_order_id
    assert {file.sort_order_id for file in files(lake, name)} == {order_id}
    tables = [pq.read_table(local_path(file.file_path), partitioning=None) for file in files(lake, name)]
    tables.sort(key=lambda table: [(v is None, [-ord(c) for c in v or ""]) for v in table["s"].to_pylist()[:1]])
    keys = [(row["s"], row["n"]) for table in tables for row in table.select(["s", "n"]).to_pylist()]
    assert keys == sorted(keys, key=lambda key: (key[0] is None, [-ord(c) for c in key[0] or ""], key[1]))
    assert compact(lake, name).groups == 0
    assert not list(Path(lake.spark.sparkContext.getConf().get("spark.local.dir")).glob("compaction-*"))


def test_a_clustered_topic_is_clustered_once(lake: Lake) -> None:
    rest = "CLUSTERED BY ZORDER (n, g) WITH (row_group_rows = 1000)"
    name = make(lake, *scattered(4000, 2), rest=rest)
    before = rows(lake, name)
    done = compact(lake, name)
    assert rows(lake, name) == before
    snapshot = lake.topics.load(name).table.metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert (snapshot.summary["headwater.compaction"], done.groups) == ("zorder", 1)
    (file,) = files(lake, name)
    groups = pq.read_metadata(local_path(file.file_path))
    bounds = [groups.row_group(at).column(0).statistics for at in range(groups.num_row_groups)]
    assert len(bounds) == 4 and all(each.max - each.min <= 1100 for each in bounds)
    assert compact(lake, name).groups == 0


def test_full_brings_everything_into_the_current_layout(lake: Lake) -> None:
    name = make(lake, range(10), range(10, 20))
    table = lake.topics.load(name).table_name
    with lake.topics.tables.load_for_commit(table).update_spec() as update:
        update.add_field("at", "day", "at_day")
    with lake.topics.tables.load_for_commit(table).update_schema() as update_schema:
        update_schema.delete_column("tags")
        update_schema.rename_column("s", "word")
    lake.topics.tables.load_for_commit(table).transaction().set_properties(
        {"headwater.option.compression_columns": "word=gzip:2, g=none", "headwater.option.compression": "snappy"}
    ).commit_transaction()
    before = rows(lake, name)
    compact(lake, name, full=True)
    assert rows(lake, name) == before
    (spec_id,) = {file.spec_id for file in files(lake, name)}
    assert spec_id == lake.topics.load(name).table.spec().spec_id and len(files(lake, name)) == 2
    for file in files(lake, name):
        group = pq.read_metadata(local_path(file.file_path)).row_group(0)
        found = {group.column(at).path_in_schema: group.column(at).compression for at in range(group.num_columns)}
        assert found == dict.fromkeys(("n", "at", "_offset", "_timestamp"), "SNAPPY") | {
            "word": "GZIP",
            "g": "UNCOMPRESSED",
        }


def test_a_damaged_file_is_named_and_left_while_others_are_packed(lake: Lake) -> None:
    name = make(lake, range(6), range(6, 12), rest="PARTITIONED BY (days(at))")
    old = files(lake, name)
    victim = old[0]
    damaged = local_path(victim.file_path)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    done = compact(lake, name)
    assert [victim.file_path.removeprefix("file://") in str(each) for each in done.damaged] == [True]
    same = [file for file in old if file.partition == victim.partition]
    left = {file.file_path for file in files(lake, name)}
    assert {file.file_path for file in same} <= left and len(left) == 3 and done.groups == 1
    damaged.write_bytes(whole)
    assert compact(lake, name).groups == 1 and len(rows(lake, name)) == 12


# -- with others ----------------------------------------------------------------------------------------------------


def during(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[int]:
    """Do `work` when files are written the first time, before they are committed; how often they were."""
    passed: list[int] = []

    def reached(name: str) -> None:
        if name == "compaction.written":
            passed.append(1)
            if len(passed) == 1:
                work()

    monkeypatch.setattr(compaction, "failpoint", reached)
    return passed


def test_what_is_produced_meanwhile_is_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4), range(4, 8))

    def produce() -> None:
        lake.topic(name).append([record(8), record(9)])
        lake.flush(name)
        lake.topic(name).append([record(10)])

    passed = during(monkeypatch, produce)
    done = compact(lake, name)
    assert (len(passed), done.stale, len(files(lake, name))) == (1, 0, 2)
    assert [row["n"] for row in rows(lake, name)] == list(range(11))


def test_a_statement_that_takes_a_file_away_wins(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, *(range(at, at + 4) for at in range(0, 16, 4)), rest="PARTITIONED BY (days(at))")
    passed = during(monkeypatch, lambda: lake.sql(f"DELETE FROM {name} WHERE n = 5") and None)
    done = compact(lake, name)
    # One group was committed by itself; of the other, what was left of it was packed in a second job.
    assert (len(passed), done.groups, done.stale) == (2, 2, 0)
    assert [row["n"] for row in rows(lake, name)] == [n for n in range(16) if n != 5]
    assert len(files(lake, name)) == 3  # one partition in one file; the other with the statement's file beside it
    snapshots = lake.topics.load(name).table.metadata.snapshots
    known = {
        task.file.file_path
        for snapshot in snapshots
        for task in lake.topics.load(name).table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    }
    assert on_disk(lake, name) == known  # what could not be committed is gone


def test_columns_altered_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4), range(4, 8))

    def alter() -> None:
        table = lake.topics.tables.load_for_commit(lake.topics.load(name).table_name)
        with table.update_schema() as update:
            update.rename_column("s", "t")

    passed = during(monkeypatch, alter)
    done = compact(lake, name)
    assert (len(passed), done.groups) == (2, 1)  # written anew for the new columns
    (file,) = files(lake, name)
    assert "t" in pq.read_schema(local_path(file.file_path)).names


def test_a_topic_dropped_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4), range(4, 8))
    during(monkeypatch, lambda: lake.sql(f"DROP TOPIC {name}") and None)
    with pytest.raises(TopicNotFound):
        compact(lake, name)


def test_it_can_be_cancelled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4), range(4, 8))
    before = files(lake, name)
    asked = iter([False, True])
    done = compact(lake, name, cancelled=lambda: next(asked, True))
    assert done.cancelled and done.groups == 0
    assert files(lake, name) == before and on_disk(lake, name) == {file.file_path for file in before}


def test_views_see_nothing_of_it(lake: Lake) -> None:
    name = make(lake, range(6), range(6, 12))
    view = f"{name}_by_word"
    query = f"SELECT s, count(*) AS c, sum(n) AS total FROM {name} GROUP BY s"
    lake.sql(f"CREATE MATERIALIZED VIEW {view} WITH (refresh = 'manual') AS {query}")
    lake.sql(f"REFRESH MATERIALIZED VIEW {view}")
    before = sorted(map(str, lake.sql(f"SELECT * FROM {view}").rows()))
    assert compact(lake, name).groups == 1
    (refreshed,) = lake.sql(f"REFRESH MATERIALIZED VIEW {view}").rows()
    assert (refreshed["method"], refreshed["rows_read"]) == ("skip", 0)
    assert sorted(map(str, lake.sql(f"SELECT * FROM {view}").rows())) == before
    lake.topic(name).append([record(12)])
    lake.flush(name)
    assert compact(lake, name).groups == 1
    (again,) = lake.sql(f"REFRESH MATERIALIZED VIEW {view}").rows()
    assert (again["method"], again["rows_read"]) == ("append", 1)
    total = lake.sql(f"SELECT sum(c) AS c, sum(total) AS t FROM {view}").rows()
    assert total == [{"c": 13, "t": sum(range(13))}]
