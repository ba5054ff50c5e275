"""A query over one view, from the parts that flags and parameters give."""

from __future__ import annotations

from headwater.sql.statements import Query
from headwater.types import checked_name


def view_query(name: str, where: str | None = None, *, fresh: bool = False, limit: int | None = None) -> Query:
    """The rows of a view for which `where` is true; `fresh` reads it as if it were refreshed now."""
    checked_name(name, "materialized view")
    relation = f"mv('{name}', fresh => true)" if fresh else f"mv('{name}')"
    # On lines of its own: a comment in the condition ends with it.
    condition = f"\nWHERE (\n{_condition(where)}\n)" if where and where.strip() else ""
    return Query(f"SELECT * FROM {relation}{condition}" + (f"\nLIMIT {limit}" if limit is not None else ""))  # noqa: S608


def _condition(text: str) -> str:
    words = text.split(None, 1)
    return words[1] if len(words) == 2 and words[0].upper() == "WHERE" else text
