"""The topic that a view sends its rows to: made with the view's columns, or checked to have them."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.errors import InvalidSchema
from headwater.sql.schema_text import render_type
from headwater.storage.view_tables import stored_type
from headwater.streaming.plan import Continuous
from headwater.types import TopicDefinition, TopicOptions


def sent_definition(plan: Continuous) -> TopicDefinition:
    """The topic, if there is none yet."""
    fields = [
        NestedField(number, name, stored_type(of)) for number, (name, of) in enumerate(plan.outline.outputs, start=1)
    ]
    about = f'Rows of materialized view "{plan.name}", as it emits them'
    name = plan.outline.definition.options.into_topic
    return TopicDefinition(name, Schema(*fields), options=TopicOptions(description=about))


def check_sent(plan: Continuous, columns: Schema) -> None:
    """InvalidSchema unless a topic takes the view's rows."""
    known = {field.name: render_type(field.field_type) for field in columns.fields}
    name = plan.outline.definition.options.into_topic
    for column, of in plan.outline.outputs:
        wanted = render_type(stored_type(of))
        if known.get(column) != wanted:
            has = f"is of type {known[column]}" if column in known else "is missing"
            raise InvalidSchema(
                f'topic "{name}" does not take rows of materialized view "{plan.name}"',
                detail=f'Its column "{column}" {has}; the view has {wanted}.',
            )
    shown = {column for column, _ in plan.outline.outputs}
    if more := [field.name for field in columns.fields if field.required and field.name not in shown]:
        raise InvalidSchema(
            f'topic "{name}" does not take rows of materialized view "{plan.name}"',
            detail=f'Its column "{more[0]}" is never null, and the view has no such column.',
        )
