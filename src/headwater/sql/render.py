"""Definitions as the statements that make equal ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headwater.sql.option_table import Option
from headwater.sql.options import option, render_options
from headwater.sql.schema_text import render_columns
from headwater.sql.stream_options import created_option, render_stream_options
from headwater.sql.tokens import quote
from headwater.sql.view_options import render_view_options, view_option
from headwater.types import StreamDefinition, TopicDefinition, ViewDefinition


def render_create(definition: TopicDefinition) -> str:
    """The CREATE TOPIC statement that parses back to an equal definition; options at their default are left out."""
    options = render_options(definition.options, changed_only=True)
    columns = render_columns(definition.schema, separator=",\n  ")
    clauses = [f"CREATE TOPIC {definition.name} (\n  {columns}\n)", *_comment(options)]
    if definition.partitioning:
        clauses.append(f"PARTITIONED BY ({', '.join(map(str, definition.partitioning))})")
    if definition.ordering:
        clauses.append(f"ORDERED BY ({', '.join(map(str, definition.ordering))})")
    if definition.clustering:
        clauses.append(f"CLUSTERED BY ZORDER ({', '.join(definition.clustering)})")
    return "\n".join((*clauses, *_with(options, option)))


def render_create_view(definition: ViewDefinition) -> str:
    """The CREATE MATERIALIZED VIEW statement that parses back to an equal definition, the options before the query."""
    options = render_view_options(definition.options, changed_only=True)
    clauses = (f"CREATE MATERIALIZED VIEW {definition.name}", *_comment(options), *_with(options, view_option))
    return "\n".join((*clauses, f"AS {definition.query}"))


def render_create_stream(definition: StreamDefinition) -> str:
    """The CREATE STREAM statement that parses back to an equal definition; options at their default are left out."""
    options = {**render_stream_options(definition.options, changed_only=True), **definition.topic_options}
    clauses = [f"CREATE STREAM {definition.name}", *_comment(options)]
    if definition.schema is not None:
        columns = render_columns(definition.schema, separator=",\n  ")
        clauses[0] += f" (\n  {columns}\n)"
    if definition.partitioning:
        clauses.append(f"PARTITIONED BY ({', '.join(map(str, definition.partitioning))})")
    return "\n".join((*clauses, *_with(options, created_option)))


def _comment(options: Mapping[str, str]) -> Iterator[str]:
    if "description" in options:
        yield f"COMMENT {quote(options['description'])}"


def _with(options: Mapping[str, str], find: Callable[[str], Option]) -> Iterator[str]:
    shown = [f"{name} = {find(name).literal(text)}" for name, text in options.items() if name != "description"]
    if shown:
        yield f"WITH ({', '.join(shown)})"
