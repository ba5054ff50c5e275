"""Compaction changes no row: random columns, partitions, orders, codecs and histories, then every kind of compaction.

Spark's job is run in this process; everything else is real. Rows are read back by PyIceberg.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from headwater.catalog.topics import Topic
from headwater.engine import Lake
from headwater.storage.changes import between
from headwater.storage.checksums import verify_file
from headwater.storage.commit import Change, commit
from headwater.storage.layout import layout_of
from headwater.storage.maintenance import compact as compact_files
from headwater.storage.maintenance import compact_spark
from headwater.storage.maintenance.compact import Means, Outcome, Rewrite, run_rewrites
from headwater.storage.maintenance.policy import order_mark, run_of
from headwater.storage.scan import ManifestCache
from headwater.storage.sorting import sorted_indices
from headwater.storage.writer import PartitionedWriter, Target, local_path
from headwater.topics import ingest
from headwater.topics.compaction import plan_compaction, run_compaction
from headwater.types import SortKey

_names = (f"t{number}" for number in itertools.count())
kinds: Counter[str] = Counter()
"""How many groups of each kind were rewritten."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("compaction")

    def write(_: object, log_path: Path, into: Target, entries: Sequence[Any], *rest: Any) -> list[Any]:
        return ingest.write_entries(log_path, into, entries, *rest)

    def job(_: object, rewrites: Sequence[Rewrite], into: Target, memory: int, *rest: Any) -> list[Outcome]:
        return list(run_rewrites(rewrites, into, Means(memory, folder, 2), 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "write_files", write)
        patch.setattr(compact_spark, "run_job", job)
        patch.setattr(compact_files, "LEAST", 1 << 20)  # so that threads share in sorting a few rows
        with Lake.init(folder / "lake") as opened:
            opened._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
            yield opened


COLUMNS = {
    "n": ("BIGINT", st.integers(-5, 5)),
    "i": ("INT", st.integers(-3, 3)),
    "s": ("STRING", st.sampled_from(["", "a", "aa", "b", "é", "z" * 20, "z" * 19 + "y"])),
    "f": ("FLOAT", st.sampled_from([0.0, -0.0, 1.5, -2.25, 3e38, math.nan, math.inf])),
    "d": ("DECIMAL(9, 2)", st.sampled_from(["0.00", "-1.25", "9999999.99"])),
    "at": ("TIMESTAMP", st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z", "1969-12-31T23:59:59Z"])),
    "day": ("DATE", st.sampled_from(["2026-01-01", "1960-02-29"])),
    "u": ("UUID", st.sampled_from([f"00000000-0000-0000-0000-00000000000{digit}" for digit in range(3)])),
    "y": ("BOOLEAN", st.booleans()),
    "tags": ("ARRAY<STRING>", st.lists(st.sampled_from(["x", ""]), max_size=2)),
    "place": (
        "STRUCT<city: STRING, zip: INT>",
        st.fixed_dictionaries({"city": st.sampled_from(["c", None]), "zip": st.integers(0, 2)}),
    ),
    "m": ("MAP<STRING, INT>", st.dictionaries(st.sampled_from(["k", "l"]), st.integers(0, 2))),
}
SCALARS = ["n", "i", "s", "f", "d", "at", "day", "u", "y"]
PARTITIONS = ["", "n", "bucket(2, n)", "truncate(2, s)", "days(at)", "hours(at), bucket(2, s)", "day"]
CODECS = ["zstd", "none", "snappy", "gzip"]

rows = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, values) in COLUMNS.items()}),
    min_size=1,
    max_size=12,
)
key = st.tuples(st.sampled_from(SCALARS), st.sampled_from(["ASC", "DESC"]), st.sampled_from(["FIRST", "LAST"]))
orders = st.one_of(
    st.just(""),
    st.lists(key, min_size=1, max_size=2, unique_by=lambda each: each[0]).map(
        lambda keys: f"ORDERED BY ({', '.join(f'{name} {way} NULLS {nulls}' for name, way, nulls in keys)})"
    ),
    st.lists(st.sampled_from([name for name in SCALARS if name != "y"]), min_size=2, max_size=3, unique=True).map(
        lambda names: f"CLUSTERED BY ZORDER ({', '.join(names)})"
    ),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ingest"), rows),
        st.tuples(st.just("ingest"), rows),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("evolve"), st.sampled_from(["rename", "widen", "drop", "add", "move"])),
        st.tuples(st.just("respec"), st.sampled_from(["n", "bucket", "none"])),
        st.tuples(st.just("compact"), st.sampled_from(["auto", "cold", "asked", "full"])),
    ),
    min_size=3,
    max_size=9,
)


