"""ALTER TOPIC on a lake without Spark: rows in files and in the log, producers that are under way, and who reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile

from headwater.engine import Lake
from headwater.errors import Conflict, HeadwaterError, IdempotencyMismatch, InvalidSchema, SchemaChanged, StaleCommit
from headwater.storage.commit import Change, MadeFor, commit
from headwater.storage.decode import ignore_size
from headwater.storage.writer import Target
from headwater.topics import ingest
from headwater.topics.log import Entry
from headwater.topics.produce import Source


def write_in_process(_: object, log_path: Path, into: Target, entries: Sequence[Entry]) -> list[DataFile]:
    return ingest.write_entries(log_path, into, entries)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(ingest, "write_files", write_in_process)
    monkeypatch.setattr(Lake, "spark", None)
    with Lake.init(tmp_path / "lake") as opened:
        opened.sql(
            "CREATE TOPIC t (id INT NOT NULL, name STRING, s STRUCT<p: INT, q: STRING>, l ARRAY<STRUCT<x: INT>>)"
        )
        yield opened


def rows(lake: Lake, columns: str = "*", **options: Any) -> list[dict[str, Any]]:
    found = lake.sql(f"SELECT {columns} FROM t ORDER BY _offset", **options).rows()
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


def test_old_rows_in_files_and_in_the_log_are_read_in_the_new_columns(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a"}])
    topic.flush()
    topic.append([{"id": 2, "name": "b"}])
    topic.alter("RENAME COLUMN name TO title, ADD COLUMN note STRING FIRST", "ALTER COLUMN id TYPE BIGINT")
    topic.append([{"note": "n", "id": 2**40}])
    expected = [
        {"note": None, "id": 1, "title": "a"},
        {"note": None, "id": 2, "title": "b"},
        {"note": "n", "id": 2**40, "title": None},
    ]
    assert rows(lake, "note, id, title") == expected
    topic.flush()
    assert rows(lake, "note, id, title", tail=False) == expected
    assert lake.sql("SELECT count(*) AS c, min(id) AS low, max(id) AS high FROM t").rows() == [
        {"c": 3, "low": 1, "high": 2**40}
    ]
    assert lake.sql("SELECT title FROM t WHERE id = 2").rows() == [{"title": "b"}]
    assert lake.sql("SELECT id FROM t WHERE note IS NULL ORDER BY id").rows() == [{"id": 1}, {"id": 2}]
    assert lake.sql("SELECT id FROM t WHERE note IS NOT NULL").rows() == [{"id": 2**40}]


def test_a_name_given_again_does_not_bring_old_values_back(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "old"}])
    topic.flush()
    topic.append([{"id": 2, "name": "old"}])
    topic.alter("DROP COLUMN name", "ADD COLUMN name STRING")
    assert rows(lake, "id, name") == [{"id": 1, "name": None}, {"id": 2, "name": None}]
    topic.alter("RENAME COLUMN name TO other", "ADD COLUMN name INT")
    topic.append([{"id": 3, "name": 7, "other": "o"}])
    topic.flush()
    assert rows(lake, "name, other") == [
        {"name": None, "other": None},
        {"name": None, "other": None},
        {"name": 7, "other": "o"},
    ]


def test_names_that_change_places_keep_their_values(lake: Lake) -> None:
    lake.sql("CREATE TOPIC swap (a BIGINT, b BIGINT) WITH (bloom_columns = 'a, b')")
    topic = lake.topic("swap")
    topic.append([{"a": n, "b": n + 1000} for n in range(100)])
    topic.flush()
    topic.alter("RENAME COLUMN a TO c, RENAME COLUMN b TO a, RENAME COLUMN c TO b")
    assert lake.sql("SELECT a, b FROM swap WHERE a = 1007").rows() == [{"a": 1007, "b": 7}]
    assert lake.sql("SELECT a, b FROM swap WHERE b = 7").rows() == [{"a": 1007, "b": 7}]
    assert lake.sql("SELECT a FROM swap WHERE a = 7").rows() == []
    assert lake.topics.load("swap").definition.options.bloom_columns[0][0] == "b"


def test_bloom_filters_of_a_narrower_type_are_not_asked(lake: Lake) -> None:
    lake.sql("CREATE TOPIC wide (a INT, d DECIMAL(5, 2)) WITH (bloom_columns = 'a, d')")
    topic = lake.topic("wide")
    topic.append([{"a": n, "d": f"{n}.25"} for n in range(100)])
    topic.flush()
    topic.alter("ALTER COLUMN a TYPE BIGINT, ALTER COLUMN d TYPE DECIMAL(20, 2)")
    assert lake.sql("SELECT a FROM wide WHERE a = 42").rows() == [{"a": 42}]
    assert lake.sql("SELECT a FROM wide WHERE d = 42.25").rows() == [{"a": 42}]
    assert lake.sql("SELECT a FROM wide WHERE a = 4200000000").rows() == []


def test_decimals_of_the_log_are_partitioned_wherever_they_lie(lake: Lake) -> None:
    lake.sql("CREATE TOPIC d (id INT, d DECIMAL(15, 2)) PARTITIONED BY (bucket(2, d))")
    for n in range(8):
        lake.topic("d").append([{"id": n, "d": f"{each}.25"} for each in range(n + 1)])
    lake.topic("d").flush()
    assert lake.sql("SELECT count(*) AS c FROM d WHERE d = 3.25").rows() == [{"c": 5}]


def test_wrapped_partition_values_of_a_narrower_type_are_found(lake: Lake) -> None:
    lake.sql("CREATE TOPIC w (a INT) PARTITIONED BY (truncate(1000, a))")
    topic = lake.topic("w")
    topic.append([{"a": -(2**31)}, {"a": 5}])
    topic.flush()
    topic.alter("ALTER COLUMN a TYPE BIGINT")
    assert lake.sql(f"SELECT a FROM w WHERE a = {-(2**31)}").rows() == [{"a": -(2**31)}]
    assert lake.sql("SELECT a FROM w WHERE a < 0").rows() == [{"a": -(2**31)}]


def test_fields_inside_a_column_are_sparks_to_read_while_old_files_are_there(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "s": {"p": 1, "q": "x"}}])
    topic.flush()
    topic.alter("RENAME COLUMN s.p TO r")
    plan = "\n".join(row["plan"] for row in lake.sql("EXPLAIN SELECT s FROM t").rows())
    assert 'engine: spark (fields inside column "s" were altered since some files were written)' in plan
    assert rows(lake, "id") == [{"id": 1}]
    topic.append([{"id": 2, "s": {"r": 2, "q": "y"}}])
    topic.flush()
    assert lake.sql("SELECT s FROM t WHERE _offset > 0").rows() == [{"s": {"r": 2, "q": "y"}}]


def test_fields_inside_a_column_in_the_log(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "s": {"p": 1, "q": "x"}, "l": [{"x": 1}, None]}, {"id": 2}])
    topic.alter("RENAME COLUMN s.p TO r", "ADD COLUMN s.n STRING FIRST", "ALTER COLUMN l.element.x TYPE BIGINT")
    assert rows(lake, "s, l") == [
        {"s": {"n": None, "r": 1, "q": "x"}, "l": [{"x": 1}, None]},
        {"s": None, "l": None},
    ]


def test_fields_inside_a_column_that_only_became_wider_are_read_by_duckdb(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "s": {"p": 7, "q": "x"}, "l": [{"x": 3}]}])
    topic.flush()
    topic.alter("ALTER COLUMN s.p TYPE BIGINT", "ALTER COLUMN l.element.x TYPE BIGINT", "RENAME COLUMN s TO r")
    topic.append([{"id": 2, "r": {"p": 2**40}, "l": [{"x": 2**40}]}])
    topic.flush()
    found = lake.sql("SELECT r.p AS p, r, l[0].x AS x FROM t ORDER BY id", engine="duckdb").rows()
    assert [row["p"] for row in found] == [7, 2**40]
    assert found[0]["r"] == {"p": 7, "q": "x"}
    assert lake.sql("SELECT id FROM t WHERE r.p = 7", engine="duckdb").rows() == [{"id": 1}]


def test_the_past_is_read_in_its_own_columns(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a", "s": {"p": 1}}])
    topic.flush()
    before = lake.topics.load("t").snapshot_id
    topic.alter("RENAME COLUMN name TO title", "ADD COLUMN name INT", "RENAME COLUMN s.p TO r")
    topic.append([{"id": 2, "name": 5}])
    topic.flush()
    assert lake.sql(f"SELECT id, name, s.p FROM t VERSION AS OF {before}").rows() == [{"id": 1, "name": "a", "p": 1}]
    assert rows(lake, "id, name, title") == [{"id": 1, "name": None, "title": "a"}, {"id": 2, "name": 5, "title": None}]


# -- NOT NULL -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [True, False])
def test_not_null_is_refused_while_a_row_has_none(lake: Lake, flushed: bool) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a"}, {"id": 2}])
    if flushed:
        topic.flush()
    for change in ("ALTER COLUMN name SET NOT NULL", "ALTER COLUMN s SET NOT NULL"):
        for dry_run in (True, False):
            with pytest.raises(Conflict, match="cannot become NOT NULL"):
                topic.alter(change, dry_run=dry_run)
    assert len(topic.schemas()) == 1
    topic.append([{"id": 3}])


@pytest.mark.parametrize("flushed", [True, False])
def test_not_null_once_every_row_has_one(lake: Lake, flushed: bool) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a", "s": {"p": 1}}, {"id": 2, "name": "b"}])
    if flushed:
        topic.flush()
    topic.alter("ALTER COLUMN name SET NOT NULL", "ALTER COLUMN s.p SET NOT NULL")
    with pytest.raises(HeadwaterError, match="rejected 1 of 1"):
        topic.append([{"id": 3}])
    topic.append([{"id": 3, "name": "c"}])
    topic.flush()
    assert rows(lake, "id, name")[-1] == {"id": 3, "name": "c"}


@pytest.mark.parametrize("change", ["s.n", "l.element.n"])
def test_not_null_inside_waits_for_files_and_entries_that_know_the_field(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """No row breaks it, where the struct or list is not there; but no reader would take such files and entries."""
    monkeypatch.setattr(lake._topic_statements._evolver, "_matches_any", lambda *_: False)
    topic = lake.topic("t")
    topic.append([{"id": 1}, {"id": 2, "l": []}])
    topic.alter(f"ADD COLUMN {change} INT")
    with pytest.raises(Conflict, match="cannot become NOT NULL") as waiting:
        topic.alter(f"ALTER COLUMN {change} SET NOT NULL")
    assert waiting.value.hint == "Commit them first: FLUSH t."
    topic.flush()
    topic.alter(f"ALTER COLUMN {change} SET NOT NULL")
    topic.append([{"id": 3}])
    topic.flush()
    assert [row["id"] for row in rows(lake, "id")] == [1, 2, 3]
    topic.alter("ADD COLUMN s.m INT, ADD COLUMN l.element.m INT")
    with pytest.raises(Conflict, match="cannot become NOT NULL") as stored:
        topic.alter("ALTER COLUMN s.m SET NOT NULL")
    assert stored.value.hint == "Rewrite them first: OPTIMIZE t FULL."


def test_not_null_of_a_column_that_the_statement_adds(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("ADD COLUMN x INT", "ALTER COLUMN x SET NOT NULL")
    topic.append([{"id": 1, "x": 1}])
    with pytest.raises(Conflict, match="cannot become NOT NULL"):
        topic.alter("ADD COLUMN y INT", "ALTER COLUMN y SET NOT NULL")
    topic.flush()
    with pytest.raises(Conflict, match="cannot become NOT NULL"):
        topic.alter("ADD COLUMN y INT", "ALTER COLUMN y SET NOT NULL")


def test_a_producer_that_decoded_before_cannot_store_a_null_after(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is decoded, then the column becomes NOT NULL, then it is stored: it is decoded again, and refused."""
    decoded, altered = threading.Event(), threading.Event()
    append = lake.log.append

    def delayed(request: Any) -> Any:
        decoded.set()
        altered.wait(60)
        return append(request)

    outcome: list[object] = []

    def produce(records: list[dict[str, Any]] | Iterator[Any]) -> None:
        try:
            outcome.append(lake.append("t", records, "rows", Source("test")))
        except HeadwaterError as error:
            outcome.append(error)

    monkeypatch.setattr(lake.log, "append", delayed)
    for blocks in ([[{"id": 1}]], iter([[{"id": 1}]])):
        producer = threading.Thread(target=produce, args=(blocks,))
        producer.start()
        assert decoded.wait(60)
        lake.topic("t").alter("ALTER COLUMN name SET NOT NULL")
        altered.set()
        producer.join()
        lake.topic("t").alter("ALTER COLUMN name DROP NOT NULL")
        decoded.clear()
        altered.clear()
    first, second = outcome
    assert "rejected 1 of 1" in str(first)
    assert isinstance(second, HeadwaterError)
    assert rows(lake) == []


