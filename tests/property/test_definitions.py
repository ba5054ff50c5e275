"""A definition that became an Iceberg table is read back equal: from values, from metadata as JSON, from a catalog."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.types import NestedField

from headwater.catalog.definitions import partition_spec, sort_order, table_properties, table_schema, topic_definition
from headwater.catalog.iceberg import Tables, create_catalog_file
from headwater.catalog.topics import Topics
from headwater.errors import Corrupt, NewerVersion
from headwater.sql.schema_rules import checked_schema
from headwater.storage.schemas import FIELD_ID, arrow_schema
from headwater.types import SYSTEM_COLUMNS, TOPICS, TopicDefinition


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


strategies = _beside("test_sql_roundtrip")
DEFINITIONS: st.SearchStrategy[TopicDefinition] = strategies.definitions()


@given(DEFINITIONS)
@settings(max_examples=150, deadline=None)
def test_a_definition_survives_schema_spec_and_properties(definition: TopicDefinition) -> None:
    schema = table_schema(definition)
    properties = table_properties(definition)
    order = sort_order(definition, schema)
    back = topic_definition(definition.name, schema, partition_spec(definition, schema), properties, order)
    assert back == definition
    assert tuple(field.name for field in schema.fields[-2:]) == SYSTEM_COLUMNS
    assert all(isinstance(value, str) for value in properties.values())


@given(DEFINITIONS)
@settings(max_examples=100, deadline=None)
def test_a_definition_survives_iceberg_metadata_as_json(definition: TopicDefinition) -> None:
    schema = table_schema(definition)
    metadata = new_table_metadata(
        schema=schema,
        partition_spec=partition_spec(definition, schema),
        sort_order=sort_order(definition, schema),
        location="file:///lake/t",
        properties=table_properties(definition),
    )
    read = TableMetadataUtil.parse_raw(metadata.model_dump_json())
    order = read.sort_order_by_id(read.default_sort_order_id)
    assert order is not None
    assert topic_definition(definition.name, read.schema(), read.spec(), read.properties, order) == definition


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    folder = tmp_path_factory.mktemp("catalog")
    create_catalog_file(folder / "catalog.db", 5.0)
    tables = Tables(folder / "catalog.db", folder / "warehouse", 5.0)
    tables.catalog.create_namespace(TOPICS)
    yield Topics(tables)
    tables.close()


_numbers = itertools.count()


@given(DEFINITIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_definition_survives_the_catalog(topics: Topics, definition: TopicDefinition) -> None:
    named = replace(definition, name=f"t{next(_numbers)}")
    made = topics.create(named)
    topics.tables.forget(made.table_name)
    again = Topics(topics.tables).load(named.name)
    assert made.definition == again.definition == named
    assert made.id == again.id
    topics.drop(named.name)


@given(strategies.fields(strategies.TYPES, 5))
@settings(max_examples=150, deadline=None)
def test_every_schema_has_an_arrow_schema_with_its_ids(columns: list[NestedField]) -> None:
    schema = checked_schema(columns)
    found = arrow_schema(schema)
    assert found.names == [field.name for field in schema.fields]
    assert [field.nullable for field in found] == [not field.required for field in schema.fields]
    assert sorted(_ids(found)) == sorted(schema._lazy_id_to_field)
    assert arrow_schema(assign_fresh_schema_ids(schema)) == found
    assert pa.ipc.read_schema(found.serialize()) == found  # what the log stores


def _ids(fields: Any) -> Iterator[int]:
    for field in fields:
        yield int(field.metadata[FIELD_ID])
        of = field.type
        if pa.types.is_struct(of):
            yield from _ids(of)
        elif pa.types.is_map(of):
            yield from _ids([of.key_field, of.item_field])
        elif pa.types.is_list(of):
            yield from _ids([of.value_field])


@given(DEFINITIONS, st.sampled_from(["", "x", "-1", "2", "1.0"]))
@settings(max_examples=20, deadline=None)
def test_a_definition_of_another_version_is_refused(definition: TopicDefinition, version: str) -> None:
    schema = table_schema(definition)
    properties = table_properties(definition) | {"headwater.version": version}
    with pytest.raises(NewerVersion if version == "2" else Corrupt):
        topic_definition(definition.name, schema, partition_spec(definition, schema), properties)
