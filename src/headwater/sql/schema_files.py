"""Schemas from files (`.json`, `.sql`, `.avsc`), and definitions as JSON values: the body of POST /api/v1/topics.

The JSON form of a definition names types in SQL text, so that a person can write it::

    {"name": "orders",
     "columns": [{"name": "total", "type": "DECIMAL(12, 2)", "nullable": false, "comment": "net"}],
     "partitioned_by": ["days(placed_at)"],
     "ordered_by": ["customer ASC NULLS LAST"],
     "options": {"compression": "zstd"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.errors import InvalidInput, InvalidSchema
from headwater.sql.avsc import schema_from_avro
from headwater.sql.cursor import Cursor, closest
from headwater.sql.definition import checked_definition
from headwater.sql.iceberg_json import schema_from_iceberg
from headwater.sql.options import parse_options, render_options
from headwater.sql.ordering import check_clustering, check_ordering, parse_clustering, parse_ordering
from headwater.sql.parse import parse
from headwater.sql.partitioning import check_partitioning, parse_partitioning
from headwater.sql.schema_rules import checked_schema
from headwater.sql.schema_text import UNASSIGNED, parse_columns, parse_type, render_type
from headwater.sql.statements import CreateTopic
from headwater.types import Partition, SortKey, TopicDefinition, TopicOptions

SchemaKind = Literal["json", "sql", "avsc"]

_DEFINITION_KEYS = ("name", "columns", "partitioned_by", "ordered_by", "clustered_by", "options")
_COLUMN_KEYS = ("name", "type", "nullable", "comment")


class SchemaFile(NamedTuple):
    """What a schema file says about a topic; its name, if it says one, is not taken from there."""

    schema: Schema
    partitioning: tuple[Partition, ...]
    options: TopicOptions
    ordering: tuple[SortKey, ...] = ()
    clustering: tuple[str, ...] = ()


def read_schema(text: str, kind: SchemaKind) -> SchemaFile:
    """The schema in a file's text, with partitioning and options where the kind of file can say them."""
    try:
        match kind:
            case "sql":
                return _from_sql(text)
            case "avsc":
                return SchemaFile(schema_from_avro(_load(text, "Avro schema")), (), TopicOptions())
            case "json":
                return _from_json(_load(text, "JSON schema"))
    except RecursionError:
        raise InvalidSchema("schema file is nested too deeply") from None
    raise InvalidSchema(f'schema file of kind "{kind}" is not known', detail="There are .json, .sql and .avsc files.")


def definition_from_dict(body: Mapping[str, Any]) -> TopicDefinition:
    """A checked definition from its JSON form."""
    check_keys(body, _DEFINITION_KEYS, "topic definition")
    name = body.get("name")
    if not isinstance(name, str):
        raise InvalidSchema('topic definition needs a text "name"')
    return checked_definition(
        name, columns_of(body), partitioning_of(body), options_of(body), _ordering(body), _clustering(body)
    )


def definition_to_dict(definition: TopicDefinition, *, all_options: bool = False) -> dict[str, Any]:
    """The JSON form of a definition, which `definition_from_dict` reads back to an equal one."""
    return {
        "name": definition.name,
        "columns": [column_to_dict(field) for field in definition.schema.fields],
        "partitioned_by": [str(part) for part in definition.partitioning],
        "ordered_by": [str(key) for key in definition.ordering],
        "clustered_by": list(definition.clustering),
        "options": render_options(definition.options, changed_only=not all_options),
    }


def column_to_dict(field: NestedField) -> dict[str, Any]:
    """The JSON form of one column."""
    column: dict[str, Any] = {
        "name": field.name,
        "type": render_type(field.field_type),
        "nullable": not field.required,
    }
    return column if field.doc is None else {**column, "comment": field.doc}


def _from_sql(text: str) -> SchemaFile:
    start = Cursor(text)
    if not start.at("CREATE"):
        return SchemaFile(parse_columns(text), (), TopicOptions())
    statement = parse(text)
    if not isinstance(statement, CreateTopic):
        raise InvalidSchema("schema file has no CREATE TOPIC statement")
    definition = statement.definition
    return SchemaFile(
        definition.schema, definition.partitioning, definition.options, definition.ordering, definition.clustering
    )


