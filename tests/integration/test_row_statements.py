"""DELETE and UPDATE of a topic's rows, from the text of the statement to the files."""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import (
    HeadwaterError,
    InvalidStatement,
    QueryCancelled,
    QueryFailed,
    RecordsRejected,
    StatementNotAllowed,
    StorageBusy,
    TopicNotFound,
)
from headwater.observability import failpoints
from headwater.serving.query import Cancel
from headwater.sql.statements import DeleteRows, UpdateRows
from headwater.storage.changes import between
from headwater.storage.scan import ManifestCache
from headwater.storage.writer import local_path
from headwater.topics import rewrite

pytestmark = pytest.mark.spark

_names = (f"rows{number}" for number in itertools.count())


COLUMNS = """
    n BIGINT NOT NULL, s STRING, i INT, g DOUBLE, d DECIMAL(9, 2), at TIMESTAMP, day DATE, u UUID, x FIXED(2),
    tags ARRAY<STRING>, place STRUCT<city: STRING, zip: INT>
"""


def record(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "s": None if n % 5 == 4 else f"s{n % 3}",
        "i": n * 10,
        "g": n / 2,
        "d": f"{n}.25",
        "at": f"2026-01-{n % 28 + 1:02}T00:00:00Z",
        "day": f"2026-01-{n % 28 + 1:02}",
        "u": f"00000000-0000-0000-0000-{n:012}",
        "tags": [f"t{n}"] * (n % 3),
        "place": None if n % 4 == 0 else {"city": f"c{n}", "zip": n},
    }


def make(lake: Lake, *batches: range, rest: str = "", columns: str = COLUMNS) -> str:
    """A topic with a commit per batch, and so with a file per batch and partition."""
    name = next(_names)
    lake.sql(f"CREATE TOPIC {name} ({columns}) {rest}")
    for batch in batches:
        lake.topic(name).append([record(n) for n in batch])
        lake.flush(name)
    return name


def rows(lake: Lake, name: str, order: str = "_offset") -> list[dict[str, Any]]:
    return lake.sql(f"SELECT * FROM {name} ORDER BY {order}").rows()


def numbers(lake: Lake, name: str) -> list[int]:
    return [row["n"] for row in rows(lake, name)]


def files(lake: Lake, name: str) -> set[str]:
    """The live data files; there are no others in the folder, unless a snapshot before had them."""
    table = lake.topics.load(name).table
    return {task.file.file_path for task in table.scan().plan_files()}


def on_disk(lake: Lake, name: str) -> set[str]:
    folder = local_path(lake.topics.load(name).table.location())
    return {f"file://{path}" for path in folder.rglob("*.parquet")}


# -- DELETE ---------------------------------------------------------------------------------------------------------


def test_rows_that_match_are_gone_and_others_as_they_were(lake: Lake) -> None:
    name = make(lake, range(6), range(6, 9), range(9, 12))
    before, old = rows(lake, name), files(lake, name)
    done = lake.sql(f"DELETE FROM {name} WHERE n IN (1, 4, 10)").rows()[0]
    assert rows(lake, name) == [row for row in before if row["n"] not in (1, 4, 10)]
    assert {key: done[key] for key in ("topic", "rows", "files_removed", "files_added")} == {
        "topic": name,
        "rows": 3,
        "files_removed": 2,
        "files_added": done["files_added"],
    }
    topic = lake.topics.load(name)
    assert done["snapshot"] == str(topic.snapshot_id)
    assert topic.committed == 12
    assert len(old & files(lake, name)) == 1  # the file without a matching row is the same file
    snapshot = topic.table.metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary["headwater.deleted-rows"] == "3"
    assert snapshot.summary.operation.value == "overwrite"
    assert lake.sql(f"SELECT count(*) AS c FROM {name}").rows() == [{"c": 9}]
    assert lake.sql(f"SELECT count(*) AS c FROM {name}", engine="spark").rows() == [{"c": 9}]


def test_what_waits_in_the_log_is_covered(lake: Lake) -> None:
    name = make(lake, range(3))
    lake.topic(name).append([record(n) for n in range(3, 6)])
    lake.sql(f"DELETE FROM {name} WHERE n % 2 = 1")
    assert numbers(lake, name) == [0, 2, 4]
    lake.topic(name).append([record(7)])
    assert [row["_offset"] for row in rows(lake, name)] == [0, 2, 4, 6]


