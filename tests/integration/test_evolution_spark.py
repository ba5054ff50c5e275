"""Altered topics on Spark: old files in new columns, mixed partitionings, views that go on incrementally."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import Conflict, ViewInUse

pytestmark = pytest.mark.spark

_names = (f"evolved{number}" for number in itertools.count())


def both(lake: Lake, query: str) -> list[dict[str, Any]]:
    """What both engines answer, which is the same."""
    spark = lake.sql(query, engine="spark").rows()
    assert lake.sql(query, engine="duckdb").rows() == spark
    return spark


def test_old_files_nested_fields_and_the_tail(lake: Lake) -> None:
    name = next(_names)
    lake.sql(
        f"CREATE TOPIC {name} (id INT NOT NULL, name STRING, f FLOAT, d DECIMAL(5, 2), s STRUCT<p: INT, q: STRING>, "
        "l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>)"
    )
    topic = lake.topic(name)
    topic.append(
        [{"id": 1, "name": "a", "f": 0.5, "d": "1.25", "s": {"p": 1, "q": "z"}, "l": [{"x": 1}], "m": {"k": 1}}]
    )
    topic.flush()
    topic.alter(
        "RENAME COLUMN name TO title, ALTER COLUMN id TYPE BIGINT, ALTER COLUMN f TYPE DOUBLE",
        "ALTER COLUMN d TYPE DECIMAL(12, 2), ADD COLUMN name BIGINT FIRST, DROP COLUMN m",
        "RENAME COLUMN s.p TO r, ADD COLUMN s.n STRING FIRST, ALTER COLUMN l.element.x TYPE BIGINT",
        "ADD COLUMN l.element.y STRING",
    )
    # Before anything else is committed: the statement made a snapshot that is read in the new columns.
    flat = f"SELECT name, id, title, f, d FROM {name} ORDER BY id"
    assert both(lake, flat)[0]["title"] == "a"
    topic.append([{"id": 2**40, "name": 7, "s": {"n": "new", "r": 2**20}, "l": [{"x": 2**40, "y": "y"}]}])
    both(lake, flat)
    topic.flush()
    both(lake, flat)
    topic.append([{"id": 3}])
    nested = lake.sql(f"SELECT s, l FROM {name} ORDER BY _offset").rows()
    assert nested == [
        {"s": {"n": None, "r": 1, "q": "z"}, "l": [{"x": 1, "y": None}]},
        {"s": {"n": "new", "r": 2**20, "q": None}, "l": [{"x": 2**40, "y": "y"}]},
        {"s": None, "l": None},
    ]
    assert lake.sql(f"SELECT s.n FROM {name} WHERE s.r = 1").rows() == [{"n": None}]


def test_partitionings_of_old_and_new_files_together(lake: Lake) -> None:
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} (id INT, region STRING, at TIMESTAMP) PARTITIONED BY (region)")
    topic = lake.topic(name)

    def produce(start: int) -> None:
        topic.append(
            [
                {"id": n, "region": f"r{n % 2}", "at": f"2026-01-{n % 3 + 1:02}T00:00:00Z"}
                for n in range(start, start + 6)
            ]
        )
        topic.flush()

    produce(0)
    topic.alter("SET PARTITIONED BY (days(at), bucket(4, id))")
    produce(10)
    topic.alter("ALTER COLUMN id TYPE BIGINT, RENAME COLUMN region TO area, SET PARTITIONED BY (bucket(8, id))")
    topic.append([{"id": 2**40, "area": "r9", "at": "2026-01-01T00:00:00Z"}])
    topic.flush()
    topic.alter("SET UNPARTITIONED, SET ORDERED BY (id DESC)")
    produce_last = [{"id": 50 + n, "area": "r1"} for n in range(3)]
    topic.append(produce_last)
    topic.flush()
    assert len(lake.topics.load(name).table.metadata.partition_specs) == 4
    for where in ("id = 3", "area = 'r1'", "at < TIMESTAMP '2026-01-02 00:00:00'", f"id = {2**40}", "at IS NULL"):
        assert both(lake, f"SELECT id, area FROM {name} WHERE {where} ORDER BY id"), where
    topic.delete("id = 3 OR id = 12 OR id = 51")
    topic.update({"area": "'moved'"}, "id IN (0, 10)")
    rows = both(lake, f"SELECT id, area FROM {name} ORDER BY id")
    assert [row["id"] for row in rows] == [0, 1, 2, 4, 5, 10, 11, 13, 14, 15, 50, 52, 2**40]
    assert [row["id"] for row in rows if row["area"] == "moved"] == [0, 10]
    files = lake.spark.sql(f"SELECT count(*) AS c FROM lake.topics.{name}.files").collect()
    assert files[0]["c"] > 4


def test_spark_reads_a_table_whose_old_partition_column_is_gone(lake: Lake) -> None:
    """Its files are rewritten first; the old partitioning stays in the table's metadata."""
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} (id INT, region STRING) PARTITIONED BY (region)")
    topic = lake.topic(name)
    topic.append([{"id": 1, "region": "a"}])
    topic.flush()
    topic.alter("SET UNPARTITIONED")
    topic.update({"id": "id + 1"}, "TRUE")
    topic.alter("DROP COLUMN region")
    topic.append([{"id": 5}])
    topic.flush()
    assert both(lake, f"SELECT * FROM {name} ORDER BY id") != []
    assert both(lake, f"SELECT id FROM {name} ORDER BY id") == [{"id": 2}, {"id": 5}]


