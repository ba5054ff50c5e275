"""A topic definition as the CREATE TOPIC statement that makes an equal one."""

from __future__ import annotations

from headwater.sql.options import option, render_options
from headwater.sql.schema_text import render_columns
from headwater.sql.tokens import quote
from headwater.types import TopicDefinition


def render_create(definition: TopicDefinition) -> str:
    """The CREATE TOPIC statement that parses back to an equal definition; options at their default are left out."""
    options = render_options(definition.options, changed_only=True)
    description = options.pop("description", None)
    columns = render_columns(definition.schema, separator=",\n  ")
    clauses = [f"CREATE TOPIC {definition.name} (\n  {columns}\n)"]
    if description is not None:
        clauses.append(f"COMMENT {quote(description)}")
    if definition.partitioning:
        clauses.append(f"PARTITIONED BY ({', '.join(map(str, definition.partitioning))})")
    if options:
        clauses.append(f"WITH ({', '.join(f'{name} = {_literal(name, text)}' for name, text in options.items())})")
    return "\n".join(clauses)


def _literal(name: str, text: str) -> str:
    return text if option(name).kind in ("integer", "level") else quote(text)
