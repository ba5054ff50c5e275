"""Time travel on both engines, over rows that were deleted, updated, compacted and rolled back, with views on top."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import Conflict, InvalidStatement, SnapshotGone

pytestmark = pytest.mark.spark

_names = (f"past{number}" for number in itertools.count())

COLUMNS = """
    n BIGINT NOT NULL, s STRING, g DOUBLE, d DECIMAL(9, 2), at TIMESTAMP, u UUID, tags ARRAY<STRING>,
    m MAP<STRING, STRUCT<a: INT, m: MAP<STRING, DOUBLE>>>, place STRUCT<city: STRING, zip: INT>
"""


def record(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "s": None if n % 3 == 0 else f"s{n}",
        "g": math.nan if n % 4 == 0 else n / 2,
        "d": f"{n}.25",
        "at": f"2026-01-{n % 28 + 1:02}T00:00:00Z",
        "u": f"00000000-0000-0000-0000-{n:012}",
        "tags": None if n % 5 == 0 else [f"t{n}", None],
        "m": {"k": {"a": n, "m": {"x": math.nan, "y": -0.0}}, "l": None} if n % 2 else None,
        "place": {"city": f"c{n}", "zip": None} if n % 2 else None,
    }


def make(lake: Lake, *batches: range, columns: str = COLUMNS) -> str:
    """A topic with a commit per batch."""
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} ({columns})")
    for batch in batches:
        add(lake, name, batch)
    return name


def add(lake: Lake, name: str, batch: range) -> None:
    wanted = {column.name for column in lake.topics.load(name).definition.schema.fields}
    rows = ({key: value for key, value in record(n).items() if key in wanted} for n in batch)
    lake.topic(name).append(list(rows))
    lake.flush(name)


def head(lake: Lake, name: str) -> int:
    return int(lake.topics.load(name).snapshot_id or 0)


def both(lake: Lake, query: str) -> list[str]:
    """The rows that both engines answer, in any order."""
    by_duck, by_spark = (sorted(map(repr, lake.sql(query, engine=engine).rows())) for engine in ("duckdb", "spark"))
    assert by_duck == by_spark
    return by_duck


def test_the_past_is_the_same_on_both_engines(lake: Lake) -> None:
    name = make(lake, range(4), columns="n BIGINT, s STRING")
    first, then = head(lake, name), datetime.now(UTC)
    lake.topic(name).tag("v1")
    add(lake, name, range(4, 6))
    lake.sql(f"DELETE FROM {name} WHERE n = 0")
    joined = f"""
        WITH old AS (SELECT * FROM {name} VERSION AS OF 'v1')
        SELECT now.n, old.n AS o, (SELECT count(*) FROM {name} FOR SYSTEM_TIME AS OF '{then:%Y-%m-%d %H:%M:%S.%f}') AS c
        FROM {name} now FULL JOIN old ON now.n = old.n
        WHERE coalesce(now.n, old.n) NOT IN (SELECT n FROM {name} FOR VERSION AS OF {first} WHERE n = 1)"""
    found = both(lake, joined)
    assert len(found) == 5
    assert repr({"n": None, "o": 0, "c": 4}) in found
    counted = f"""
        SELECT a.c, b.c AS d FROM (SELECT count(*) AS c FROM {name} VERSION AS OF 'v1') a,
               (SELECT count(*) AS c FROM {name} TIMESTAMP AS OF '{then}') b"""
    assert both(lake, counted) == [repr({"c": 4, "d": 4})]


def test_the_past_has_the_columns_that_it_had(lake: Lake) -> None:
    name = make(lake, range(2), columns="n INT, s STRING")
    first = head(lake, name)
    lake.sql(f"ALTER TOPIC {name} ADD COLUMN g DOUBLE, RENAME COLUMN s TO note, ALTER COLUMN n TYPE BIGINT")
    lake.topic(name).append([{"n": 2, "note": "z", "g": 0.5}])
    lake.flush(name)
    lake.sql(f"UPDATE {name} SET g = 1.5 WHERE n = 0")
    assert both(lake, f"SELECT n, s FROM {name} VERSION AS OF {first} WHERE s IS NULL OR s > 'a'") == sorted(
        [repr({"n": 0, "s": None}), repr({"n": 1, "s": "s1"})]
    )
    old = lake.sql(f"SELECT * FROM {name} VERSION AS OF {first}", engine="spark")
    assert old.columns == lake.sql(f"SELECT * FROM {name} VERSION AS OF {first}").columns
    changed = both(lake, f"SELECT n, note, g, _change FROM {name} CHANGES BETWEEN {first} AND 'main'")
    assert changed == sorted(
        repr({"n": n, "note": note, "g": g, "_change": kind})
        for n, note, g, kind in (
            (0, None, None, "updated_from"),
            (0, None, 1.5, "updated_to"),
            (2, "z", 0.5, "inserted"),
        )
    )
    assert lake.topic(name).diff(first, "main")["schema_changes"] == [
        "changed n from INT to BIGINT",
        "renamed s to note",
        "added g DOUBLE",
    ]
    lake.topic(name).rollback(first)  # the topic keeps its columns
    assert both(lake, f"SELECT n, note, g FROM {name}") == sorted(
        [repr({"n": 0, "note": None, "g": None}), repr({"n": 1, "note": "s1", "g": None})]
    )
    lake.topic(name).append([{"n": 5, "g": 0.5}])
    asked = f"SELECT n, note, g, _offset FROM {name} WHERE g IS NULL OR g < 1"
    assert len(both(lake, asked)) == 3
    lake.sql(f"DELETE FROM {name} WHERE note IS NULL AND n IN (SELECT n FROM {name} WHERE g IS NULL)")
    assert len(both(lake, asked)) == 2


def test_changes_are_the_same_on_both_engines(lake: Lake) -> None:
    name = make(lake, range(6), range(6, 9))
    points = [head(lake, name)]
    lake.sql(f"UPDATE {name} SET s = 'new', g = 0.0 WHERE n IN (1, 7)")
    points.append(head(lake, name))
    lake.sql(f"DELETE FROM {name} WHERE n IN (2, 8)")
    points.append(head(lake, name))
    lake.sql(f"UPDATE {name} SET s = s WHERE n = 3")  # copies, and changes nothing
    points.append(head(lake, name))
    lake.topic(name).rollback(points[1])
    add(lake, name, range(20, 22))
    points.append(head(lake, name))
    kinds = {}
    for start, end in ((0, 1), (0, 3), (2, 3), (3, 4), (4, 0)):
        rows = both(lake, f"SELECT * FROM {name} CHANGES BETWEEN {points[start]} AND {points[end]}")
        kinds[start, end] = sorted(each for row in rows for each in (row.rsplit("'", 2)[1],))
    assert kinds == {
        (0, 1): ["updated_from"] * 2 + ["updated_to"] * 2,
        (0, 3): ["deleted"] * 2 + ["updated_from"] * 2 + ["updated_to"] * 2,
        (2, 3): [],
        (3, 4): ["inserted"] * 4,
        (4, 0): ["deleted"] * 2 + ["updated_from"] * 2 + ["updated_to"] * 2,
    }
    asked = f"SELECT _change, count(*) AS c FROM {name} CHANGES BETWEEN {points[0]} AND {points[3]} GROUP BY _change"
    assert len(both(lake, asked)) == 3
    diff = lake.topic(name).diff(points[0], points[3])
    assert (diff["inserted"], diff["deleted"], diff["updated"], diff["schema_changes"]) == (0, 2, 2, [])
    made = [each["made_by"] for each in lake.topic(name).snapshots()]
    assert made == ["ingest", "update", "delete", "update", "ingest", "ingest"]


def test_an_update_that_was_rolled_back_is_picked(lake: Lake) -> None:
    name = make(lake, range(3), columns="n BIGINT, s STRING")
    before = head(lake, name)
    lake.sql(f"UPDATE {name} SET s = 'x' WHERE n = 1")
    updated = head(lake, name)
    add(lake, name, range(3, 5))
    added = head(lake, name)
    lake.sql(f"DELETE FROM {name} WHERE n = 4")
    deleted = head(lake, name)
    lake.topic(name).rollback(before)
    with pytest.raises(Conflict, match="cannot be picked") as refused:  # the file that it rewrote is not there yet
        lake.topic(name).cherry_pick(deleted)
    assert refused.value.hint is not None and str(added) in refused.value.hint
    for snapshot in (added, deleted, updated):
        lake.topic(name).cherry_pick(snapshot)
    assert both(lake, f"SELECT n, s FROM {name} CHANGES BETWEEN {deleted} AND {head(lake, name)}") == []
    assert lake.sql(f"SELECT n FROM {name} WHERE s = 'x' OR n > 2 ORDER BY n").rows() == [{"n": 1}, {"n": 3}]
    rows = lake.spark.read.table(f"lake.topics.{name}").count()  # Iceberg's own reader agrees
    assert rows == 4


def test_views_follow_a_rollback_and_the_plan_says_how(lake: Lake) -> None:
    name = make(lake, range(6), columns="n BIGINT, s STRING")
    sums, top, above = next(_names), next(_names), next(_names)
    lake.create_view(
        sums, f"SELECT n % 2 AS k, count(*) AS c, sum(n) AS t FROM {name} GROUP BY n % 2", refresh="on_query"
    )
    lake.create_view(top, f"SELECT n % 2 AS k, max(n) AS m FROM {name} GROUP BY n % 2", refresh="manual")
    lake.create_view(above, f"SELECT sum(c) AS c FROM {sums}", refresh="manual")
    first = head(lake, name)
    add(lake, name, range(6, 9))
    for view in (above, top):
        lake.view(view).refresh()
    views = {each["view"]: each for each in lake.topic(name).rollback(first, dry_run=True)["views"]}
    assert {each: (views[each]["method"], views[each]["through"]) for each in views} == {
        sums: ("append", None),
        top: ("keys", None),
        above: (None, sums),
    }
    lake.topic(name).rollback(first)
    # A view that is refreshed before it is read is, although no snapshot is newer than the one that it has.
    assert lake.sql(f"SELECT sum(c) AS c FROM {sums}").rows() == [{"c": 6}]
    for view in (above, top):
        done = {each["view"]: each["method"] for each in lake.view(view).refresh()}
        assert lake.view(view).verify()["equal"]
    assert done[top] == "keys"
    assert lake.sql(f"SELECT c FROM {above}").rows() == [{"c": 6}]
    listed = lake.sql(f"SHOW SNAPSHOTS OF {sums}").rows()
    assert {each["made_by"] for each in listed} >= {"refresh (append)", "refresh (full)"}
    with pytest.raises(InvalidStatement, match="changes of materialized view"):
        lake.sql(f"SELECT * FROM {sums} CHANGES BETWEEN {listed[1]['snapshot']} AND {listed[0]['snapshot']}")
    with pytest.raises(InvalidStatement, match="a fixed version of a source"):
        lake.create_view(next(_names), f"SELECT * FROM {name} VERSION AS OF 'main'")
    old = head(lake, name)
    snapshot = int(lake.views.load(top).snapshot_id or 0)
    lake.create_view(top, f"SELECT count(*) AS c FROM {name}", or_replace=True, refresh="manual")
    with pytest.raises(SnapshotGone, match="cannot be read any more"):
        lake.sql(f"SELECT * FROM {top} VERSION AS OF {snapshot}")
    assert head(lake, name) == old