def test_not_null_of_nested_fields_is_checked_by_a_query(lake: Lake) -> None:
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} (s STRUCT<p: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>)")
    topic = lake.topic(name)
    topic.append([{"s": {"p": 1}, "l": [{"x": 1}], "m": {"a": 1}}, {}, {"l": [None], "m": {}}])
    topic.flush()
    topic.alter(
        "ALTER COLUMN s.p SET NOT NULL, ALTER COLUMN l.element.x SET NOT NULL, ALTER COLUMN m.value SET NOT NULL"
    )
    with pytest.raises(Conflict, match=r'column "l.element"'):
        topic.alter("ALTER COLUMN l.element SET NOT NULL")
    with pytest.raises(Conflict, match='column "s"'):
        topic.alter("ALTER COLUMN s SET NOT NULL")
    rows = lake.sql(f"SELECT * FROM {name} ORDER BY _offset", engine="spark").rows()
    lake.sql(f"OPTIMIZE {name} FULL")  # what is not there has no required field either
    lake.sql(f"UPDATE {name} SET m = m WHERE s IS NULL")
    assert both(lake, f"SELECT * FROM {name} ORDER BY _offset") == rows


def test_rows_from_before_a_column_was_not_null_are_still_read(lake: Lake) -> None:
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} (id INT NOT NULL, v INT, s STRING)")
    topic = lake.topic(name)
    topic.append([{"id": 1}, {"id": 2, "v": 5, "s": "x"}])
    topic.flush()
    before = lake.topics.load(name).snapshot_id
    view = f"{name}_groups"
    lake.sql(f"CREATE MATERIALIZED VIEW {view} AS SELECT v, s, count(*) AS n FROM {name} GROUP BY v, s")
    topic.alter("ADD COLUMN c INT, ADD COLUMN d STRUCT<x: INT>")
    lake.sql(f"UPDATE {name} SET v = coalesce(v, 0), s = coalesce(s, ''), c = 7, d = named_struct('x', 3) WHERE true")
    topic.alter(*(f"ALTER COLUMN {each} SET NOT NULL" for each in ("v", "s", "c", "d", "d.x")))
    now = lake.topics.load(name).snapshot_id
    changes = f"SELECT id, v, s, c, d, _change FROM {name} CHANGES BETWEEN {before} AND {now} ORDER BY id, _change"
    assert [(row["v"], row["s"], row["c"], row["d"]) for row in both(lake, changes)] == [
        (None, None, None, None),
        (0, "", 7, {"x": 3}),
        (5, "x", None, None),
        (5, "x", 7, {"x": 3}),
    ]
    lake.sql(f"UPDATE {name} SET v = 0 WHERE id = 1")
    lake.sql(f"REFRESH MATERIALIZED VIEW {view}")
    assert lake.sql(f"SELECT * FROM {view} ORDER BY v").rows() == [
        {"v": 0, "s": "", "n": 1},
        {"v": 5, "s": "x", "n": 1},
    ]


