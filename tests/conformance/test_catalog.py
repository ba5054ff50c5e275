"""Every catalog must behave like this. The suite runs once per implementation."""

from __future__ import annotations

import datetime as dt
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from sqlalchemy import event

from headwater.catalog import durable_files, iceberg
from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.metadata import MetadataCache
from headwater.catalog.topics import Topics
from headwater.errors import Corrupt, HeadwaterError, InvalidName, NewerVersion, StorageBusy, TopicExists, TopicNotFound
from headwater.storage.writer import local_path
from headwater.types import TOPICS, Partition, TableName, TopicDefinition, TopicOptions

DEFINITION = TopicDefinition(
    "orders",
    Schema(
        NestedField(1, "n", LongType(), required=True),
        NestedField(2, "who", StringType(), doc="the buyer's name"),
        NestedField(3, "at", TimestamptzType()),
    ),
    (Partition("day", "at"), Partition("bucket", "who", 8)),
    TopicOptions(compression="gzip", compression_level=3, batch_size=5, description="o'rders; --"),
)
PLAIN = TopicDefinition("plain", Schema(NestedField(1, "n", LongType())))

NOW = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)

Opener = Callable[[], Topics]


@pytest.fixture(params=["sqlite"])
def open_topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same catalog as often as one likes, as several processes would."""
    create_catalog_file(tmp_path / "catalog.db", 1.0)
    opened = []

    def another() -> Topics:
        tables = Tables(tmp_path / "catalog.db", tmp_path / "warehouse", 1.0)
        tables.catalog.create_namespace_if_not_exists(TOPICS)
        opened.append(tables)
        return Topics(tables)

    yield another
    for tables in opened:
        tables.close()


@pytest.fixture
def topics(open_topics: Opener) -> Topics:
    return open_topics()


def test_a_definition_comes_back_as_it_went_in(topics: Topics, open_topics: Opener) -> None:
    made = topics.create(DEFINITION)
    for seen in (topics, open_topics()):
        found = seen.load("orders")
        assert found.definition == DEFINITION
        assert (found.id, found.committed, found.snapshot_id) == (made.id, 0, None)
        assert [field.name for field in found.schema.fields] == ["n", "who", "at", "_offset", "_timestamp"]


def test_a_name_is_taken_once(topics: Topics, open_topics: Opener) -> None:
    topics.create(PLAIN)
    for other in (topics, open_topics()):
        with pytest.raises(TopicExists, match='topic "plain" already exists'):
            other.create(PLAIN)


def test_of_many_creators_one_wins(open_topics: Opener) -> None:
    def create(creator: Topics) -> str | None:
        try:
            return creator.create(PLAIN).id
        except TopicExists:
            return None

    creators = [open_topics() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = [each for each in pool.map(create, creators) if each is not None]
    assert len(made) == 1
    assert [creator.load("plain").id for creator in creators] == made * 4


def test_of_many_droppers_one_wins(topics: Topics, open_topics: Opener) -> None:
    def drop(dropper: Topics) -> bool:
        try:
            dropper.drop("plain")
        except TopicNotFound:
            return False
        return True

    topics.create(PLAIN)
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(drop, [open_topics() for _ in range(4)])) == 1
    assert not topics.exists("plain")


def test_an_unknown_topic_is_named_with_a_suggestion(topics: Topics) -> None:
    topics.create(DEFINITION)
    with pytest.raises(TopicNotFound, match='topic "ordres" does not exist') as unknown:
        topics.load("ordres")
    assert unknown.value.hint == 'Did you mean "orders"?'
    with pytest.raises(TopicNotFound):
        topics.drop("nothing")
    with pytest.raises(InvalidName):
        topics.load("../orders")


def test_a_dropped_topic_is_gone_for_everyone(topics: Topics, open_topics: Opener) -> None:
    other = open_topics()
    topics.create(PLAIN)
    other.load("plain")
    topics.drop("plain")
    for seen in (topics, other):
        assert not seen.exists("plain")
        assert seen.names() == []
        with pytest.raises(TopicNotFound):
            seen.load("plain")
        with pytest.raises(NoSuchTableError):
            seen.tables.load_for_commit(TableName.topic("plain"))


def test_a_topic_made_anew_is_another_one_in_another_place(topics: Topics, open_topics: Opener) -> None:
    """Deleting the folder of the first must not touch the second, whoever made it and when."""
    first = topics.create(PLAIN)
    other = open_topics()
    assert other.load("plain").id == first.id
    topics.drop("plain")
    second = other.create(TopicDefinition("plain", DEFINITION.schema))
    assert second.id != first.id
    places = [local_path(each.table.location()) for each in (first, second)]
    assert places[0] != places[1]
    assert not places[1].is_relative_to(places[0]) and not places[0].is_relative_to(places[1])
    assert topics.load("plain").id == second.id


def test_names_are_sorted_and_foreign_tables_are_no_topics(topics: Topics) -> None:
    topics.create(PLAIN)
    topics.create(DEFINITION)
    topics.tables.catalog.create_table((TOPICS, "foreign"), Schema(NestedField(1, "x", LongType())))
    assert topics.names() == ["foreign", "orders", "plain"]
    assert [topic.name for topic in topics.all()] == ["orders", "plain"]
    with pytest.raises(Corrupt, match=r'table "topics\.foreign" is not a topic'):
        topics.load("foreign")


def test_a_later_definition_is_refused(topics: Topics) -> None:
    topics.create(PLAIN)
    topics.create(DEFINITION)
    set_property(topics, "headwater.version", "999")
    set_property(topics, "headwater.written-by", "8.1.0")
    with pytest.raises(NewerVersion, match='topic "plain" was written by a newer Headwater') as refused:
        topics.load("plain")
    assert refused.value.hint == "Use Headwater 8.1.0 or later."
    with pytest.raises(NewerVersion):
        topics.drop("plain")
    found, damaged = topics.survey()
    assert ([topic.name for topic in found], [each.name for each in damaged]) == (["orders"], ["plain"])


def set_property(topics: Topics, name: str, value: str) -> None:
    with topics.tables.load_for_commit(TableName.topic("plain")).transaction() as transaction:
        transaction.set_properties({name: value})


def test_what_another_process_commits_is_seen_at_once(topics: Topics, open_topics: Opener) -> None:
    topics.create(PLAIN)
    other = open_topics()
    for position in range(1, 6):
        set_property(topics if position % 2 else other, "headwater.offset", str(position))
        assert topics.load("plain").committed == other.load("plain").committed == position


def test_a_loaded_topic_does_not_change(topics: Topics) -> None:
    topics.create(PLAIN)
    before = topics.load("plain")
    assert topics.load("plain") is before  # parsed once
    set_property(topics, "headwater.offset", "7")
    assert before.committed == 0
    assert topics.load("plain").committed == 7


def test_what_is_read_is_what_the_catalog_would_read(topics: Topics) -> None:
    """Reading goes round PyIceberg's catalog, and must come to the same."""
    topics.create(PLAIN)
    topics.create(DEFINITION)
    set_property(topics, "headwater.offset", "7")
    catalog = topics.tables.catalog
    assert topics.names() == sorted(name for _, name in catalog.list_tables(TOPICS))
    for name in topics.names():
        read, loaded = topics.load(name).table, catalog.load_table((TOPICS, name))
        assert read.name() == loaded.name()
        assert read.metadata_location == loaded.metadata_location
        assert read.metadata == loaded.metadata
        assert type(read.io) is type(loaded.io)