def test_no_match_is_no_commit(lake: Lake) -> None:
    name = make(lake, range(3))
    before = lake.topics.load(name).snapshot_id
    for condition in ("n > 100", "n = 1 AND n = 2", "s = NULL", "FALSE", "n > 1 AND s LIKE 'zzz%'"):
        done = lake.sql(f"DELETE FROM {name} WHERE {condition}").rows()[0]
        assert (done["rows"], done["files_removed"], done["files_added"], done["snapshot"]) == (0, 0, 0, None)
    assert lake.topics.load(name).snapshot_id == before
    assert on_disk(lake, name) == files(lake, name)


def test_a_null_condition_keeps_the_row(lake: Lake) -> None:
    name = make(lake, range(6))
    lake.sql(f"DELETE FROM {name} WHERE s <> 's0'")  # null for n = 4
    assert numbers(lake, name) == [0, 3, 4]


def test_every_row_goes_without_a_file_being_written(lake: Lake) -> None:
    name = make(lake, range(3), range(3, 5))
    done = lake.sql(f"DELETE FROM {name} WHERE TRUE").rows()[0]
    assert (done["rows"], done["files_removed"], done["files_added"]) == (5, 2, 0)
    assert numbers(lake, name) == []
    lake.topic(name).append([record(9)])
    lake.flush(name)
    assert [(row["n"], row["_offset"]) for row in rows(lake, name)] == [(9, 5)]


def test_an_empty_topic_is_checked_too(lake: Lake) -> None:
    name = make(lake)
    assert lake.sql(f"DELETE FROM {name} WHERE n = 1").rows()[0]["rows"] == 0
    with pytest.raises(InvalidStatement, match="nope"):
        lake.sql(f"DELETE FROM {name} WHERE nope = 1")


@pytest.mark.parametrize("by", ["days(at), bucket(2, s)", "s", "u", "d", "truncate(5, n)", "months(day)"])
def test_partitioned_topics(lake: Lake, by: str) -> None:
    name = make(lake, range(8), range(8, 12), rest=f"PARTITIONED BY ({by})")
    before = rows(lake, name)
    lake.sql(f"DELETE FROM {name} WHERE n BETWEEN 3 AND 9 AND s = 's1'")
    kept = [row for row in before if not (3 <= row["n"] <= 9 and row["s"] == "s1")]
    assert rows(lake, name) == kept
    lake.sql(f"UPDATE {name} SET s = 'moved', d = d + 1, place = NULL WHERE n < 5")
    expected = [{**row, "s": "moved", "d": row["d"] + 1, "place": None} if row["n"] < 5 else row for row in kept]
    assert rows(lake, name) == expected
    assert lake.sql(f"SELECT * FROM {name} ORDER BY _offset", engine="spark").rows() == expected


@pytest.mark.parametrize(
    ("condition", "gone"),
    [
        ("n = (SELECT max(n) FROM {other})", [2]),
        ("n IN (SELECT n FROM {other} WHERE s = 's1')", [1]),
        ("EXISTS (SELECT 1 FROM {other} AS o WHERE o.n = {name}.n + 4)", []),
        ("n > (SELECT avg(n) FROM {name})", [3, 4, 5]),
        ("n = (SELECT max(n) FROM topic('{name}'))", [5]),
        ("n IN (WITH x AS (SELECT n FROM {other}) SELECT n FROM x)", [0, 1, 2]),
        ("{name}.n = 3 OR `{name}`.`n` = 4", [3, 4]),
        ("size(tags) = 2 AND place.zip > 1", [2, 5]),
        ("n = 1 -- and no more", [1]),
        ("n = /* what? */ 1", [1]),
        ("at < now() - INTERVAL '1' DAY AND n = 0", [0]),
        ("g >= current_timestamp()::double / current_timestamp()::double", [2, 3, 4, 5]),
    ],
)
def test_conditions(lake: Lake, condition: str, gone: list[int]) -> None:
    name, other = make(lake, range(3), range(3, 6)), make(lake, range(2))
    lake.topic(other).append([record(2)])  # stays in the log until the statement asks for it
    lake.sql(f"DELETE FROM {name} WHERE {condition.format(name=name, other=other)}")
    assert numbers(lake, name) == [n for n in range(6) if n not in gone]


