"""From messages to rows of a topic: the value by the stream's format, the other parts by the columns that take them.

Pure: it reads nothing but the messages. Decoded are the stream's columns; further columns of the topic are null.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from headwater.errors import InvalidSchema
from headwater.sources.kafka_columns import MessageColumn, Messages, Misfits, message_columns
from headwater.sources.kafka_formats import ValueDecoder, kept, value_decoder
from headwater.storage.decode import Decoded, Reject
from headwater.storage.decode.columns import null_column
from headwater.storage.decode.outcome import rejected
from headwater.storage.decode.shapes import plain_field
from headwater.storage.decode.sizes import rows_at_once
from headwater.types import StreamDefinition


class MessageDecoder:
    """Decodes messages of one stream into the columns that its topic has."""

    def __init__(self, stream: StreamDefinition, columns: Schema) -> None:
        """Columns are the topic's without those of the system; an error if the stream does not fit them."""
        self._columns = columns
        of_stream = stream_columns(stream, columns)
        self._parts: tuple[MessageColumn, ...] = message_columns(stream, of_stream)
        taken = {part.field.name for part in self._parts}
        of_value = Schema(*(field for field in of_stream.fields if field.name not in taken))
        self.most_rows = rows_at_once(pa.schema([plain_field(field) for field in columns.fields]))
        """How many messages are decoded in one go."""
        self._value: ValueDecoder | None = value_decoder(stream, of_value) if of_value.fields else None

    def decode(self, messages: Messages) -> Decoded:
        """The rows of all messages that fit, in order, and the others."""
        value = None if self._value is None else self._value([message.value() for message in messages])
        bad = {reject.row: reject for reject in value.rejects} if value else {}
        columns: dict[str, pa.Array] = {}
        misfits: Misfits = {}
        for part in self._parts:
            columns[part.field.name], found = part.read(messages, part.field)
            misfits = found | misfits
        misfits = {row: misfit for row, misfit in misfits.items() if row not in bad}
        columns = {name: kept(column, {*bad, *misfits}) for name, column in columns.items()}
        if value is not None:
            columns |= _without(value.table, bad, misfits)
        rejects = [*bad.values(), *_rejects(messages, misfits)]
        table = self._table(columns, len(messages) - len(rejects))
        return Decoded(table, tuple(sorted(rejects, key=lambda reject: reject.row)), len(messages))

    def _table(self, columns: dict[str, pa.Array], rows: int) -> pa.Table:
        """The columns in the topic's order, and nulls for those that the stream does not have."""
        arrays = [
            columns[field.name] if field.name in columns else null_column(rows, field.field_type)
            for field in self._columns.fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema([plain_field(field) for field in self._columns.fields]))


def _without(table: pa.Table, bad: Collection[int], misfits: Collection[int]) -> dict[str, pa.Array]:
    """The columns of `table`, which lacks the rows `bad`, without the rows `misfits`."""
    if misfits:
        rows = (row for row in range(table.num_rows + len(bad)) if row not in bad)
        table = table.filter(pa.array([row not in misfits for row in rows], pa.bool_()))
    return dict(zip(table.column_names, table.columns, strict=True))


def _rejects(messages: Messages, misfits: Misfits) -> list[Reject]:
    return [rejected(row, misfit, messages[row].value() or b"") for row, misfit in misfits.items()]


def stream_columns(stream: StreamDefinition, columns: Schema) -> Schema:
    """The topic's columns that the stream has, in the stream's order; InvalidSchema if the topic is another by now."""
    if stream.schema is None:
        return columns
    of_topic = {field.name: field for field in columns.fields}
    if missing := [field.name for field in stream.schema.fields if field.name not in of_topic]:
        raise _not_of_topic(stream, f'The topic has no column "{missing[0]}".')
    of_stream = {field.name for field in stream.schema.fields}
    if unset := [field.name for field in columns.fields if field.required and field.name not in of_stream]:
        raise _not_of_topic(stream, f'The topic requires the column "{unset[0]}", which the stream does not have.')
    return Schema(*(_both(of_topic[field.name], field) for field in stream.schema.fields))


def _both(of_topic: NestedField, of_stream: NestedField) -> NestedField:
    """The topic's column, required if either says so."""
    required = of_topic.required or of_stream.required
    return of_topic if required == of_topic.required else of_topic.model_copy(update={"required": True})


def _not_of_topic(stream: StreamDefinition, detail: str) -> InvalidSchema:
    return InvalidSchema(
        f'stream "{stream.name}" does not fit its topic "{stream.topic}"',
        detail=detail,
        hint="Create the stream again with the columns that the topic has now.",
    )
