"""What a topic becomes by changes: pure plans over a catalog in a folder, and the table updates that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSortOrderUpdate, SetDefaultSpecUpdate

from headwater.catalog.evolve import Evolution, plan_evolution
from headwater.catalog.evolve_updates import next_spec, plan_updates
from headwater.catalog.topics import Topic
from headwater.engine import Lake
from headwater.errors import HeadwaterError, InvalidInput
from headwater.sql.alter import alter_of
from headwater.sql.schema_text import render_columns
from headwater.types import SYSTEM_COLUMNS

CREATE = """
    CREATE TOPIC t (
        id INT NOT NULL, name STRING, price FLOAT, d DECIMAL(5, 2), at TIMESTAMP,
        address STRUCT<city: STRING, zip: STRING NOT NULL>,
        items ARRAY<STRUCT<sku: STRING, qty: INT>>, attributes MAP<STRING, STRUCT<n: INT>>
    ) PARTITIONED BY (bucket(4, id)) ORDERED BY (name)
    WITH (dedup_key = 'id', retention_column = 'at', bloom_columns = 'name, address.city',
          compression_columns = 'name=lz4')
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake.init(Path(tmp_path_factory.mktemp("evolve")) / "lake") as opened:
        opened.sql(CREATE)
        opened.sql("CREATE TOPIC plain (a INT, b INT)")
        yield opened


@pytest.fixture
def topic(lake: Lake) -> Topic:
    return lake.topics.load("t")


def planned(topic: Topic, *changes: str) -> Evolution:
    return plan_evolution(topic, alter_of(topic.name, changes))


def columns(evolution: Evolution) -> list[str]:
    return [field.name for field in evolution.schema.fields]


CHANGED = {
    "ADD COLUMN note STRING COMMENT 'x' AFTER id": "id INT NOT NULL, note STRING COMMENT 'x', name STRING,",
    "ADD COLUMN note STRING FIRST": "note STRING, id INT NOT NULL,",
    "ADD COLUMN note STRING BEFORE name": "id INT NOT NULL, note STRING, name STRING,",
    "ADD COLUMN address.street STRING FIRST": "address STRUCT<street: STRING, city: STRING, zip: STRING NOT NULL>",
    "ADD COLUMN items.element.price DOUBLE AFTER sku": "items ARRAY<STRUCT<sku: STRING, price: DOUBLE, qty: INT>>",
    "ADD COLUMN attributes.value.m BIGINT": "attributes MAP<STRING, STRUCT<n: INT, m: BIGINT>>",
    "RENAME COLUMN address.zip TO postcode": "address STRUCT<city: STRING, postcode: STRING NOT NULL>",
    "ALTER COLUMN id TYPE BIGINT": "id BIGINT NOT NULL,",
    "ALTER COLUMN price TYPE DOUBLE": "price DOUBLE,",
    "ALTER COLUMN d TYPE DECIMAL(18, 2)": "d DECIMAL(18, 2),",
    "ALTER COLUMN items.element.qty TYPE BIGINT": "items ARRAY<STRUCT<sku: STRING, qty: BIGINT>>",
    "DROP COLUMN address.zip": "address STRUCT<city: STRING>",
    "DROP COLUMN IF EXISTS nothing": "id INT NOT NULL, name STRING,",
    "ALTER COLUMN name SET NOT NULL": "name STRING NOT NULL,",
    "ALTER COLUMN items.element SET NOT NULL": "items ARRAY<STRUCT<sku: STRING, qty: INT> NOT NULL>",
    "ALTER COLUMN address.zip DROP NOT NULL": "address STRUCT<city: STRING, zip: STRING>",
    "ALTER COLUMN name COMMENT 'who'": "name STRING COMMENT 'who',",
    "ALTER COLUMN at FIRST": "at TIMESTAMP, id INT NOT NULL,",
    "ALTER COLUMN id AFTER name": "name STRING, id INT NOT NULL,",
    "ALTER COLUMN address.zip FIRST": "address STRUCT<zip: STRING NOT NULL, city: STRING>",
    "REORDER COLUMNS (at, d)": "at TIMESTAMP, d DECIMAL(5, 2), id INT NOT NULL,",
}