def _from_json(value: object) -> SchemaFile:
    if not isinstance(value, dict) or not ("columns" in value or "fields" in value):
        raise InvalidSchema(
            "JSON schema is not understood",
            detail='It is an object with "columns", or an Iceberg schema with "fields".',
        )
    if "fields" in value:
        return SchemaFile(schema_from_iceberg(value), (), TopicOptions())
    check_keys(value, _DEFINITION_KEYS, "JSON schema")
    schema = checked_schema(columns_of(value))
    parts = check_partitioning(schema, partitioning_of(value))
    ordering = check_ordering(schema, _ordering(value))
    clustering = check_clustering(schema, _clustering(value), ordering)
    return SchemaFile(schema, parts, parse_options(options_of(value)), ordering, clustering)


def _load(text: str, what: str) -> object:
    """A JSON value; a key that appears twice is refused, since one of its values would be lost."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = f"Line {error.lineno}, column {error.colno}: {error.msg}."
        raise InvalidSchema(f"{what} is not valid JSON", detail=place, line=error.lineno, column=error.colno) from None
    except ValueError:
        raise InvalidSchema(f"{what} has a number that is too long") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidSchema(f'JSON key "{twice[:64]}" appears twice in one object')
    return result


def check_keys(value: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    """InvalidSchema with a suggestion for a key that is not one of those known."""
    for key in value:
        if key not in known:
            guess = closest(key, known)
            raise InvalidSchema(
                f'{what} has the unknown key "{key[:64]}"',
                detail=f"The keys are {', '.join(known)}.",
                hint=f'Did you mean "{guess}"?' if guess else None,
            )


def columns_of(body: Mapping[str, Any]) -> list[NestedField]:
    """The columns that a definition's JSON form lists."""
    columns = body.get("columns")
    if not isinstance(columns, list):
        raise InvalidSchema(
            'topic definition needs a list "columns"', hint='Each column is {"name": "order_id", "type": "BIGINT"}.'
        )
    return [_column(column, place) for place, column in enumerate(columns)]


def _column(column: object, place: int) -> NestedField:
    if not isinstance(column, dict):
        raise InvalidSchema(f"column {place + 1} is not an object")
    check_keys(column, _COLUMN_KEYS, f"column {place + 1}")
    name, of = column.get("name"), column.get("type")
    nullable, comment = column.get("nullable", True), column.get("comment")
    if not isinstance(name, str) or not isinstance(of, str):
        raise InvalidSchema(f'column {place + 1} needs a text "name" and a text "type"')
    if not isinstance(nullable, bool) or not isinstance(comment, str | None):
        raise InvalidSchema(
            f'column "{name[:64]}" is not understood', detail='"nullable" is true or false, and "comment" a text.'
        )
    try:
        parsed = parse_type(of)
    except InvalidInput as error:
        message = f'column "{name[:64]}": {error.message}'
        raise InvalidSchema(message, detail=error.detail, hint=error.hint) from None
    return NestedField(UNASSIGNED, name, parsed, required=not nullable, doc=comment)


def partitioning_of(body: Mapping[str, Any]) -> tuple[Partition, ...]:
    """The partition fields that it lists."""
    parts = _texts(body, "partitioned_by", '["days(placed_at)", "bucket(8, customer)"]')
    return tuple(part for text in parts for part in parse_partitioning(text))


def _ordering(body: Mapping[str, Any]) -> tuple[SortKey, ...]:
    return tuple(
        key for text in _texts(body, "ordered_by", '["customer ASC", "total DESC"]') for key in parse_ordering(text)
    )


def _clustering(body: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        name for text in _texts(body, "clustered_by", '["customer", "sku"]') for name in parse_clustering(text)
    )


def _texts(body: Mapping[str, Any], key: str, example: str) -> list[str]:
    texts = body.get(key) or []
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InvalidSchema(f'"{key}" is a list of texts', hint=f"Write {example}.")
    return texts


def options_of(body: Mapping[str, Any]) -> Mapping[str, object]:
    """The options that it sets."""
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise InvalidSchema('"options" is an object of options by name')
    return options