def bag(topic: Topic, snapshot_id: int | None = None) -> Counter[str]:
    found = topic.table.scan(snapshot_id=snapshot_id).to_arrow()
    return Counter(str(sorted(row.items())) for row in found.to_pylist())


def delete(lake: Lake, topic: Topic, which: int) -> None:
    """Take a row out of a file, as a DELETE does."""
    into, live = ingest.target(topic), list(topic.table.scan().plan_files())
    if not live:
        return
    file = live[which % len(live)].file
    if file.spec_id != into.spec.spec_id:
        return
    left = topic.table.scan().to_arrow().schema.empty_table()
    one = pq.read_table(local_path(file.file_path), partitioning=None)
    if one.schema.names == left.schema.names and one.num_rows > 1:
        writer = PartitionedWriter(into, lambda: f"deleted{next(_names)}")
        writer.write(one.slice(1))
        added = writer.close()
        change = Change(added, [file], "overwrite")
        commit(lambda: lake.topics.tables.load_for_commit(topic.table_name), change, lambda _: None)


def evolve(lake: Lake, topic: Topic, how: str) -> None:
    ordered = {each.column for each in topic.definition.ordering} | set(topic.definition.clustering)
    names = topic.schema.column_names
    with lake.topics.tables.load_for_commit(topic.table_name).update_schema() as update:
        match how:
            case "rename" if "place.city" in names:
                update.rename_column("place.city", "town")
            case "widen" if "i" in names:
                update.update_column("i", LongType())
            case "drop" if "m" in names:
                update.delete_column("m")
            case "add" if "later" not in names:
                update.add_column("later", LongType())
                update.move_before("later", "_offset")
            case "move" if "y" in names and "tags" in names and "y" not in ordered:
                update.move_before("tags", "y")


def respec(lake: Lake, topic: Topic, how: str) -> None:
    with lake.topics.tables.load_for_commit(topic.table_name).update_spec() as update:
        for field in topic.table.spec().fields:
            update.remove_field(field.name)
        if how == "n":
            update.add_field("n", IdentityTransform(), f"n_{next(_names)}")
        elif how == "bucket":
            update.add_field("n", BucketTransform(3), f"b_{next(_names)}")


def compact(lake: Lake, name: str, how: str, memory: int) -> None:
    topic = lake.topics.load(name)
    before, start = bag(topic), topic.snapshot_id
    past = bag(topic, start)  # in the columns of that time
    now = time.time() + (10_000 if how == "cold" else 0)
    wish = {"full": how == "full", "asked": how == "asked"}
    plan = plan_compaction(topic, ManifestCache(), now=now, **wish)
    done = run_compaction(lake.topics, plan, lambda: None, ManifestCache(), memory=memory)  # type: ignore[arg-type, return-value]
    after = lake.topics.load(name)
    assert (done.damaged, done.stale, done.cancelled) == ((), 0, False)
    assert done.groups >= len(plan.groups)
    assert bag(after) == before
    changes = between(after.table, start, after.snapshot_id, ManifestCache()) if start is not None else None
    assert changes is None or (changes.added, changes.removed) == ((), ())
    if plan.groups:
        assert bag(after, start) == past
        kinds.update(group.kind for group in plan.groups)
    check_files(after)
    if how in ("asked", "full"):
        assert plan_compaction(after, ManifestCache(), now=now, asked=True).groups == ()