def test_a_shared_table_takes_no_changes(topics: Topics) -> None:
    topics.create(PLAIN)
    table = topics.load("plain").table
    with pytest.raises(NotImplementedError):
        table.refresh()
    with pytest.raises(NotImplementedError), table.transaction() as transaction:
        transaction.set_properties({"headwater.offset": "7"})
    assert topics.load("plain").committed == 0


def test_an_iceberg_view_is_no_table(topics: Topics, tmp_path: Path) -> None:
    topics.create(PLAIN)
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db, db:
        columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
        db.execute(f"INSERT INTO iceberg_tables({columns}) VALUES ('lake', 'topics', 'seen', 'nowhere', 'VIEW')")
    assert topics.names() == ["plain"]
    with pytest.raises(TopicNotFound):
        topics.load("seen")


def test_reading_does_not_import_sqlalchemy(topics: Topics, tmp_path: Path) -> None:
    """It takes a quarter of a second, which is most of what a small query takes from the shell."""
    topics.create(PLAIN)
    program = f"""
        import sys
        from pathlib import Path
        from headwater.engine import Lake
        from headwater.catalog.iceberg import Tables
        from headwater.catalog.topics import Topics
        folder = Path({str(tmp_path)!r})
        topics = Topics(Tables(folder / "catalog.db", folder / "warehouse", 1.0))
        assert topics.names() == ["plain"] and topics.load("plain").committed == 0
        sys.exit("sqlalchemy" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


@pytest.mark.parametrize("damage", ["gone", "empty", "nonsense"])
def test_a_damaged_catalog_is_named(open_topics: Opener, tmp_path: Path, damage: str) -> None:
    open_topics().create(PLAIN)
    file = tmp_path / "damaged.db"
    if damage != "gone":
        file.write_bytes(b"" if damage == "empty" else b"not SQLite" * 1000)
    with pytest.raises(Corrupt, match="catalog cannot be read"):
        Topics(Tables(file, tmp_path / "warehouse", 1.0)).load("plain")


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_metadata_of_a_table_is_named(topics: Topics, open_topics: Opener, damage: str) -> None:
    metadata = local_path(topics.create(PLAIN).table.metadata_location)
    if damage == "missing":
        metadata.unlink()
    else:
        metadata.write_bytes(metadata.read_bytes()[:100])
    other = open_topics()
    with pytest.raises(Corrupt, match=r"Table topics\.plain cannot be read") as found:
        other.load("plain")
    assert str(metadata) in str(found.value)
    with pytest.raises(Corrupt, match="cannot be read"):
        other.tables.load_for_commit(TableName.topic("plain"))


def test_a_table_that_is_dropped_while_it_is_read_is_gone(
    topics: Topics, open_topics: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(PLAIN)
    read = iceberg._read_table

    def dropped_meanwhile(name: TableName, location: str, known: MetadataCache) -> Table:
        monkeypatch.undo()
        topics.drop("plain")
        local_path(location).unlink()
        return read(name, location, known)

    monkeypatch.setattr(iceberg, "_read_table", dropped_meanwhile)
    with pytest.raises(TopicNotFound):
        open_topics().load("plain")


def test_readers_are_never_torn_while_others_commit(topics: Topics, open_topics: Opener) -> None:
    topics.create(PLAIN)
    reader = open_topics()

    def read() -> list[int]:
        seen = [reader.load("plain").committed]
        while seen[-1] < 30:
            seen.append(reader.load("plain").committed)
        return seen

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        for position in range(1, 31):
            set_property(topics, "headwater.offset", str(position))
        for each in reading:
            seen = each.result(timeout=60)
            assert seen == sorted(seen)


def test_metadata_is_on_disk_before_the_catalog_refers_to_it(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync = durable_files.sync_file
    monkeypatch.setattr(durable_files, "sync_file", lambda path: (sync(path), steps.append(path.name)))

    @event.listens_for(topics.tables.catalog.engine, "before_cursor_execute")
    def moved(_: object, __: object, statement: str, parameters: tuple[object, ...], *___: object) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            steps.extend(f"refer {Path(each).name}" for each in parameters if str(each).endswith(".metadata.json"))

    topics.create(PLAIN)
    with topics.tables.load_for_commit(TableName.topic("plain")).transaction() as transaction:
        transaction.append(pa.table({"n": [1], "_offset": [0], "_timestamp": [dt.datetime.now(dt.UTC)]}, NOW))
    table = topics.load("plain").table
    current = table.metadata.current_snapshot()
    assert current is not None
    first = steps.index(f"refer {Path(table.metadata.metadata_log[0].metadata_file).name}")
    last = steps.index(f"refer {Path(table.metadata_location).name}")
    assert steps.index(Path(table.metadata.metadata_log[0].metadata_file).name) < first
    written = [table.metadata_location, current.manifest_list, *(m.manifest_path for m in current.manifests(table.io))]
    assert all(steps.index(Path(path).name) < last for path in written)


def test_a_locked_catalog_is_waited_for_and_then_named(topics: Topics, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageBusy, match="catalog stayed locked") as locked:
            topics.create(PLAIN)
        assert isinstance(locked.value, HeadwaterError)
        assert topics.names() == []  # reading goes on
        holder.execute("ROLLBACK")
    topics.create(PLAIN)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageBusy, match="catalog stayed locked"):
            topics.drop("plain")
        assert topics.load("plain").committed == 0
        holder.execute("ROLLBACK")
    topics.drop("plain")