def test_views_go_on_incrementally_over_altered_topics(lake: Lake) -> None:
    name = next(_names)
    lake.sql(
        f"CREATE TOPIC {name} (id INT NOT NULL, region STRING, amount INT, note STRING, s STRUCT<p: INT>, "
        "u STRUCT<p: INT>)"
    )
    topic = lake.topic(name)
    topic.append([{"id": n, "region": f"r{n % 2}", "amount": n, "note": "x"} for n in range(10)])
    topic.flush()
    totals, every = f"totals_{name}", f"every_{name}"
    lake.create_view(totals, f"SELECT region, SUM(amount) AS total FROM {name} GROUP BY region", refresh="manual")
    lake.create_view(every, f"SELECT * FROM (SELECT id, region, u.p FROM {name}) WHERE id > 2", refresh="manual")
    star = f"star_{name}"
    lake.sql(f"CREATE TOPIC {name}_b (a INT, b STRING)")
    lake.topic(f"{name}_b").append([{"a": 1, "b": "x"}])
    lake.flush(f"{name}_b")
    lake.create_view(star, f"SELECT * FROM {name}_b", refresh="manual")

    for change, column in (
        ("RENAME COLUMN region TO area", "region"),
        ("DROP COLUMN amount", "amount"),
        ("ALTER COLUMN amount TYPE BIGINT", "amount"),
        ("ALTER COLUMN id DROP NOT NULL", "id"),
        ("ADD COLUMN u.q INT", "u"),
        ("RENAME COLUMN u.p TO q", "u"),
    ):
        with pytest.raises(ViewInUse, match="read by materialized views") as refused:
            topic.alter(change)
        assert f'"{column}"' in (refused.value.detail or "")

    # What no view reads may change, while rows wait to be consumed on either side of the change.
    topic.append([{"id": 10, "region": "r0", "amount": 5, "note": "x"}])
    topic.flush()
    topic.alter(
        "RENAME COLUMN note TO remark, DROP COLUMN s, ADD COLUMN extra STRING FIRST, SET PARTITIONED BY (region)"
    )
    topic.append([{"id": 11, "region": "r1", "amount": 7, "extra": "e"}])
    topic.flush()
    topic.delete("id = 4")
    lake.topic(f"{name}_b").alter("ADD COLUMN c INT AFTER a")
    lake.topic(f"{name}_b").append([{"a": 2, "c": 3, "b": "y"}])
    lake.flush(f"{name}_b")
    for view in (totals, every, star):
        (done,) = lake.sql(f"REFRESH MATERIALIZED VIEW {view}").rows()
        assert done["method"] in ("append", "keys"), done
        (checked,) = lake.sql(f"VERIFY MATERIALIZED VIEW {view}").rows()
        assert checked["equal"], checked
    expected = lake.sql(f"SELECT region, SUM(amount) AS total FROM {name} GROUP BY region ORDER BY region").rows()
    assert both(lake, f"SELECT * FROM {totals} ORDER BY region") == expected
    assert both(lake, f"SELECT a, b FROM {star} ORDER BY a") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    # Fresh reads take the tail, whose entries may be older than the columns.
    topic.append([{"id": 12, "region": "r0", "amount": 100, "remark": "t"}])
    topic.alter("RENAME COLUMN remark TO words, ADD COLUMN late INT")
    fresh = lake.sql(f"SELECT region, total FROM mv('{totals}', fresh => true) ORDER BY region").rows()
    assert fresh[0]["total"] == expected[0]["total"] + 100