def test_a_body_that_cannot_be_read_again_is_sent_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topics.load("t")
    lake.log.guard(ingest.log_topic(topic))
    producer = lake._intake._producer
    monkeypatch.setattr(producer, "_topics", type("Stale", (), {"load": lambda *_: topic})())
    decoded = producer._read(topic, [[{"id": 1}]], "rows", ignore_size)
    monkeypatch.undo()
    lake.topic("t").alter("ADD COLUMN x INT")
    with pytest.raises(SchemaChanged):
        producer._store(topic, decoded, Source("test"))
    assert rows(lake) == []


def test_rows_of_before_come_back_in_the_columns_of_now(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1}])
    topic.flush()
    before = lake.topics.load("t").snapshot_id
    topic.alter("ADD COLUMN late INT")
    topic.append([{"id": 2, "name": "b"}])
    topic.flush()
    lake.sql(f"ROLLBACK TOPIC t TO VERSION {before}")
    assert rows(lake, "id, name, late") == [{"id": 1, "name": None, "late": None}]


def test_a_rollback_to_before_not_null_is_refused(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a"}])
    topic.flush()
    before = lake.topics.load("t").snapshot_id
    topic.alter("ALTER COLUMN name SET NOT NULL")
    with pytest.raises(Conflict, match="cannot be rolled back"):
        lake.sql(f"ROLLBACK TOPIC t TO VERSION {before}")
    topic.alter("ALTER COLUMN name DROP NOT NULL")
    lake.sql(f"ROLLBACK TOPIC t TO VERSION {before}")
    assert rows(lake, "id, name") == [{"id": 1, "name": "a"}]


# -- commits that were planned before --------------------------------------------------------------------------------


def test_files_for_other_columns_are_not_committed(lake: Lake) -> None:
    topic = lake.topics.load("t")
    load = lambda: lake.topics.tables.load_for_commit(topic.table_name)  # noqa: E731
    for change in ("ADD COLUMN x INT", "SET PARTITIONED BY (bucket(2, id))"):
        before = MadeFor.of(lake.topics.load("t").table)
        lake.topic("t").alter(change)
        with pytest.raises(StaleCommit, match="altered meanwhile"):
            commit(load, Change(made_for=before), lambda _: None)


def test_an_ingest_that_was_planned_before_starts_over(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic("t")
    topic.append([{"id": 1, "name": "a"}])
    altered: list[bool] = []

    def altering(_: object, log_path: Path, into: Target, entries: Sequence[Entry]) -> list[DataFile]:
        files = ingest.write_entries(log_path, into, entries)
        if not altered:
            altered.append(True)
            topic.alter("RENAME COLUMN name TO title", "SET PARTITIONED BY (bucket(2, id))")
        return files

    monkeypatch.setattr(ingest, "write_files", altering)
    topic.flush()
    assert rows(lake, "id, title", tail=False) == [{"id": 1, "title": "a"}]
    live = lake.topics.load("t").table.scan().plan_files()
    assert [task.file.spec_id for task in live] == [lake.topics.load("t").table.spec().spec_id]


# -- the log ---------------------------------------------------------------------------------------------------------


def test_a_retry_after_an_alter_is_known_by_its_sequence(lake: Lake) -> None:
    topic = lake.topic("t")
    first = topic.append([{"id": 1}], producer="p", sequence=1)
    with pytest.raises(IdempotencyMismatch):
        topic.append([{"id": 2}], producer="p", sequence=1)
    topic.alter("ADD COLUMN x INT")
    again = topic.append([{"id": 1}], producer="p", sequence=1)
    assert (again.repeated, again.offsets) == (True, first.offsets)
    assert len(rows(lake)) == 1


def test_entries_without_ids_are_those_of_the_first_columns(lake: Lake) -> None:
    """As they were stored before topics could be altered."""
    topic = lake.topics.load("t")
    from headwater.storage.decode import RecordDecoder
    from headwater.topics.log import Append, Part

    decoded = RecordDecoder(topic.definition.schema).rows([{"id": 1, "name": "a", "s": {"p": 1}}])
    lake.log.append(Append((Part(ingest.log_topic(topic), tuple(decoded.table.to_batches())),)))
    assert rows(lake, "id, name") == [{"id": 1, "name": "a"}]
    lake.topic("t").alter(
        "RENAME COLUMN name TO title", "DROP COLUMN id", "ADD COLUMN name STRING", "RENAME COLUMN s TO r"
    )
    assert rows(lake, "title, name, r") == [{"title": "a", "name": None, "r": {"p": 1, "q": None}}]
    lake.topic("t").flush()
    assert rows(lake, "title, name", tail=False) == [{"title": "a", "name": None}]


# -- options, dead letters, history -----------------------------------------------------------------------------------


def test_options_and_layout_are_set(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("SET (retention = '7 days', compression = 'gzip')", "SET ORDERED BY (id DESC)")
    about = topic.describe()
    assert (about["options"]["retention"], about["options"]["compression"]) == ("7 days", "gzip")
    definition = lake.topics.load("t").definition
    assert [str(key) for key in definition.ordering] == ["id DESC NULLS LAST"]
    topic.alter("SET CLUSTERED BY ZORDER (id, name)")
    definition = lake.topics.load("t").definition
    assert (definition.ordering, definition.clustering) == ((), ("id", "name"))
    topic.alter("SET UNORDERED")
    assert lake.topics.load("t").definition.clustering == ()
    assert len(topic.schemas()) == 1


def test_a_topic_that_is_to_keep_dead_letters_gets_them(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("SET (on_invalid = 'dead_letter')")
    assert topic.append([{"id": 1}, {"id": "x"}]).dead == 1
    topic.alter("RENAME COLUMN id TO key")
    (dead,) = lake.sql("SELECT reason, raw FROM t__dead").rows()
    assert dead["raw"] == '{"id":"x"}'
    with pytest.raises(HeadwaterError, match="cannot be altered"):
        lake.sql("ALTER TOPIC t__dead ADD COLUMN x INT")
    lake.sql("ALTER TOPIC t__dead SET (retention = '30 days')")


def test_a_partition_column_of_stored_files_stays(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("SET PARTITIONED BY (bucket(2, id))")
    topic.append([{"id": 1, "name": "a"}])
    topic.flush()
    topic.alter("SET UNPARTITIONED")
    topic.append([{"id": 2, "name": "b"}])
    topic.flush()
    with pytest.raises(InvalidSchema, match="cannot be dropped"):
        topic.alter("DROP COLUMN id")
    assert rows(lake, "id, name") == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert lake.sql("SELECT name FROM t WHERE id = 1").rows() == [{"name": "a"}]
    topic.alter("SET PARTITIONED BY (bucket(2, id))")
    assert lake.topics.load("t").table.spec().spec_id == 1


def test_the_name_of_a_partition_field_is_only_its_own_columns(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("SET PARTITIONED BY (name)")
    topic.alter("RENAME COLUMN name TO title")
    with pytest.raises(InvalidSchema, match="name of a partition field"):
        topic.alter("ADD COLUMN name STRING")
    topic.alter("RENAME COLUMN title TO name")


def test_the_history_of_columns(lake: Lake) -> None:
    topic = lake.topic("t")
    topic.alter("ADD COLUMN x INT", "RENAME COLUMN s.p TO r", "ALTER COLUMN id TYPE BIGINT")
    topic.alter("DROP COLUMN x", "ALTER COLUMN name SET NOT NULL", "REORDER COLUMNS (name)")
    topic.alter("SET (retention = '1 day')")
    first, second, third = topic.schemas()
    assert [each["current"] for each in (first, second, third)] == [False, False, True]
    assert second["changes"] == ["id is BIGINT instead of INT", "renamed s.p to s.r", "added x INT"]
    assert third["changes"] == ["dropped x INT", "name is NOT NULL", "reordered: name, id, s, l"]
    assert None not in (second["since"], second["snapshot"], third["since"])
    assert str(lake.topics.load("t").snapshot_id) != third["snapshot"]


def test_a_dry_run_changes_nothing(lake: Lake) -> None:
    before = lake.topics.load("t").table.metadata_location
    done = lake.topic("t").alter("ADD COLUMN x INT", "SET (on_invalid = 'dead_letter')", dry_run=True)
    assert [each["effect"] for each in done["changes"]] == [
        'column "x" is added',
        "options are set: on_invalid",
    ]
    assert lake.topics.load("t").table.metadata_location == before
    assert not lake.topics.exists("t__dead")


def test_altering_at_the_same_time_makes_all_changes(lake: Lake) -> None:
    def alter(n: int) -> None:
        lake.topic("t").alter(f"ADD COLUMN c{n} INT")

    threads = [threading.Thread(target=alter, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topic = lake.topics.load("t")
    assert {f"c{n}" for n in range(6)} <= set(topic.columns.column_names)
    assert len(set(topic.schema.field_ids)) == len(topic.schema.field_ids)


def test_another_process_notices_new_columns(lake: Lake) -> None:
    with Lake.open(lake.paths.root) as other:
        other.topic("t").append([{"id": 1}])
        lake.topic("t").alter("ADD COLUMN x INT")
        other.topic("t").append([{"id": 2, "x": 5}])
        assert other.sql("SELECT x FROM t ORDER BY id").rows() == [{"x": None}, {"x": 5}]


def test_arrow_rows_of_the_new_columns(lake: Lake) -> None:
    lake.topic("t").alter("ADD COLUMN x INT FIRST")
    lake.topic("t").append(pa.table({"id": [1], "x": [2]}))
    assert rows(lake, "x, id") == [{"x": 2, "id": 1}]