@pytest.mark.parametrize("change", CHANGED)
def test_columns_after_a_change(topic: Topic, change: str) -> None:
    made = planned(topic, change)
    assert CHANGED[change] in render_columns(made.definition.schema)
    assert tuple(columns(made)[-2:]) == SYSTEM_COLUMNS
    assert len(set(made.schema.field_ids)) == len(made.schema.field_ids)


def test_ids_stay_and_new_ones_are_new(topic: Topic) -> None:
    made = planned(topic, "ADD COLUMN s STRUCT<a: ARRAY<INT>, m: MAP<STRING, INT>>", "RENAME COLUMN name TO title")
    old, new = set(topic.schema.field_ids), set(made.schema.field_ids)
    assert old < new
    assert min(new - old) > topic.table.metadata.last_column_id
    assert made.schema.find_field("title").field_id == topic.schema.find_field("name").field_id


def test_a_name_given_again_is_another_column(topic: Topic) -> None:
    made = planned(topic, "DROP COLUMN price", "ADD COLUMN price FLOAT")
    assert made.schema.find_field("price").field_id > topic.table.metadata.last_column_id


def test_what_names_a_column_follows_its_renaming(topic: Topic) -> None:
    made = planned(
        topic,
        "RENAME COLUMN id TO key",
        "RENAME COLUMN name TO title",
        "RENAME COLUMN at TO since",
        "RENAME COLUMN address TO place",
    ).definition
    options = made.options
    assert (options.dedup_key, options.retention_column) == (("key",), "since")
    assert [column for column, _ in options.bloom_columns] == ["title", "place.city"]
    assert options.compression_columns == (("title", "lz4"),)
    assert [part.column for part in made.partitioning] == ["key"]
    assert [key.column for key in made.ordering] == ["title"]


REFUSED = {
    "ADD COLUMN name INT": "exists already",
    "ADD COLUMN id_bucket INT": "name of a partition field",
    "RENAME COLUMN name TO id_bucket": 'has the name of column "id_bucket"|name of a partition field',
    "RENAME COLUMN name TO price": "exists already",
    "RENAME COLUMN nam TO x": "does not exist",
    "RENAME COLUMN address.town TO x": "does not exist",
    "RENAME COLUMN items.element TO x": "neither dropped, renamed",
    "DROP COLUMN items.element": "the only one",
    "ALTER COLUMN attributes.key TYPE STRING": "keys of map",
    "ADD COLUMN attributes.key.x INT": "keys of map",
    "ADD COLUMN items.price DOUBLE": "not a struct",
    "ADD COLUMN name.x INT": "not a struct",
    "ALTER COLUMN id TYPE STRING": "cannot become STRING",
    "ALTER COLUMN d TYPE DECIMAL(18, 3)": "cannot become DECIMAL",
    "ALTER COLUMN d TYPE DECIMAL(4, 2)": "cannot become DECIMAL",
    "ALTER COLUMN address TYPE INT": "cannot become INT",
    "ALTER COLUMN address TYPE STRUCT<a: INT>": "cannot become a nested type",
    "DROP COLUMN id": "is needed",
    "DROP COLUMN name": "is needed",
    "DROP COLUMN at": "is needed",
    "DROP COLUMN address": "is needed",
    "DROP COLUMN address.city": "is needed",
    "SET (dedup_key = 'nope')": "unknown column",
    "SET (bloom_columns = 'price')": "does not take column",
    "SET PARTITIONED BY (days(name))": "cannot be made of",
    "SET ORDERED BY (address)": "nested column",
    "SET CLUSTERED BY ZORDER (id)": "clustering has 1 column",
    "ALTER COLUMN name AFTER name": "beside itself",
    "ALTER COLUMN name AFTER nope": "does not exist",
    "REORDER COLUMNS (id, nope)": "does not exist",
}