MISTAKES: list[tuple[str, type[HeadwaterError], str]] = [
    ("DELETE FROM {name} WHERE nope = 1", InvalidStatement, "nope"),
    ("DELETE FROM {name} WHERE n", InvalidStatement, "is not a boolean"),
    ("DELETE FROM {name} WHERE NULL", InvalidStatement, "is not a boolean"),
    ("UPDATE {name} SET i = 1 WHERE 'true'", InvalidStatement, "is not a boolean"),
    ("DELETE FROM {name} WHERE rand() < 0.5", InvalidStatement, "cannot be changed by chance"),
    ("DELETE FROM {name} WHERE n IN (SELECT n FROM {name} WHERE rand() < 2)", InvalidStatement, "by chance"),
    ("DELETE FROM {name} WHERE uuid() = s", InvalidStatement, "by chance"),
    ("DELETE FROM {name} WHERE max(n) = n", InvalidStatement, "statement is not valid"),
    ("DELETE FROM {name} WHERE row_number() OVER (ORDER BY n) = 1", InvalidStatement, "statement is not valid"),
    ("DELETE FROM {name} WHERE explode(tags) = 'x'", InvalidStatement, "statement is not valid"),
    ("DELETE FROM {name} WHERE n IN (SELECT n FROM nowhere)", TopicNotFound, 'topic "nowhere" does not exist'),
    ("DELETE FROM {name} WHERE reflect('java.lang.System', 'exit', 1) = 1", StatementNotAllowed, "reflect"),
    ("DELETE FROM {name} WHERE n IN (SELECT n FROM csv.`/etc/passwd`)", StatementNotAllowed, "relation"),
    ("DELETE FROM {name} WHERE _file LIKE '%'", InvalidStatement, "_file"),
    ("DELETE FROM {name} WHERE __file LIKE '%'", InvalidStatement, "__file"),
    ("DELETE FROM {name} WHERE 1 / (n - 2) > 0", QueryFailed, "Division by zero"),
    ("UPDATE {name} SET nope = 1 WHERE TRUE", InvalidStatement, 'column "nope" does not exist in topic'),
    ("UPDATE {name} SET _offset = 1 WHERE TRUE", InvalidStatement, 'system column "_offset" cannot be assigned'),
    ("UPDATE {name} SET n = NULL WHERE n = 2", RecordsRejected, 'Column "n": required field is null'),
    ("UPDATE {name} SET i = 'abc' WHERE n = 2", InvalidStatement, 'value for column "i" has a type that does not fit'),
    ("UPDATE {name} SET i = 3000000000 WHERE n = 2", QueryFailed, "overflow"),
    ("UPDATE {name} SET d = 99999999 WHERE n = 2", QueryFailed, "cannot be represented"),
    ("UPDATE {name} SET u = 'no' WHERE n = 2", RecordsRejected, 'Column "u"'),
    ("UPDATE {name} SET i = rand() WHERE n = 2", InvalidStatement, "by chance"),
    ("UPDATE {name} SET i = sum(n) WHERE n = 2", InvalidStatement, "statement is not valid"),
    ("UPDATE {name} SET i = row_number() OVER (ORDER BY n) WHERE n = 2", InvalidStatement, "statement is not valid"),
    ("UPDATE {name} SET i = missing WHERE n = 2", InvalidStatement, "missing"),
    ("DELETE FROM nowhere WHERE TRUE", TopicNotFound, 'topic "nowhere" does not exist'),
]


@pytest.fixture(scope="module")
def untouched(lake: Lake) -> str:
    return make(lake, range(3), range(3, 6))


