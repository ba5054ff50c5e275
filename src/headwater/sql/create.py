"""CREATE TOPIC behind its first two words: columns, then COMMENT, PARTITIONED BY and WITH in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.sql.cursor import Cursor
from headwater.sql.definition import checked_definition, checked_topic_name
from headwater.sql.option_clause import OptionClause
from headwater.sql.options import option, parse_options
from headwater.sql.partitioning import check_partitioning, read_partitioning
from headwater.sql.schema_text import read_columns
from headwater.sql.statements import CreateTopic
from headwater.sql.tokens import Token
from headwater.types import Partition

_CLAUSES = ("COMMENT", "PARTITIONED BY", "WITH")
_INSTEAD: Mapping[str, str] = {
    "AS": "Create the topic with its columns, then produce into it.",
    "USING": "Topics are Iceberg tables; leave the clause out.",
    "LOCATION": "Headwater chooses the location; leave the clause out.",
    "TBLPROPERTIES": "Use WITH (option = value).",
    "OPTIONS": "Use WITH (option = value).",
    "CLUSTERED": "Use PARTITIONED BY (bucket(8, x)).",
    "CLUSTER": "Use PARTITIONED BY (...).",
    "PARTITION": "Use PARTITIONED BY (...).",
}


@dataclass(slots=True)
class _Clauses:
    """What follows the columns, and the token that each part came from, so that errors point at it."""

    partitioning: tuple[Partition, ...] = ()
    options: OptionClause = field(default_factory=lambda: OptionClause(option))
    places: dict[str, Token] = field(default_factory=dict)


def read_create(cursor: Cursor) -> CreateTopic:
    """Read the rest of CREATE TOPIC into a definition that passed every check."""
    cursor.context = "CREATE TOPIC"
    if_not_exists = cursor.at("IF") and cursor.ahead(1).text != "("
    if if_not_exists:
        cursor.expect("IF", "NOT", "EXISTS")
    named = cursor.token
    name = cursor.topic()
    with cursor.locating(named):
        checked_topic_name(name)
    if not cursor.at_symbol("("):
        hint = _INSTEAD.get(cursor.token.keyword, "Columns are named with their types, never inferred.")
        raise cursor.unexpected(f'"(" and the columns of topic "{name}"', hint=hint)
    cursor.advance()
    schema = read_columns(cursor)
    cursor.expect_symbol(")", "the columns")
    clauses = _read_clauses(cursor)
    with cursor.locating(clauses.places.get("PARTITIONED", named)):
        check_partitioning(schema, clauses.partitioning)
    with cursor.locating(clauses.options.places.get("dedup_key", named)):
        definition = checked_definition(name, schema, clauses.partitioning, clauses.options.values)
    return CreateTopic(definition, if_not_exists)


def _read_clauses(cursor: Cursor) -> _Clauses:
    clauses = _Clauses()
    while cursor.token.kind != "end":
        token = cursor.token
        if token.keyword in clauses.places:
            raise cursor.unexpected(f"{token.keyword} once")
        if cursor.accept("COMMENT"):
            clauses.options.set(cursor, "description", token, cursor.string("a comment"))
        elif cursor.accept("PARTITIONED"):
            cursor.expect("BY")
            cursor.expect_symbol("(", "PARTITIONED BY")
            clauses.partitioning = read_partitioning(cursor)
            cursor.expect_symbol(")", "the partition fields")
        elif cursor.accept("WITH"):
            clauses.options.read(cursor, "WITH")
        else:
            raise cursor.unexpected("COMMENT, PARTITIONED BY or WITH", hint=_INSTEAD.get(token.keyword), known=_CLAUSES)
        clauses.places[token.keyword] = token
    clauses.options.check(cursor, parse_options)
    return clauses