@pytest.mark.parametrize("change", REFUSED)
def test_refused_with_its_place(topic: Topic, change: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        planned(topic, "ADD COLUMN fine INT", change)
    assert re.search(REFUSED[change], refused.value.message)
    assert change[:20] in (refused.value.detail or "")


def test_all_columns_but_one_can_go(lake: Lake) -> None:
    plain = lake.topics.load("plain")
    assert columns(planned(plain, "DROP COLUMN a")) == ["b", *SYSTEM_COLUMNS]
    with pytest.raises(InvalidInput, match="the only one"):
        planned(plain, "DROP COLUMN a", "DROP COLUMN b")


def test_too_many_fields(topic: Topic) -> None:
    inside = ", ".join(f"f{n}: INT" for n in range(5000))
    with pytest.raises(HeadwaterError, match="at most 5000 fields"):
        planned(topic, f"ADD COLUMN s STRUCT<{inside}>")


def test_what_readers_notice(topic: Topic) -> None:
    def touched(*changes: str) -> list[str]:
        return [each.column for each in planned(topic, *changes).touched]

    assert touched("ADD COLUMN x INT", "RENAME COLUMN x TO y", "DROP COLUMN y") == []
    assert touched("ALTER COLUMN name COMMENT 'x'", "REORDER COLUMNS (at)", "ALTER COLUMN name SET NOT NULL") == []
    assert touched("RENAME COLUMN name TO x", "ALTER COLUMN x DROP NOT NULL") == ["name"]
    assert touched("ADD COLUMN address.x INT", "ALTER COLUMN id TYPE BIGINT") == ["address", "id"]
    assert touched("ALTER COLUMN id DROP NOT NULL", "DROP COLUMN price") == ["id", "price"]


def updates(topic: Topic, *changes: str) -> list[object]:
    made = planned(topic, *changes)
    return list(plan_updates(topic.table, topic.definition, made, "said", datetime(2026, 1, 1, tzinfo=UTC)))


def test_nothing_to_do_updates_nothing(topic: Topic) -> None:
    assert updates(topic, "ADD COLUMN IF NOT EXISTS name STRING", "DROP COLUMN IF EXISTS x") == []
    assert (
        updates(topic, "ALTER COLUMN id TYPE INT", "SET ORDERED BY (name)", "SET PARTITIONED BY (bucket(4, id))") == []
    )


def test_partition_fields_keep_their_ids_and_names_are_never_taken_twice(topic: Topic) -> None:
    def fields(change: str) -> list[tuple[str, int]]:
        made = planned(topic, change)
        spec = next_spec(topic.table.metadata, made.definition, made.schema)
        return [(part.name, part.field_id) for part in spec.fields]

    (first,) = topic.table.spec().fields
    assert fields("SET PARTITIONED BY (bucket(8, id), days(at))") == [("id_bucket_2", 1001), ("at_day", 1002)]
    assert fields("SET PARTITIONED BY (days(at), bucket(4, id))") == [("at_day", 1001), ("id_bucket", first.field_id)]
    assert next_spec(topic.table.metadata, topic.definition, topic.schema) == topic.table.spec()


def test_sort_orders_and_specs_of_old_are_used_again(topic: Topic) -> None:
    kinds = [type(each) for each in updates(topic, "SET UNORDERED", "SET UNPARTITIONED")]
    assert SetDefaultSortOrderUpdate in kinds
    assert kinds.count(AddPartitionSpecUpdate) == 1
    assert SetDefaultSpecUpdate in kinds


def test_options_change_only_what_they_mean(topic: Topic) -> None:
    set_, removed = updates(topic, "SET (bloom_columns = 'name', compression = 'gzip')")
    assert set(set_.updates) == {  # type: ignore[attr-defined]
        "headwater.option.bloom_columns",
        "headwater.option.compression",
        "write.parquet.compression-codec",
    }
    assert set(removed.removals) == {  # type: ignore[attr-defined]
        "write.parquet.bloom-filter-enabled.column.address.city",
        "write.parquet.bloom-filter-fpp.column.address.city",
    }