@pytest.mark.parametrize(("text", "error", "message"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_mistakes_are_named_and_change_nothing(
    lake: Lake, untouched: str, text: str, error: type[HeadwaterError], message: str
) -> None:
    before = lake.topics.load(untouched).snapshot_id
    with pytest.raises(error) as raised:
        lake.sql(text.format(name=untouched))
    assert message in f"{raised.value.message} {raised.value.detail}"
    assert "__" not in f"{raised.value.message} {raised.value.detail} {raised.value.hint}".replace("`__file`", "")
    assert "line" not in (raised.value.detail or "")
    assert lake.topics.load(untouched).snapshot_id == before
    assert on_disk(lake, untouched) == files(lake, untouched)


@pytest.mark.parametrize("condition", ["TRUE) OR (FALSE", "TRUE) AS a, (TRUE", "TRUE UNION SELECT 1", "TRUE; DROP"])
def test_a_condition_is_one_expression(lake: Lake, untouched: str, condition: str) -> None:
    before = numbers(lake, untouched)
    with pytest.raises((InvalidStatement, StatementNotAllowed)):
        lake.execute(DeleteRows(untouched, condition))
    assert numbers(lake, untouched) == before


# -- UPDATE ---------------------------------------------------------------------------------------------------------


def test_columns_take_new_values_where_the_condition_holds(lake: Lake) -> None:
    name = make(lake, range(4), range(4, 8))
    before, old = rows(lake, name), files(lake, name)
    done = lake.sql(
        f"UPDATE {name} SET i = i + n, s = upper(coalesce(s, 'none')), g = 1 / (n - 1), tags = array('a', NULL), "
        "place = named_struct('city', 'x', 'zip', 7), at = TIMESTAMP '2020-01-01 00:00:00Z', day = day + 1, "
        "u = '11111111-1111-1111-1111-111111111111', x = X'0102', d = 1 WHERE n IN (2, 3)"
    ).rows()[0]
    assert (done["rows"], done["files_removed"]) == (2, 1)
    after = rows(lake, name)
    assert [row["n"] for row in after] == list(range(8))
    for was, now in zip(before, after, strict=True):
        if was["n"] not in (2, 3):
            assert now == was
            continue
        assert (now["_offset"], now["_timestamp"], now["n"]) == (was["_offset"], was["_timestamp"], was["n"])
        assert (now["i"], now["s"], now["g"]) == (was["i"] + was["n"], f"S{was['n'] % 3}", 1 / (was["n"] - 1))
        assert (now["tags"], now["place"], str(now["d"])) == (["a", None], {"city": "x", "zip": 7}, "1.00")
        assert (now["at"], now["day"]) == (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), was["day"] + dt.timedelta(days=1))
        assert (str(now["u"]), now["x"]) == ("11111111-1111-1111-1111-111111111111", b"\x01\x02")
    assert len(old & files(lake, name)) == 1


def test_values_see_the_row_as_it_was(lake: Lake) -> None:
    name = make(lake, range(2))
    lake.sql(f"UPDATE {name} SET n = i, i = n, s = (SELECT CAST(max(i) AS STRING) FROM {name}) WHERE TRUE")
    assert [(row["n"], row["i"], row["s"]) for row in rows(lake, name)] == [(0, 0, "10"), (10, 1, "10")]


def test_the_statement_values_of_other_surfaces(lake: Lake) -> None:
    name = make(lake, range(3))
    lake.execute(UpdateRows(name, (("i", "5"),), None))
    assert [row["i"] for row in rows(lake, name)] == [5, 5, 5]
    lake.execute(DeleteRows(name, None))
    assert numbers(lake, name) == []
    with pytest.raises(InvalidStatement, match='system column "_timestamp" cannot be assigned'):
        lake.execute(UpdateRows(name, (("_timestamp", "now()"),), None))


# -- with others ----------------------------------------------------------------------------------------------------


def during(monkeypatch: pytest.MonkeyPatch, point: str, work: Callable[[], None]) -> list[int]:
    """Do `work` the first time the rewrite comes to `point`; how often it came there."""
    passed: list[int] = []

    def reached(name: str) -> None:
        if name == point:
            passed.append(1)
            if len(passed) == 1:
                work()

    monkeypatch.setattr(rewrite, "failpoint", reached)
    return passed


@pytest.mark.parametrize("point", ["rewrite.planned", "rewrite.found", "rewrite.files_written"])
def test_what_is_produced_meanwhile_is_neither_lost_nor_touched(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    name = make(lake, range(4))

    def produce() -> None:
        lake.topic(name).append([record(1), record(8)])
        lake.flush(name)
        lake.topic(name).append([record(9)])

    passed = during(monkeypatch, point, produce)
    lake.sql(f"DELETE FROM {name} WHERE n = 1")
    assert [(row["n"], row["_offset"]) for row in rows(lake, name)] == [(0, 0), (2, 2), (3, 3), (1, 4), (8, 5), (9, 6)]
    assert len(passed) == 1  # it did not have to start over


def test_a_rewrite_of_the_same_file_meanwhile_starts_it_over(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4))

    def other() -> None:
        lake.sql(f"UPDATE {name} SET i = -1 WHERE n <= 1")

    passed = during(monkeypatch, "rewrite.files_written", other)
    lake.sql(f"DELETE FROM {name} WHERE n = 1 OR i = 30")
    assert [(row["n"], row["i"]) for row in rows(lake, name)] == [(0, -1), (2, 20)]
    assert len(passed) == 3  # this one twice, and the other
    # What is left: the first file, which the first snapshot has, the other's, and this one's; not the abandoned one.
    assert len(on_disk(lake, name)) == 3


def test_many_statements_at_once(lake: Lake) -> None:
    name = make(lake, range(8), range(8, 16))
    failures: list[BaseException] = []

    def change(text: str) -> None:
        try:
            lake.sql(text)
        except BaseException as failed:
            failures.append(failed)

    texts = [
        f"DELETE FROM {name} WHERE n % 4 = 0",
        f"UPDATE {name} SET i = i + 1 WHERE n % 4 = 1",
        f"UPDATE {name} SET i = i + 1 WHERE n % 4 <> 0",
    ]
    threads = [threading.Thread(target=change, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    for n in range(16, 20):
        lake.topic(name).append([record(n)])
        lake.flush(name)
    for thread in threads:
        thread.join()
    assert failures == []
    found = {row["n"]: row["i"] for row in rows(lake, name)}
    assert {n: i for n, i in found.items() if n < 16} == {
        n: n * 10 + (2 if n % 4 == 1 else 1) for n in range(16) if n % 4
    }
    assert {17, 18, 19} <= found.keys()  # 16 came before the DELETE, or after it
    offsets = [row["_offset"] for row in rows(lake, name)]
    assert len(set(offsets)) == len(offsets)


def test_a_topic_dropped_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4))
    during(monkeypatch, "rewrite.files_written", lambda: lake.sql(f"DROP TOPIC {name}"))
    with pytest.raises(TopicNotFound):
        lake.sql(f"DELETE FROM {name} WHERE n = 1")


@pytest.mark.parametrize("point", [name for name in failpoints.NAMES if name.startswith("rewrite.")])
def test_every_step_can_fail_and_be_tried_again(lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    name = make(lake, range(4))
    before = rows(lake, name)

    def fail(reached: str) -> None:
        if reached == point:
            raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(rewrite, "failpoint", fail)
        with pytest.raises(StorageBusy, match=f'disk is full, change of topic "{name}" stopped'):
            lake.sql(f"DELETE FROM {name} WHERE n = 1")
    done = point == "rewrite.after_commit"
    assert rows(lake, name) == [row for row in before if not (done and row["n"] == 1)]
    lake.sql(f"DELETE FROM {name} WHERE n = 1")
    assert rows(lake, name) == [row for row in before if row["n"] != 1]


def test_now_is_one_moment(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between finding and writing does not show in what is written."""
    name = make(lake, range(4))
    paused: list[dt.datetime] = []

    def pause() -> None:
        paused.append(dt.datetime.now(dt.UTC))
        time.sleep(0.2)

    during(monkeypatch, "rewrite.found", pause)
    lake.sql(f"UPDATE {name} SET at = now(), s = CAST(current_timestamp() AS STRING) WHERE n > 1 AND at < now()")
    (moment,) = {row["at"] for row in rows(lake, name) if row["n"] > 1}
    assert moment < paused[0]
    assert len({row["s"] for row in rows(lake, name) if row["n"] > 1}) == 1


def test_it_can_be_cancelled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4))
    before, cancel = lake.topics.load(name).snapshot_id, Cancel()
    during(monkeypatch, "rewrite.planned", cancel)
    with pytest.raises(QueryCancelled):
        lake.execute(DeleteRows(name, "n = 1"), cancel)
    assert lake.topics.load(name).snapshot_id == before
    assert on_disk(lake, name) == files(lake, name)


def test_changes_of_a_statement_are_those_of_its_rows(lake: Lake) -> None:
    name = make(lake, range(4), range(4, 6))
    start = lake.topics.load(name).snapshot_id
    lake.sql(f"DELETE FROM {name} WHERE n = 1")
    topic = lake.topics.load(name)
    changes = between(topic.table, start, topic.snapshot_id, ManifestCache())
    assert (sum(file.record_count for file in changes.added), sum(file.record_count for file in changes.removed)) == (
        3,
        4,
    )


def test_only_files_that_may_match_are_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make(lake, range(4), range(4, 8), range(8, 12))
    asked: list[int] = []
    inner = rewrite.plan_scan

    def scan(*arguments: Any) -> Any:
        found = inner(*arguments)
        asked.append(len(found.files))
        return found

    monkeypatch.setattr(rewrite, "plan_scan", scan)
    lake.sql(f"DELETE FROM {name} WHERE n = 5")
    lake.sql(f"DELETE FROM {name} WHERE n + 0 = 6")
    lake.sql(f"DELETE FROM {name} WHERE n = (SELECT min(n) FROM {name})")
    assert asked == [1, 3, 3]
    assert numbers(lake, name) == [1, 2, 3, 4, 7, 8, 9, 10, 11]


def test_a_topic_that_spark_cannot_read(lake: Lake) -> None:
    name = make(lake, columns="n BIGINT, t TIME")
    with pytest.raises(QueryFailed, match=f'topic "{name}" cannot be read by Spark'):
        lake.sql(f"DELETE FROM {name} WHERE n = 1")
