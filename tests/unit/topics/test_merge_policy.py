"""`evolution = 'merge'`: what records have more than the topic becomes columns, or the request is refused."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.engine import Lake
from headwater.errors import HeadwaterError, RecordsRejected
from headwater.topics.evolution_merge import MAX_FIELDS, MAX_NEW
from headwater.topics.produce import Format, Source


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql(
            "CREATE TOPIC t (id BIGINT NOT NULL, s STRUCT<p: INT>, l ARRAY<STRUCT<x: INT>>, "
            "m MAP<STRING, STRUCT<v: INT>>) WITH (evolution = 'merge')"
        )
        yield opened


def types(lake: Lake) -> dict[str, str]:
    known = ("id", "s", "l", "m")
    found = lake.topic("t").describe()["columns"]
    return {each["name"]: each["type"] for each in found if each["name"] not in known and each["name"][0] != "_"}


def send(lake: Lake, format: Format, *blocks: Any) -> None:
    lake.append("t", list(blocks), format, Source("test"))


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps(rows).encode()


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows)


ROWS: list[dict[str, Any]] = [
    {"id": 1, "flag": True, "n": 1, "mixed": 1, "text": "a", "nothing": None, "empty": [], "hollow": {"x": None}},
    {"id": 2, "n": 2**40, "mixed": 1.5, "tags": ["a", None], "place": {"city": "x", "at": [1, 2.5]}, "void": {}},
    {"id": 3, "place": {"zip": "0"}, "s": {"p": 1, "q": "new"}, "l": [{"x": 1}, {"y": True}], "m": {"k": {"w": 1}}},
]
ADDED = {
    "flag": "BOOLEAN",
    "n": "BIGINT",
    "mixed": "DOUBLE",
    "text": "STRING",
    "tags": "ARRAY<STRING>",
    "place": "STRUCT<city: STRING, at: ARRAY<DOUBLE>, zip: STRING>",
}


@pytest.mark.parametrize("format", ["json", "ndjson", "rows"])
def test_records_bring_their_columns(lake: Lake, format: Format) -> None:
    block: Any = as_json(ROWS) if format == "json" else as_lines(ROWS) if format == "ndjson" else ROWS
    send(lake, format, block)
    assert list(types(lake).items()) == list(ADDED.items())
    columns = {each["name"]: each["type"] for each in lake.topic("t").describe()["columns"]}
    assert columns["s"] == "STRUCT<p: INT, q: STRING>"
    assert columns["l"] == "ARRAY<STRUCT<x: INT, y: BOOLEAN>>"
    assert columns["m"] == "MAP<STRING, STRUCT<v: INT, w: BIGINT>>"
    found = lake.sql("SELECT id, n, mixed, place, s, l FROM t ORDER BY id").rows()
    assert [row["mixed"] for row in found] == [1.0, 1.5, None]
    assert found[1]["place"] == {"city": "x", "at": [1.0, 2.5], "zip": None}
    assert found[2]["l"] == [{"x": 1, "y": None}, {"x": None, "y": True}]
    assert len(lake.topic("t").schemas()) == 2
    send(lake, format, block)  # fits by now
    assert len(lake.topic("t").schemas()) == 2


def test_arrow_brings_its_own_types(lake: Lake) -> None:
    table = pa.table(
        {
            "id": [1],
            "small": pa.array([1], pa.int16()),
            "at": pa.array([0], pa.timestamp("ns", "UTC")),
            "local": pa.array([0], pa.timestamp("us")),
            "day": pa.array([0], pa.date32()),
            "d": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
            "f": pa.array([1.5], pa.float32()),
            "st": pa.array([{"a": 1, "b": ["x"]}]),
            "null": pa.nulls(1),
            "nulls": pa.array([None], pa.int64()),
        }
    )
    lake.topic("t").append(table)
    assert types(lake) == {
        "small": "INT",
        "at": "TIMESTAMP",
        "local": "TIMESTAMP_NTZ",
        "day": "DATE",
        "d": "DECIMAL(9, 2)",
        "f": "FLOAT",
        "st": "STRUCT<a: BIGINT, b: ARRAY<STRING>>",
    }
    assert lake.sql("SELECT d, f FROM t").rows() == [{"d": Decimal("1.25"), "f": 1.5}]


def test_csv_tells_types_by_all_cells(lake: Lake) -> None:
    send(lake, "csv", b"id,zip,n,x,flag,word,empty\n1,01234,5,1.5,true,a,\n2,1,6,2,false,,\n")
    assert types(lake) == {"zip": "STRING", "n": "BIGINT", "x": "DOUBLE", "flag": "BOOLEAN", "word": "STRING"}
    assert lake.sql("SELECT zip, n, x, flag, word FROM t ORDER BY id").rows()[0] == {
        "zip": "01234",
        "n": 5,
        "x": 1.5,
        "flag": True,
        "word": "a",
    }


def test_csv_tells_types_by_all_blocks(lake: Lake) -> None:
    send(lake, "csv", b"id,a,b,c\n1,5,1,\n", b"id,a,b,c\n2,05,1.5,x\n")
    assert types(lake) == {"a": "STRING", "b": "DOUBLE", "c": "STRING"}
    assert [row["a"] for row in lake.sql("SELECT a FROM t ORDER BY id").rows()] == ["5", "05"]


def test_python_values_bring_their_types(lake: Lake) -> None:
    lake.topic("t").append(
        [{"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "day": dt.date(2026, 1, 1), "raw": b"x"}]
    )
    assert types(lake) == {"at": "TIMESTAMP", "day": "DATE", "raw": "BINARY"}


def test_blocks_of_one_request_are_one_change(lake: Lake) -> None:
    send(lake, "ndjson", b'{"id": 1, "a": 1}\n', b'{"id": 2, "b": "x", "a": 2.5}\n')
    assert types(lake) == {"a": "DOUBLE", "b": "STRING"}
    assert len(lake.topic("t").schemas()) == 2


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "conflict": ([{"id": 1, "c": 1}, {"id": 2, "c": "x"}], 'field "c" cannot become a column'),
    "shapes": ([{"id": 1, "c": [1]}, {"id": 2, "c": {"a": 1}}], 'field "c" cannot become a column'),
    "name": ([{"id": 1, "Bad Name": 1}], 'field "Bad Name" cannot become a column'),
    "inner name": ([{"id": 1, "c": {"Bad": 1}}], 'field "c" cannot become a column'),
    "huge": ([{"id": 1, "c": 2**70}], 'field "c" cannot become a column'),
    "decimal": ([{"id": 1, "c": Decimal("1.5")}], 'field "c" cannot become a column'),
    "many": ([{"id": 1, **{f"c{n}": n for n in range(MAX_NEW + 1)}}], f"cannot take {MAX_NEW + 1} new fields"),
    "existing type": ([{"id": "x", "c": 1}], "rejected 1 of 2"),
    "system": ([{"id": 1, "_offset": 1, "c": 1}], "rejected 1 of 2"),
    "required": ([{"c": 1}], "rejected 1 of 2"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_as_a_whole(lake: Lake, why: str) -> None:
    records, message = REFUSED[why]
    with pytest.raises(RecordsRejected, match=message):
        lake.topic("t").append([{"id": 0}, *records])
    assert lake.sql("SELECT count(*) AS c FROM t").rows() == [{"c": 0}]
    assert len(lake.topic("t").schemas()) == 1


def test_the_hint_says_which_name_to_use(lake: Lake) -> None:
    with pytest.raises(RecordsRejected) as refused:
        lake.topic("t").append([{"id": 1, "Bad Name": 1}])
    assert refused.value.hint == 'Use "bad_name".'


def test_there_is_an_end_to_columns(lake: Lake) -> None:
    lake.topic("t").alter(f"ADD COLUMN s.many STRUCT<{', '.join(f'f{n}: INT' for n in range(MAX_FIELDS - 12))}>")
    lake.topic("t").append([{"id": 1, "one": 1}])
    with pytest.raises(RecordsRejected, match="cannot take 2 new fields"):
        lake.topic("t").append([{"id": 1, "two": 1, "three": 1}])
    lake.topic("t").append([{"id": 1, "one": 1}])


def test_unfit_records_become_dead_letters_and_the_others_bring_columns(lake: Lake) -> None:
    lake.topic("t").alter("SET (on_invalid = 'dead_letter')")
    ack = lake.topic("t").append([{"id": 1, "a": 1}, {"id": 2, "Bad": 1}, {"id": "x", "b": 2}])
    assert (ack.rows, ack.dead) == (1, 2)
    assert list(types(lake)) == ["a", "b"]


def test_strict_topics_stay_strict(lake: Lake) -> None:
    lake.topic("t").alter("SET (evolution = 'strict')")
    with pytest.raises(RecordsRejected, match="rejected 1 of 1"):
        lake.topic("t").append([{"id": 1, "a": 1}])
    assert types(lake) == {}


def test_producers_that_bring_the_same_columns_agree(lake: Lake) -> None:
    outcomes: list[object] = []

    def produce(n: int) -> None:
        try:
            outcomes.append(lake.topic("t").append([{"id": n, "shared": n, f"own{n}": n, "st": {f"f{n}": n}}]))
        except HeadwaterError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each for each in outcomes if isinstance(each, HeadwaterError)] == []
    assert {"shared", "st", *(f"own{n}" for n in range(6))} == set(types(lake))
    found = lake.sql("SELECT id, shared, st FROM t").rows()
    assert all(row["shared"] == row["id"] == row["st"][f"f{row['id']}"] for row in found)
    assert len(found) == 6


def test_a_retry_of_what_brought_columns_is_known(lake: Lake) -> None:
    records = [{"id": 1, "a": 1}]
    first = lake.topic("t").append(records, producer="p", sequence=1)
    again = lake.topic("t").append(records, producer="p", sequence=1)
    assert again.repeated and again.offsets == first.offsets