def check_files(topic: Topic) -> None:
    """What metadata says of files is so, they are sealed, and runs are in order across files."""
    runs: dict[tuple[str, str], list[pa.Table]] = {}
    mark = order_mark(layout_of(topic), topic.schema)
    for task in topic.table.scan().plan_files():
        assert verify_file(local_path(task.file.file_path), None, task.file.record_count)
        run, _ = run_of(task.file.file_path, mark)
        if run is not None and task.file.spec_id == topic.table.spec().spec_id:
            # By name, and so in the way in which they were written.
            table = pq.read_table(local_path(task.file.file_path), partitioning=None)
            runs.setdefault((run, str(task.file.partition)), []).append(table)
    for tables in runs.values():
        check_run(topic, tables)


def check_run(topic: Topic, tables: list[pa.Table]) -> None:
    keys: Sequence[SortKey] = topic.definition.ordering
    if topic.definition.clustering or any(key.column not in table.column_names for table in tables for key in keys):
        return
    ends = pa.concat_tables([table.select([key.column for key in keys]).slice(0, 1) for table in tables])
    order = np.asarray(sorted_indices(ends, keys))
    whole = pa.concat_tables([tables[place].select([key.column for key in keys]) for place in order.tolist()])
    found = np.asarray(sorted_indices(whole, keys))
    assert whole.take(pa.array(found)).equals(whole), "files of a run overlap"


def do(lake: Lake, name: str, step: tuple[Any, ...], memory: int) -> None:
    topic = lake.topics.load(name)
    match step:
        case ("ingest", records):
            columns = set(topic.columns.column_names)
            lake.topic(name).append([fit(record, columns) for record in records])
            lake.flush(name)
        case ("delete", which):
            delete(lake, topic, which)
        case ("evolve", how):
            evolve(lake, topic, how)
        case ("respec", how):
            respec(lake, topic, how)
        case ("compact", how):
            compact(lake, name, how, memory)


def fit(record: dict[str, Any], columns: set[str]) -> dict[str, Any]:
    record = {key: value for key, value in record.items() if key in columns}
    if "place.town" in columns and record.get("place") is not None:
        record["place"] = {"town": record["place"]["city"], "zip": record["place"]["zip"]}
    return record


def run_history(lake: Lake, parts: str, order: str, codec: str, history: list[tuple[Any, ...]], memory: int) -> None:
    name = next(_names)
    columns = ", ".join(f"{column} {of}" for column, (of, _) in COLUMNS.items())
    partitioned = f"PARTITIONED BY ({parts})" if parts else ""
    lake.sql(f"CREATE TOPIC {name} ({columns}) {partitioned} {order} WITH (compression = '{codec}')")
    for step in history:
        do(lake, name, step, memory)
    compact(lake, name, "asked", memory)


def test_no_row_changes(lake: Lake) -> None:
    # A case is not shrunk: that would run hundreds of them, and each takes about as long as it looks.
    @settings(max_examples=25, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.sampled_from(PARTITIONS),
        orders,
        st.sampled_from(CODECS),
        rows,
        steps,
        st.sampled_from([3_000, 256 * 1024**2]),
    )
    def try_it(parts: str, order: str, codec: str, first: list[Any], more: list[Any], memory: int) -> None:
        run_history(lake, parts, order, codec, [("ingest", first), *more], memory)

    try_it()
    # Or a planner that never finds anything to do would pass.
    assert min(kinds[kind] for kind in ("pack", "sort", "zorder", "full")) >= 3, kinds


def test_where_nan_comes_no_file_is_cut(lake: Lake) -> None:
    """A file with NaN has no bounds; that some of its sources have them must not cut it, again and again."""
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} (n BIGINT, f FLOAT, g DOUBLE)")
    for value in (1.0, math.nan, 2.0):
        lake.topic(name).append([{"n": 1, "f": value, "g": 1.0}])
        lake.flush(name)
    compact(lake, name, "asked", 256 * 1024**2)
    (task,) = lake.topics.load(name).table.scan().plan_files()
    assert dict(task.file.nan_value_counts) == {2: 1, 3: 0}
    assert {1, 3} <= dict(task.file.lower_bounds).keys() and 2 not in dict(task.file.lower_bounds)
