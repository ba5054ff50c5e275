"""CREATE TOPIC behind its first two words: columns, then COMMENT, PARTITIONED BY, ORDERED BY … in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from headwater.errors import InvalidOption
from headwater.sql.cursor import Cursor
from headwater.sql.definition import checked_definition, checked_topic_name
from headwater.sql.option_clause import OptionClause
from headwater.sql.options import option, parse_options
from headwater.sql.ordering import check_clustering, check_ordering, read_clustering, read_ordering
from headwater.sql.partitioning import check_partitioning, read_partitioning
from headwater.sql.schema_text import read_columns
from headwater.sql.statements import CreateTopic
from headwater.sql.tokens import Token
from headwater.types import Partition, SortKey

T = TypeVar("T")

_CLAUSES = ("COMMENT", "PARTITIONED BY", "ORDERED BY", "CLUSTERED BY ZORDER", "WITH")
_INSTEAD: Mapping[str, str] = {
    "AS": "Create the topic with its columns, then produce into it.",
    "USING": "Topics are Iceberg tables; leave the clause out.",
    "LOCATION": "Headwater chooses the location; leave the clause out.",
    "TBLPROPERTIES": "Use WITH (option = value).",
    "OPTIONS": "Use WITH (option = value).",
    "CLUSTER": "Use CLUSTERED BY ZORDER (a, b), or PARTITIONED BY (bucket(8, x)).",
    "SORTED": "Use ORDERED BY (...).",
    "ORDER": "Use ORDERED BY (...).",
    "PARTITION": "Use PARTITIONED BY (...).",
}


@dataclass(slots=True)
class _Clauses:
    """What follows the columns, and the token that each part came from, so that errors point at it."""

    partitioning: tuple[Partition, ...] = ()
    ordering: tuple[SortKey, ...] = ()
    clustering: tuple[str, ...] = ()
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
    with cursor.locating(clauses.places.get("ORDERED", named)):
        check_ordering(schema, clauses.ordering)
    with cursor.locating(clauses.places.get("CLUSTERED", named)):
        check_clustering(schema, clauses.clustering, clauses.ordering)
    try:
        definition = checked_definition(
            name, schema, clauses.partitioning, clauses.options.values, clauses.ordering, clauses.clustering
        )
    except InvalidOption as error:
        raise cursor.located(error, clauses.options.places.get(error.data["option"], named)) from None
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
            clauses.partitioning = read_in_brackets(cursor, "PARTITIONED BY", read_partitioning)
        elif cursor.accept("ORDERED"):
            cursor.expect("BY")
            clauses.ordering = read_in_brackets(cursor, "ORDERED BY", read_ordering)
        elif cursor.accept("CLUSTERED"):
            clauses.clustering = read_zorder(cursor)
        elif cursor.accept("WITH"):
            clauses.options.read(cursor, "WITH")
        else:
            wanted = "COMMENT, PARTITIONED BY, ORDERED BY, CLUSTERED BY ZORDER or WITH"
            raise cursor.unexpected(wanted, hint=_INSTEAD.get(token.keyword), known=_CLAUSES)
        clauses.places[token.keyword] = token
    clauses.options.check(cursor, parse_options)
    return clauses


def read_in_brackets(cursor: Cursor, after: str, read: Callable[[Cursor], T]) -> T:
    """What `read` reads between brackets behind the words `after`."""
    cursor.expect_symbol("(", after)
    found = read(cursor)
    cursor.expect_symbol(")", f"the fields of {after}")
    return found


def read_zorder(cursor: Cursor) -> tuple[str, ...]:
    """`BY ZORDER (a, b)` behind CLUSTERED."""
    cursor.expect("BY")
    if not cursor.accept("ZORDER"):
        raise cursor.unexpected("ZORDER (columns)", hint="For buckets, use PARTITIONED BY (bucket(8, x)).")
    return read_in_brackets(cursor, "ZORDER", read_clustering)
