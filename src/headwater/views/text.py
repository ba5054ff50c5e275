"""A view's query in plain Spark SQL: relations by their plain names, windows as arithmetic."""

from __future__ import annotations

from headwater.errors import InvalidStatement
from headwater.sql.names import Normalised, normalise
from headwater.sql.windows import rewrite_windows


def plain_query(text: str) -> str:
    """The query with `topic('x')`, `mv('x')` and TUMBLE, HOP or SESSION replaced by what Spark reads."""
    return plain(text).text


def plain(text: str) -> Normalised:
    """The same with the relations that it names; InvalidStatement for those that a view cannot be made of."""
    found = normalise(rewrite_windows(text))
    for relation in found.relations:
        if relation.fresh:
            raise InvalidStatement(
                "a materialized view cannot read a view with fresh => true",
                hint=f"Read mv('{relation.name}'): a refresh brings it up to date first.",
            )
        if relation.as_of or relation.changes is not None:
            raise InvalidStatement("a materialized view cannot read a fixed version of a source")
    return found
