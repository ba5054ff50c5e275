"""The tables that both engines read in the differential tests: few rows, every type, values they might disagree on."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from headwater.storage.schemas import arrow_schema

UTC = dt.UTC
NAN, INF = float("nan"), float("inf")

_STRUCT = StructType(
    NestedField(101, "a", IntegerType()),
    NestedField(102, "B", StringType()),
    NestedField(103, "n", StructType(NestedField(104, "z", DoubleType()), NestedField(105, "t", TimestamptzType()))),
)
_LINE = StructType(NestedField(115, "sku", StringType()), NestedField(116, "qty", IntegerType()))


def _schema(columns: Sequence[tuple[str, IcebergType]]) -> Schema:
    return Schema(*(NestedField(number, name, of) for number, (name, of) in enumerate(columns, 1)))


EVENTS = _schema(
    [
        ("id", IntegerType()),
        ("b", BooleanType()),
        ("i", IntegerType()),
        ("k", IntegerType()),
        ("l", LongType()),
        ("m", LongType()),
        ("f", FloatType()),
        ("d", DoubleType()),
        ("x", DoubleType()),
        ("p", DecimalType(10, 2)),
        ("q", DecimalType(20, 4)),
        ("w", DecimalType(38, 6)),
        ("s", StringType()),
        ("c", StringType()),
        ("bin", BinaryType()),
        ("fx", FixedType(4)),
        ("dt", DateType()),
        ("ts", TimestamptzType()),
        ("tn", TimestampType()),
        ("st", _STRUCT),
        ("arr", ListType(110, IntegerType(), element_required=False)),
        ("tags", ListType(111, StringType(), element_required=False)),
        ("mp", MapType(112, StringType(), 113, IntegerType(), value_required=False)),
        ("u", UUIDType()),
        ("lines", ListType(114, _LINE, element_required=False)),
        ("zero", DoubleType()),
        ("frac", DecimalType(5, 5)),
        ("lim", DecimalType(38, 10)),
    ]
)
PEOPLE = _schema(
    [
        ("k", IntegerType()),
        ("name", StringType()),
        ("score", DecimalType(12, 3)),
        ("ratio", DoubleType()),
        ("born", DateType()),
        ("seen", TimestamptzType()),
    ]
)
SCHEMAS = {"events": EVENTS, "people": PEOPLE, "nothing": EVENTS}

_BOOLS = [True, False, None]
_INTS = [0, 1, -1, 7, 100, -100, 2**31 - 1, -(2**31), None, 5, 2, 3]
_SMALL = [1, 2, 3, 4, None, 5, 1, 2]
_LONGS = [0, 1, -1, 2**63 - 1, -(2**63), None, 2**53 + 1, 10, 1_000_000_000_007]
_MODEST = [10, -20, 30, None, 4_000_000_000, 7, 0]
_FLOATS = [0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, None, 0.1, 3.4e38, 1e-45]
_DOUBLES = [0.0, -0.0, NAN, 1.5, INF, -INF, None, 0.1, 2.675, 1.0000000000000002, -7.5, 1e308, 5e-324]
_PLAIN = [1.0, 2.5, -3.75, 10.125, None, 0.0, 2.675, 1.005, -1234.565, 99.995]
_PRICES = ["0.00", "1.00", "-1.00", "19.99", "99999999.99", "-99999999.99", None, "0.01", "2.50", "3.33"]
_AMOUNTS = ["0.0000", "1.2345", "-1.2345", "9999999999999999.9999", None, "0.0001", "2.5000", "-0.0050", "123456.7890"]
_WIDE = ["0.000000", "1.500000", "-99999999999999999999999999999999.999999", None, "12.345678"]
_ZEROS = [0.0, 0.0, -0.0, 1.5, -0.0, None, NAN]
_FRACTIONS = ["0.00000", "0.50000", "-0.50000", None, "0.99999", "-0.00001"]
_LIMITS = ["9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999", "1.5000000000", None]
_LIMITS += ["-1234567890123456789012345678.1234567891", "-0.0000000001"]
_STRINGS = [
    "",
    "a",
    "A",
    "b",
    "abc",
    "Abc",
    "  pad  ",
    "a%b",
    "a_b",
    "ünïcödé",
    "日本語",
    "😀 smile",
    None,
    "a\tb",
    "it's",
]
_STRINGS += ["straße", "İstanbul", "ΑΣ", "e\u0301", "a\\b", "zz", '"quoted"', "line\nbreak", "\u00a0nbsp\u00a0"]
_CATEGORIES = ["red", "green", "blue", None, "Red", "red"]
_BINARIES = [b"", b"\x00", b"abc", b"\xff\xfe", None]
_FIXED = [b"\x00\x00\x00\x00", b"abcd", b"\xff\xff\xff\xff", None]
_DATES = [
    "1970-01-01",
    "1969-12-31",
    "2024-02-29",
    "2026-01-01",
    "1900-01-01",
    "9999-12-31",
    None,
    "1583-01-01",
    "2026-01-31",
]
_TIMES = ["1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.789012", "2026-01-01 00:00:00"]
_TIMES += [
    "2026-01-01 23:59:59.999999",
    "1901-03-04 05:06:07.000008",
    None,
    "2026-03-29 01:30:00",
    "2025-12-31 23:59:60"[:-2] + "59",
]
_LISTS = [[], [1], [1, 2, 3], [None], None, [3, None, 1], [-(2**31), 2**31 - 1]]
_TAGS = [["x"], [], None, ["x", "y"], [None, "z"], [""]]
_MAPS = [[("a", 1)], [], None, [("a", None), ("b", 2)]]
_LINES = [[], [{"sku": "a", "qty": 1}], None, [{"sku": None, "qty": 2}, {"sku": "b", "qty": None}], [None]]
_NAMES = ["ann", "bob", "", None, "Çelik", "dan", "eve"]


def _date(text: str | None) -> dt.date | None:
    return None if text is None else dt.date.fromisoformat(text)


def _time(text: str | None, zone: dt.tzinfo | None) -> dt.datetime | None:
    return None if text is None else dt.datetime.fromisoformat(text).replace(tzinfo=zone)


def _number(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _struct(row: int) -> dict[str, Any] | None:
    inner = None if row % 5 == 0 else {"z": _DOUBLES[row % 13], "t": _time(_TIMES[row % 9], UTC)}
    return None if row % 7 == 3 else {"a": _INTS[row % 12], "B": _STRINGS[row % len(_STRINGS)], "n": inner}


def _event(row: int) -> dict[str, Any]:
    def pick(values: Sequence[Any]) -> Any:
        return values[row % len(values)]

    return {
        "id": row,
        "b": pick(_BOOLS),
        "i": pick(_INTS),
        "k": pick(_SMALL),
        "l": pick(_LONGS),
        "m": pick(_MODEST),
        "f": pick(_FLOATS),
        "d": pick(_DOUBLES),
        "x": pick(_PLAIN),
        "p": _number(pick(_PRICES)),
        "q": _number(pick(_AMOUNTS)),
        "w": _number(pick(_WIDE)),
        "s": pick(_STRINGS),
        "c": pick(_CATEGORIES),
        "bin": pick(_BINARIES),
        "fx": pick(_FIXED),
        "dt": _date(pick(_DATES)),
        "ts": _time(pick(_TIMES), UTC),
        "tn": _time(pick(_TIMES[::-1]), None),
        "st": _struct(row),
        "arr": pick(_LISTS),
        "tags": pick(_TAGS),
        "mp": pick(_MAPS),
        "u": None if row % 6 == 5 else uuid.UUID(int=row * 0x1234567890ABCDEF1234567).bytes,
        "lines": pick(_LINES),
        "zero": pick(_ZEROS),
        "frac": _number(pick(_FRACTIONS)),
        "lim": _number(pick(_LIMITS)),
    }


def _person(row: int) -> dict[str, Any]:
    return {
        "k": [1, 2, 2, None, 9, 3, 100][row],
        "name": _NAMES[row],
        "score": _number(["1.500", "-2.250", None, "0.000", "1000.125", "3.333", "99.999"][row]),
        "ratio": [0.5, NAN, None, -0.0, 0.0, INF, 2.0][row],
        "born": _date(_DATES[row]),
        "seen": _time(_TIMES[row], UTC),
    }


def _table(schema: Schema, rows: Iterable[dict[str, Any]]) -> pa.Table:
    arrow = arrow_schema(schema)
    return pa.Table.from_pylist(list(rows), schema=arrow)


def tables() -> dict[str, pa.Table]:
    """The tables by name. Small row groups let wrong pruning by statistics show itself."""
    return {
        "events": _table(EVENTS, map(_event, range(48))),
        "people": _table(PEOPLE, map(_person, range(7))),
        "nothing": _table(EVENTS, []),
    }


def write(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Writes each table as (DuckDB's, Spark's) file: a uuid in Parquet is what Iceberg shows Spark as a string."""
    files = {}
    for name, table in tables().items():
        ours, theirs = folder / f"{name}.parquet", folder / f"{name}_spark.parquet"
        pq.write_table(table, ours, row_group_size=7)
        pq.write_table(as_spark_shows(table), theirs, row_group_size=7)
        files[name] = (ours, theirs)
    return files


def as_spark_shows(table: pa.Table) -> pa.Table:
    if "u" not in table.column_names:
        return table
    texts = [None if value is None else str(value) for value in table["u"].to_pylist()]
    return table.set_column(table.column_names.index("u"), "u", pa.array(texts, pa.string()))
