"""What people and programs send to a lake, right and wrong: statements, records, bodies and command lines.

Statements come from a grammar whose leaves are odd on purpose, and are then damaged a little. Nothing here knows what a
right answer would be; `test_only_own_errors.py` asks only that every wrong one is told in Headwater's own words.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

COLUMNS = """
    id BIGINT, i INT, d DOUBLE, f FLOAT, p DECIMAL(9, 2), w DECIMAL(38, 10), r DECIMAL(5, 5), s STRING, b BOOLEAN,
    dt DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, u UUID, raw BINARY, st STRUCT<a: INT, n: STRUCT<z: STRING>>,
    arr ARRAY<INT>, m MAP<STRING, INT>
"""
TOPIC = "events"

# A rule's alternatives; {name} is another rule. An alternative that stands twice is chosen twice as often.
RULES: dict[str, list[str]] = {
    "statement": ["{query}"] * 6 + ["{ddl}"] * 3 + ["{other}"] * 2,
    "query": [
        "SELECT {items} FROM {source}{where}{group}{order}{limit}",
        "SELECT {items} FROM {source}{where}{group}{order}{limit}",
        "SELECT {items}",
        "EXPLAIN {query}",
        "EXPLAIN ANALYZE {query}",
        "WITH q AS ({query}) SELECT * FROM q{limit}",
        "SELECT {expr} FROM events UNION ALL SELECT {expr} FROM events",
        "SELECT {expr} AS x FROM events e {join} JOIN events o ON {condition}",
        "VALUES ({literal}, {literal})",
    ],
    "join": ["", "LEFT", "FULL OUTER", "LEFT SEMI", "CROSS", "NATURAL"],
    "source": [
        "events",
        "events",
        "events",
        "topic('events')",
        "events VERSION AS OF {literal}",
        "events TIMESTAMP AS OF {literal}",
        "mv({literal})",
        "({query})",
        "{name}",
        "events CHANGES BETWEEN {literal} AND {literal}",
        "TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' HOUR)",
        "headwater.topics",
        "events__dead",
    ],
    "items": ["*", "{expr}", "{expr} AS v", "{expr}, {expr}", "count(*), {aggregate}", "DISTINCT {expr}"],
    "where": ["", " WHERE {condition}", " WHERE {condition}"],
    "group": ["", "", " GROUP BY {expr}", " GROUP BY 1", " GROUP BY ROLLUP({column}) HAVING {condition}"],
    "order": ["", " ORDER BY {expr} DESC NULLS LAST", " ORDER BY 9"],
    "limit": ["", "", " LIMIT {literal}", " LIMIT 3 OFFSET {literal}"],
    "aggregate": ["sum({expr})", "avg({expr})", "min({expr})", "max(DISTINCT {expr})", "count({expr}, {expr})"],
    "condition": [
        "{column} {sign} {literal}",
        "{column} {sign} {literal}",
        "{column} IN ({literal}, {literal})",
        "{column} BETWEEN {literal} AND {literal}",
        "{column} IS NOT NULL",
        "{column} LIKE {literal}",
        "({condition}) OR NOT ({condition})",
        "{condition} AND {condition}",
        "startswith({column}, {literal})",
        "{expr}",
    ],
    "sign": ["=", "<>", "<", "<=", ">", ">=", "<=>"],
    "column": [
        "id",
        "i",
        "d",
        "f",
        "p",
        "w",
        "r",
        "s",
        "b",
        "dt",
        "ts",
        "tn",
        "u",
        "raw",
        "st",
        "st.a",
        "st.n.z",
        "arr",
        "m",
        "_offset",
        "_timestamp",
        "{name}",
    ],
    "expr": [
        "{column}",
        "{column}",
        "{literal}",
        "({expr} {operator} {expr})",
        "CAST({expr} AS {type})",
        "{function}({expr})",
        "{function}({expr}, {expr})",
        "CASE WHEN {condition} THEN {expr} ELSE {expr} END",
        "{expr} IS NULL",
        "-{expr}",
        "{aggregate}",
        "row_number() OVER (PARTITION BY {column} ORDER BY {column})",
        "(SELECT {aggregate} FROM events)",
        "arr[{literal}]",
        "m[{literal}]",
        "st.{name}",
    ],
    "operator": ["+", "-", "*", "/", "%", "div", "||", "AND", "<", "="],
    "function": [
        "abs",
        "round",
        "floor",
        "sqrt",
        "length",
        "upper",
        "concat",
        "substring",
        "year",
        "date_trunc",
        "trunc",
        "date_add",
        "datediff",
        "last_day",
        "coalesce",
        "greatest",
        "least",
        "nullif",
        "size",
        "array_contains",
        "unix_micros",
        "lpad",
        "explode",
        "from_json",
        "to_json",
        "rand",
        "uuid",
        "reflect",
    ],
    "literal": [
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "99999999999999999999999999999999999999",
        "1e308",
        "1e99999999999999999999",
        "9007199254740992e0",
        "0.5D",
        "-0.0D",
        "1.5BD",
        "7L",
        "'a'",
        "''",
        "'\ud7ff\U0010ffff'",
        "'%'",
        "NULL",
        "TRUE",
        "DATE '9999-12-31'",
        "DATE '0001-01-01'",
        "DATE '10000-01-01'",
        "DATE 'no'",
        "TIMESTAMP '9999-12-31 23:59:59.999999'",
        "TIMESTAMP '2026-01-01'",
        "TIMESTAMP_NTZ '0001-01-01 00:00:00'",
        "INTERVAL '1' DAY",
        "X'ff00'",
        "X'f'",
        "double('NaN')",
        "'2026-01-01'",
        "'00000000-0000-0000-0000-000000000000'",
        ":p",
        "?",
        "{name}",
    ],
    "type": [
        "INT",
        "BIGINT",
        "DOUBLE",
        "FLOAT",
        "STRING",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "BINARY",
        "UUID",
        "TIME",
        "FIXED({literal})",
        "DECIMAL",
        "DECIMAL(38, 38)",
        "DECIMAL(5, 5)",
        "DECIMAL({literal}, {literal})",
        "ARRAY<{type}>",
        "MAP<{type}, {type}>",
        "STRUCT<a: {type}, a: {type}>",
        "STRUCT<>",
        "VARIANT",
        "{name}",
    ],
    "name": ["x1", "x2", "nothing", "`a b`", "ünï", "_offset", "select", "x" * 300, "`\u0000`", "events", "a.b.c.d"],
    "columns": ["{name} {type}", "{name} {type} NOT NULL, id BIGINT", "id INT, {column} {type}", ""],
    "partition": [
        "",
        "",
        " PARTITIONED BY ({column})",
        " PARTITIONED BY (bucket({literal}, id))",
        " PARTITIONED BY (truncate({literal}, id))",
        " PARTITIONED BY (months({column}), hours({column}))",
        " ORDERED BY ({column} DESC)",
        " CLUSTERED BY ZORDER ({column}, id)",
    ],
    "options": ["", "", " WITH ({option} = {literal})", " WITH ({option} = {literal}, {option} = {literal})"],
    "option": [
        "compression",
        "batch_size",
        "bloom_columns",
        "deduplicate_by",
        "retention",
        "refresh",
        "interval",
        "log",
        "on_invalid",
        "evolution",
        "timestamp_field",
        "target_file_size",
        "no_such_option",
    ],
    "ddl": [
        "CREATE TOPIC {name} ({columns}){partition}{options}",
        "CREATE TOPIC {name} ({columns}){partition}{options}",
        "CREATE TOPIC IF NOT EXISTS {name} ({columns})",
        "CREATE TOPIC {name} LIKE {literal}",
        "DROP TOPIC {name}",
        "DROP TOPIC IF EXISTS {name}",
        "ALTER TOPIC {name} ADD COLUMN {name} {type}",
        "ALTER TOPIC {name} RENAME COLUMN {column} TO {name}",
        "ALTER TOPIC {name} ALTER COLUMN {column} TYPE {type}",
        "ALTER TOPIC {name} DROP COLUMN {column}",
        "ALTER TOPIC {name} SET ({option} = {literal})",
        "ALTER TOPIC {name} SET PARTITIONING ({column})",
        "CREATE MATERIALIZED VIEW {name} AS {query}{options}",
        "CREATE STREAM {name} AS {query}{options}",
        "CREATE STREAM {name} FROM KAFKA {literal}{options}",
        "DROP MATERIALIZED VIEW {name}",
        "DROP STREAM {name}",
        "CREATE TAG {name} ON TOPIC events AT {literal}",
        "CREATE BRANCH {name} ON TOPIC events",
    ],
    "work": [
        "SELECT {items} FROM events{where}{group}{order}{limit}",
        "SELECT {expr} AS x FROM events e {join} JOIN events o ON {condition}",
        "CREATE MATERIALIZED VIEW x1 AS SELECT {items} FROM events{where}{group} WITH (refresh = 'manual')",
        "CREATE MATERIALIZED VIEW x1 AS SELECT {column} AS k, {aggregate} AS a FROM events{where} GROUP BY 1",
        "CREATE MATERIALIZED VIEW x1 AS SELECT {column} AS k, {expr} AS v FROM events{where}",
        "CREATE MATERIALIZED VIEW x1 AS SELECT e.{column} AS x FROM events e {join} JOIN events o ON {condition}",
        "CREATE MATERIALIZED VIEW x1 AS SELECT {column} AS k, count(*) AS n, max(id) AS last FROM events GROUP BY 1",
        "CREATE MATERIALIZED VIEW x1 AS SELECT id, {column} AS v FROM events WHERE {comparison}",
        "SELECT {column} AS k, count(*) AS n FROM events WHERE {comparison} GROUP BY 1",
        "DELETE FROM events WHERE {comparison}",
        "UPDATE events SET i = i + 1 WHERE {comparison}",
        "REFRESH MATERIALIZED VIEW x1",
        "VERIFY MATERIALIZED VIEW x1",
        "EXPLAIN REFRESH MATERIALIZED VIEW x1",
        "SELECT * FROM mv('x1', fresh => true){where}",
        "DROP MATERIALIZED VIEW x1",
        "DELETE FROM events WHERE {condition}",
        "UPDATE events SET {column} = {expr} WHERE {condition}",
        "UPDATE events SET {column} = {literal}",
    ],
    "comparison": [  # these have the types that they need, so that statements get past the analyser
        "id > 0",
        "d >= 0.5D",
        "f = 0",
        "w < 0",
        "p <> 1.25",
        "s LIKE 'a%'",
        "b",
        "dt <= DATE '9999-12-31'",
        "tn > TIMESTAMP_NTZ '2026-01-01 00:00:00'",
        "ts IS NOT NULL",
        "st.n.z = 'z'",
        "m['k'] IS NULL",
        "size(arr) = 2",
    ],
    "other": [
        "DESCRIBE TOPIC {name}",
        "DESCRIBE {name}",
        "SHOW TOPICS",
        "SHOW MATERIALIZED VIEWS LIKE {literal}",
        "SHOW STREAMS",
        "SHOW SNAPSHOTS FOR {name}",
        "SHOW PARQUET STATS FOR {name}",
        "SHOW {name}",
        "ROLLBACK TOPIC events TO SNAPSHOT {literal}",
        "ROLLBACK TOPIC events TO TIMESTAMP {literal}",
        "CHERRY PICK SNAPSHOT {literal} INTO events",
        "DIFF TOPIC events BETWEEN {literal} AND {literal}",
        "REFRESH MATERIALIZED VIEW {name}",
        "VERIFY MATERIALIZED VIEW {name}",
        "OPTIMIZE TOPIC {name}",
        "EXPIRE SNAPSHOTS FOR {name} OLDER THAN {literal}",
        "VACUUM {name}",
        "DELETE FROM {name} WHERE {condition}",
        "UPDATE {name} SET {column} = {expr} WHERE {condition}",
        "INSERT INTO {name} VALUES ({literal})",
        "SET {name} = {literal}",
        "USE {name}",
        "CALL system.{name}()",
        "{name}",
    ],
}
_RULE = re.compile(r"\{(\w+)\}")
_PIECES = [
    "(",
    ")",
    "'",
    '"',
    "`",
    ";",
    "--",
    "/*",
    "\\",
    ",",
    ".",
    "\x00",
    "\ud7ff",
    "\u202e",
    "💧",
    " ",
    "NOT",
    "{",
    "0",
]


@st.composite
def sentences(draw: st.DrawFn, rule: str = "statement", depth: int = 5) -> str:
    """A text that the grammar derives; deep down only short alternatives are taken."""
    alternatives = RULES[rule]
    if depth <= 0:
        alternatives = [each for each in alternatives if "{" not in each] or alternatives[:1]
    text = draw(st.sampled_from(alternatives))
    return _RULE.sub(lambda found: draw(sentences(found[1], depth - 1)), text)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> str:
    """A text with up to three small damages."""
    text = draw(whole)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 8)))
        middle = draw(st.sampled_from([*_PIECES, "", text[start:end] * 2]))
        text = text[:start] + middle + text[end:]
    return text


STATEMENTS = damaged(sentences())
QUERIES = damaged(sentences("query"))
WORK = sentences("work", 4)
"""Statements that Spark runs."""

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 2**130),
    st.sampled_from([2**63 - 1, -(2**63), 2**31, 0, -1]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\udfff" * 3, "\x00", "a" * 15 + "\ud7ff" + "z", "\U0010ffff" * 20, "NaN", "1e5"]),
    st.binary(max_size=20),
    st.decimals(),
    st.sampled_from([Decimal("sNaN"), Decimal("1E+999999"), Decimal("-9999999.99"), Decimal("1e-400")]),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.sampled_from([dt.date.min, dt.date.max, dt.datetime.max, dt.time(1), dt.timedelta(1), uuid.UUID(int=1)]),
    st.sampled_from(["9999-12-31", "0001-01-01", "10000-01-01", "2026-02-30", "9999-12-31T23:59:59.999999+14:00"]),
    st.sampled_from([object(), complex(1, 2), math.nan, math.inf, b"\xff" * 20, {1, 2}, range(3)]),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "n", "z", ""]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = [
    "id",
    "i",
    "d",
    "f",
    "p",
    "w",
    "r",
    "s",
    "b",
    "dt",
    "ts",
    "tn",
    "u",
    "raw",
    "st",
    "arr",
    "m",
    "_offset",
    "nothing",
]
RECORDS: st.SearchStrategy[Any] = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)
ROWS: st.SearchStrategy[Any] = st.lists(RECORDS | VALUES, max_size=4)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Newline-delimited JSON, some of it cut, doubled or not UTF-8."""
    records = draw(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=4), max_size=4))
    data = "\n".join(json.dumps(record) for record in records).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        piece = draw(
            st.sampled_from([b"", b"\xff", b"\xed\xa0\x80", b"\x00", b"{", b"}", b"[", b"]" * 40, b"1e999", b"\n\n"])
        )
        data = data[:at] + piece + data[at + draw(st.integers(0, 4)) :]
    return data


