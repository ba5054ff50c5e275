"""Planning a scan never drops a file that holds a matching row: compared with reading every file, row by row."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topic, Topics
from headwater.errors import InvalidSchema
from headwater.sql.partitioning import check_partitioning
from headwater.storage.bloom_columns import ENABLED
from headwater.storage.commit import append
from headwater.storage.scan import FileScan, ManifestCache, plan_scan
from headwater.storage.schemas import arrow_schema
from headwater.storage.writer import PartitionedWriter, local_path
from headwater.topics.ingest import POSITION, target, with_system_columns
from headwater.types import TOPICS, Offsets, Partition, TopicDefinition

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "n", LongType()),
    NestedField(3, "f", DoubleType()),
    NestedField(4, "d", DecimalType(9, 2)),
    NestedField(5, "day", DateType()),
    NestedField(6, "at", TimestamptzType()),
    NestedField(7, "local", TimestampType()),
    NestedField(8, "s", StringType()),
    NestedField(9, "b", BooleanType()),
    NestedField(10, "u", UUIDType()),
    NestedField(11, "x", FixedType(2)),
    NestedField(12, "place", StructType(NestedField(13, "city", StringType()))),
    NestedField(14, "g", FloatType()),
    NestedField(15, "w", DecimalType(38, 10)),
    NestedField(16, "raw", BinaryType()),
)
EPOCH = dt.datetime(1970, 1, 1)
HOURS = st.integers(-72, 72).map(lambda hours: EPOCH + dt.timedelta(hours=hours, microseconds=hours % 3)) | (
    st.sampled_from([dt.datetime.min, dt.datetime.max])
)
FLOATS = st.sampled_from([-1.5, -0.0, 0.0, 2.25, math.inf, -math.inf, math.nan, math.nan, math.nan])
LAST_BEFORE_SURROGATES, LAST = "\ud7ff", "\U0010ffff"
ODD_STRINGS = ["z" * 15 + LAST_BEFORE_SURROGATES + "z", LAST_BEFORE_SURROGATES * 17, "\ue000" * 17]
ODD_STRINGS += [LAST * 16, LAST * 17, "z" + LAST * 20]
# Small domains, so that filters hit; long strings, whose bounds are cut; the characters around the cut; the epoch; the
# first and the last value of a type.
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-12, 12) | st.sampled_from([-(2**31), 2**31 - 1]),
    "n": st.integers(-12, 12) | st.sampled_from([-(2**63), 2**63 - 1]),
    "f": FLOATS,
    "g": FLOATS,
    "d": st.integers(-500, 500).map(lambda cents: Decimal(cents).scaleb(-2)),
    "w": st.sampled_from([-(10**38) + 1, -1, 0, 15 * 10**9, 10**38 - 1]).map(
        lambda units: Context(prec=38).scaleb(Decimal(units), -10)
    ),
    "day": st.integers(-40, 40).map(lambda days: EPOCH.date() + dt.timedelta(days=days))
    | st.sampled_from([dt.date.min, dt.date.max]),
    "at": HOURS.map(lambda when: when.replace(tzinfo=dt.UTC)),
    "local": HOURS,
    "s": st.sampled_from(["", "a", "ab", "abc", "b", "ä", "日本語", "a" * 16, "a" * 17, "a" * 40, "z", *ODD_STRINGS]),
    "b": st.booleans(),
    "u": st.integers(0, 3).map(lambda n: uuid.UUID(int=n * 70 << 120 | n)),
    "x": st.sampled_from([b"\x00\x00", b"\x7f\x80", b"\xff\xff"]),
    "raw": st.sampled_from([b"", b"\x00", b"a" * 17, b"a" * 16 + b"\xff", b"\x7f" + b"\xff" * 20, b"\xff" * 17]),
    "place.city": st.sampled_from(["", "oslo", "rome" * 8, "ru"]),
}
TRANSFORMS = st.one_of(
    st.sampled_from([("identity", None), ("year", None), ("month", None), ("day", None), ("hour", None)]),
    st.tuples(st.sampled_from(["bucket", "truncate"]), st.sampled_from([1, 2, 3, 10])),
)
Row = dict[str, Any]


@st.composite
def partitionings(draw: st.DrawFn) -> tuple[Partition, ...]:
    parts: tuple[Partition, ...] = ()
    for column in draw(st.lists(st.sampled_from(list(VALUES)), max_size=3, unique=True)):
        transform, parameter = draw(TRANSFORMS)
        try:
            parts = check_partitioning(SCHEMA, (*parts, Partition(transform, column, parameter)))  # type: ignore[arg-type]
        except InvalidSchema:
            continue  # not every transform takes every column
    return parts


ROWS = st.fixed_dictionaries({name: st.none() | of for name, of in VALUES.items()})
COMMITS = st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=4)

COMPARISONS: Mapping[type[BooleanExpression], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    NotEqualTo: operator.ne,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}


@st.composite
def leaves(draw: st.DrawFn) -> tuple[BooleanExpression, Callable[[Row], bool | None]]:
    """A condition on one column, and what it says of a row: True, False, or None for unknown."""
    name = draw(st.sampled_from(list(VALUES)))
    value = VALUES[name].filter(lambda each: not _is_nan(each))
    kinds = ["compare", "compare", "in", "null"] + ["nan"] * (name in "fg") + ["prefix"] * (name in ("s", "place.city"))
    match draw(st.sampled_from(kinds)):
        case "compare":
            kind, wanted = draw(st.sampled_from(list(COMPARISONS))), draw(value)
            return kind(name, wanted), _number(name, lambda each: COMPARISONS[kind](each, wanted))
        case "in":
            values = set(draw(st.lists(value, min_size=1, max_size=4)))
            if draw(st.booleans()):
                return In(name, values), _number(name, lambda each: each in values)
            return NotIn(name, values), _number(name, lambda each: each not in values)
        case "null":
            if draw(st.booleans()):
                return IsNull(name), lambda row: row[name] is None
            return NotNull(name), lambda row: row[name] is not None
        case "nan":
            if draw(st.booleans()):
                return IsNaN(name), _known(name, _is_nan)
            return NotNaN(name), _known(name, lambda each: not _is_nan(each))
        case _:
            prefix = draw(value)[: draw(st.integers(1, 20))]
            if draw(st.booleans()):
                return StartsWith(name, prefix), _known(name, lambda each: each.startswith(prefix))
            return NotStartsWith(name, prefix), _known(name, lambda each: not each.startswith(prefix))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _known(name: str, test: Callable[[Any], bool]) -> Callable[[Row], bool | None]:
    return lambda row: None if row[name] is None else test(row[name])


def _number(name: str, test: Callable[[Any], bool]) -> Callable[[Row], bool | None]:
    """Nothing is said of NaN: engines order it differently, and whoever makes a filter for one adds IsNaN."""
    return lambda row: None if row[name] is None or _is_nan(row[name]) else test(row[name])


Filter = tuple[BooleanExpression, Callable[[Row], bool | None]]


def _both(left: Filter, right: Filter) -> Filter:
    def evaluate(row: Row) -> bool | None:
        found = (left[1](row), right[1](row))
        return False if False in found else None if None in found else True

    return And(left[0], right[0]), evaluate


def _either(left: Filter, right: Filter) -> Filter:
    def evaluate(row: Row) -> bool | None:
        found = (left[1](row), right[1](row))
        return True if True in found else None if None in found else False

    return Or(left[0], right[0]), evaluate


def _negated(of: Filter) -> Filter:
    def evaluate(row: Row) -> bool | None:
        found = of[1](row)
        return None if found is None else not found

    return Not(of[0]), evaluate


FILTERS: st.SearchStrategy[Filter] = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(_both, inner, inner), st.builds(_either, inner, inner), st.builds(_negated, inner)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    folder = tmp_path_factory.mktemp("pruning")
    create_catalog_file(folder / "catalog.db", 5.0)
    tables = Tables(folder / "catalog.db", folder / "warehouse", 5.0)
    tables.catalog.create_namespace(TOPICS)
    yield Topics(tables)
    tables.close()


_numbers = itertools.count()


def table_of(
    topics: Topics, partitioning: tuple[Partition, ...], commits: list[list[Row]], blooms: frozenset[str] = frozenset()
) -> Topic:
    """A table with one Iceberg commit per list of rows, and bloom filters on the columns `blooms`."""
    made = topics.create(TopicDefinition(f"t{next(_numbers)}", SCHEMA, partitioning))
    with topics.tables.load_for_commit(made.table_name).transaction() as transaction:
        transaction.set_properties({ENABLED + name: "true" for name in blooms})
    made = topics.load(made.name)
    ids, start = itertools.count(), 0
    for rows in commits:
        offsets = Offsets(start, start + len(rows))
        writer = PartitionedWriter(target(made), lambda: f"{next(ids):026}")
        writer.write(pa.Table.from_batches([with_system_columns(batch_of(rows), offsets, 0)]))
        append(lambda: topics.tables.load_for_commit(made.table_name), writer.close(), offsets, POSITION, made.id)
        start = offsets.end
    return topics.load(made.name)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    schema = arrow_schema(SCHEMA)
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    columns["place"] = [{"city": row["place.city"]} for row in rows]
    columns["u"] = [None if row["u"] is None else row["u"].bytes for row in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], names=schema.names
    )


def files_of(topic: Topic, rows: list[Row]) -> dict[str, list[Row]]:
    """Every file of the table and the rows in it, found by their offsets."""
    everything = plan_scan(topic.table, topic.snapshot_id, AlwaysTrue(), ManifestCache())
    return {
        file.file_path: [rows[at] for at in pq.read_table(local_path(file.file_path)).column("_offset").to_pylist()]
        for file in everything.files
    }


@given(partitionings(), COMMITS, st.lists(FILTERS, min_size=20, max_size=20), st.frozensets(st.sampled_from([*VALUES])))
@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would commit hundreds of tables more
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_no_file_with_a_matching_row_is_dropped(
    topics: Topics,
    partitioning: tuple[Partition, ...],
    commits: list[list[Row]],
    filters: list[Filter],
    blooms: frozenset[str],
) -> None:
    topic = table_of(topics, partitioning, commits, blooms)
    rows = [row for commit in commits for row in commit]
    files = files_of(topic, rows)
    assert sum(map(len, files.values())) == len(rows)
    cache = ManifestCache()
    for row_filter, matches in filters:
        scan = plan_scan(topic.table, topic.snapshot_id, row_filter, cache)
        kept = {file.file_path for file in scan.files}
        for path, inside in files.items():
            assert path in kept or not any(matches(row) is True for row in inside), (str(row_filter), path)
        assert_counts_add_up(scan, len(files))
    topics.drop(topic.name)


EVERY_TRANSFORM = [("identity", None), ("year", None), ("month", None), ("day", None), ("hour", None)]
EVERY_TRANSFORM += [("bucket", 3), ("truncate", 1), ("truncate", 10)]
EDGES: Mapping[str, tuple[Any, ...]] = {
    "i": (-(2**31), -1, 0, 2**31 - 1),
    "n": (-(2**63), -1, 0, 2**63 - 1),
    "d": (Decimal("-9999999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("9999999.99")),
    "w": tuple(Context(prec=38).scaleb(Decimal(units), -10) for units in (-(10**38) + 1, -1, 0, 10**38 - 1)),
    "day": (dt.date.min, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date.max),
    "at": tuple(each.replace(tzinfo=dt.UTC) for each in (dt.datetime.min, EPOCH, dt.datetime.max)),
    "local": (dt.datetime.min, EPOCH - dt.timedelta(microseconds=1), EPOCH, dt.datetime.max),
    "s": ("", "\x00", LAST_BEFORE_SURROGATES * 17, LAST * 17),
    "b": (False, True),
    "u": (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)),
    "x": (b"\x00\x00", b"\xff\xff"),
    "raw": (b"", b"\x00", b"\xff" * 17),
}


@pytest.mark.parametrize(("transform", "width"), EVERY_TRANSFORM)
def test_conditions_at_the_edges_of_every_type_keep_their_rows(
    topics: Topics, transform: Any, width: int | None
) -> None:
    rows = [
        dict.fromkeys(VALUES) | {name: values[at] for name, values in EDGES.items() if at < len(values)}
        for at in range(max(map(len, EDGES.values())))
    ]
    parts: tuple[Partition, ...] = ()
    for name in EDGES:
        try:
            parts = check_partitioning(SCHEMA, (*parts, Partition(transform, name, width)))
        except InvalidSchema:
            continue  # not every transform takes every column
    assert parts
    topic, cache = table_of(topics, parts, [[row] for row in rows]), ManifestCache()
    files = files_of(topic, rows)
    for name, values in EDGES.items():
        for kind, value in itertools.product(COMPARISONS, values):
            kept = {
                file.file_path for file in plan_scan(topic.table, topic.snapshot_id, kind(name, value), cache).files
            }
            for path, inside in files.items():
                matches = any(row[name] is not None and COMPARISONS[kind](row[name], value) for row in inside)
                assert path in kept or not matches, (name, kind, value)
    topics.drop(topic.name)


def assert_counts_add_up(scan: FileScan, files: int) -> None:
    skipped = scan.skipped_by_partition + scan.skipped_by_statistics + scan.skipped_by_null_counts
    assert scan.total == files == len(scan.files) + skipped + scan.skipped_by_bloom_filter


def test_files_are_dropped_at_all(topics: Topics) -> None:
    """The property above would hold for a planner that keeps everything."""
    row = dict.fromkeys(VALUES)
    commits = [[{**row, "n": n, "s": f"k{n}", "day": dt.date(2026, 1, 1 + n)}] for n in range(10)]
    by_day = table_of(topics, (Partition("day", "day"),), commits)
    plain = table_of(topics, (), commits)
    day = plan_scan(by_day.table, by_day.snapshot_id, EqualTo("day", dt.date(2026, 1, 4)), ManifestCache())
    assert (len(day.files), day.skipped_by_partition, day.skipped_by_statistics) == (1, 9, 0)
    for topic in (by_day, plain):
        some = plan_scan(topic.table, topic.snapshot_id, And(LessThan("n", 3), NotNull("s")), ManifestCache())
        assert (len(some.files), some.skipped_by_partition, some.skipped_by_statistics) == (3, 0, 7)
        none = plan_scan(topic.table, topic.snapshot_id, StartsWith("s", "x"), ManifestCache())
        assert (len(none.files), none.skipped_by_statistics) == (0, 10)


def test_bloom_filters_drop_what_statistics_keep(topics: Topics) -> None:
    row = dict.fromkeys(VALUES)
    commits = [[{**row, "n": n, "s": f"k{n}"}, {**row, "n": 1000 + n, "s": f"m{n}"}] for n in range(10)]
    plain, blooms = table_of(topics, (), commits), table_of(topics, (), commits, frozenset({"n", "s"}))
    for wanted in (EqualTo("n", 500), EqualTo("s", "l"), And(In("n", {500, 600}), NotNull("s")), In("s", {"l", "ka"})):
        assert len(plan_scan(plain.table, plain.snapshot_id, wanted, ManifestCache()).files) == 10
        scan = plan_scan(blooms.table, blooms.snapshot_id, wanted, ManifestCache())
        assert (len(scan.files), scan.skipped_by_statistics, scan.skipped_by_bloom_filter) == (0, 0, 10)
    one = plan_scan(blooms.table, blooms.snapshot_id, Or(EqualTo("n", 1004), EqualTo("s", "l")), ManifestCache())
    assert (len(one.files), one.skipped_by_bloom_filter) == (1, 9)
    either = plan_scan(blooms.table, blooms.snapshot_id, Or(EqualTo("n", 500), IsNull("d")), ManifestCache())
    assert (len(either.files), either.skipped_by_bloom_filter) == (10, 0)


def test_an_empty_table_has_no_files(topics: Topics) -> None:
    topic = topics.create(TopicDefinition(f"t{next(_numbers)}", SCHEMA))
    scan = plan_scan(topic.table, topic.snapshot_id, EqualTo("n", 1), ManifestCache())
    assert (scan.snapshot_id, scan.files, scan.rows) == (None, (), 0)