_ARROW_TYPES = [
    pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(), pa.binary(),
    pa.date32(), pa.date64(), pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("s", "Europe/Oslo"), pa.duration("s"),
    pa.decimal128(38, 38), pa.decimal256(76, 0), pa.bool_(), pa.null(), pa.list_(pa.int32()),
    pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32()),
]  # fmt: skip


@st.composite
def arrow_tables(draw: st.DrawFn) -> pa.Table:
    """Columns of any type under any name; their values are the bits that happen to be there."""
    rows = draw(st.integers(0, 3))
    names = draw(st.lists(st.sampled_from(FIELDS), max_size=3))
    columns = []
    for _ in names:
        of = draw(st.sampled_from(_ARROW_TYPES))
        width = of.bit_width if pa.types.is_primitive(of) and not pa.types.is_boolean(of) else 0
        if width:
            bits = draw(st.binary(min_size=rows * width // 8, max_size=rows * width // 8))
            columns.append(pa.Array.from_buffers(of, rows, [None, pa.py_buffer(bits)]))
        else:
            columns.append(pa.nulls(rows, of))
    return pa.table(columns, names=names)


COMMAND_LINES = """
query {query}
query {query} --engine duckdb --csv
query {query} --ndjson --max-rows {literal}
query {query} --json --timeout {literal}
query {query} --explain --no-tail
sql {statement}
sql {statement} --json
topic create {name} {columns}
topic create {name} {columns} --partition-by {column} --option {option}={literal}
topic create {name} --schema {name}
topic describe {name} --json
topic alter {name} {name}
topic drop {name}
topic list
tail {name} --no-follow --from {literal} --where {condition}
tail events --no-follow --columns {column}
produce {name} {name} --format csv
produce events --batch-bytes {literal}
snapshots list {name}
snapshots tag events {name} {literal}
snapshots changes {name} {literal} {literal}
snapshots diff events {literal} {literal}
snapshots rollback events {literal}
parquet stats {name}
mv create {name} {query}
mv describe {name}
mv query {name}
stream create {name} {name}
stream status {name}
maintain {name} --dry-run --only {name}
maintain --history --limit {literal}
{name} {name}
""".strip().splitlines()
_ODD_WORDS = ["--json", "--help", "--quiet", "-C", "", "-", "--", "\ud800", "\udcff.csv", "--engine", "=", "events"]


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """The words of a command line, of which one may be missing or odd."""
    form = draw(st.sampled_from(COMMAND_LINES))
    words = [_RULE.sub(lambda found: draw(sentences(found[1], 3)), word) for word in form.split()]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(words) - 1))
        words[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from([[], *([word] for word in _ODD_WORDS)]))
    return words
