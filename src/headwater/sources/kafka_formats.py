"""From the values of messages to rows: one row or one reject per message, in order, whatever a message holds.

* json: one object per message, on any number of lines. Values that are on one line each go to the decoder as one body.
* csv: one line per message without a header; cells are the columns in the stream's order.
* avro: the binary form of one record of `avro_schema`, without the header of a file. A message in the framing of a
  schema registry (a zero byte and four bytes of a schema's id before the record) is taken too, if it does not read as a
  plain record to its last byte; the id is not looked up, so that the record must be one of `avro_schema`.
* raw: the value itself, for the only column that takes no other part of the message.

A message without a value (a tombstone) is a reject, except in raw, where it is a null.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, NestedField, StringType

from headwater.errors import InvalidOption, RecordsRejected
from headwater.storage.decode import Decoded, RecordDecoder, Reject
from headwater.storage.decode.check import NULL
from headwater.storage.decode.json_records import lines_of
from headwater.storage.decode.outcome import RAW_LIMIT, Unfit, rejected
from headwater.storage.decode.records import RecordPlan, check_records
from headwater.storage.decode.shapes import plain_field
from headwater.storage.decode.sift import Sieve
from headwater.topics.produce import merge
from headwater.types import StreamDefinition

Values = Sequence[bytes | None]
ValueDecoder = Callable[[Values], Decoded]

TOMBSTONE = "the message has no value"
EMPTY = "the message is empty"

_NOT_JSON = b"-"
"""A line that no decoder takes: it stands for a message whose reason is known already, so that rows stay in step."""
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_FRAME = 5


def value_decoder(stream: StreamDefinition, columns: Schema) -> ValueDecoder:
    """What turns values into `columns`, those of the stream that take no other part of a message."""
    match stream.options.format:
        case "json":
            return _json_decoder(columns)
        case "csv":
            return _csv_decoder(columns)
        case "avro":
            return _avro_decoder(stream, columns)
        case "raw":
            return _raw_decoder(stream, columns)


# -- json -------------------------------------------------------------------------------------------------------


def _json_decoder(columns: Schema) -> ValueDecoder:
    decoder = RecordDecoder(columns)

    def decode(values: Values) -> Decoded:
        known: dict[int, str] = {}
        if (body := _plain_lines(values)) is None:
            body = b"\n".join([_one_line(row, value, known) for row, value in enumerate(values)])
        decoded = decoder.ndjson(body)
        return _as_they_came(decoded, values, known) if decoded.rejects else decoded

    return decode


def _plain_lines(values: Values) -> bytes | None:
    """The values as lines, if each is one that begins with a brace: as there are no other line breaks than between."""
    try:
        body = b"\n".join(values)  # type: ignore[arg-type]
    except TypeError:
        return None
    breaks = len(values) - 1
    plain = body.startswith(b"{") and body.count(b"\n{") == body.count(b"\n") == breaks
    return body if plain else None


def _one_line(row: int, value: bytes | None, known: dict[int, str]) -> bytes:
    """The record on one line, or a line that is refused, with the reason in `known`."""
    stripped = (value or b"").removeprefix(_BOM).strip(_SPACE)
    if not stripped:
        known[row] = TOMBSTONE if value is None else EMPTY
        return _NOT_JSON
    if b"\n" not in stripped:
        return stripped
    try:
        # Not by replacing line breaks: within a text they are an error, which must stay one.
        return lines_of(stripped) if stripped.startswith(b"{") else _NOT_JSON
    except RecordsRejected as refused:
        known[row] = f"not a JSON object: {(refused.detail or '').removesuffix('.')}"
        return _NOT_JSON


def _as_they_came(decoded: Decoded, values: Values, known: dict[int, str]) -> Decoded:
    rejects = tuple(
        Reject(each.row, each.field, known.get(each.row, each.reason), (values[each.row] or b"")[:RAW_LIMIT])
        for each in decoded.rejects
    )
    return Decoded(decoded.table, rejects, decoded.rows)


# -- csv --------------------------------------------------------------------------------------------------------


def _csv_decoder(columns: Schema) -> ValueDecoder:
    decoder = RecordDecoder(columns)
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow([field.name for field in columns.fields])
    head = header.getvalue().encode()

    def decode(values: Values) -> Decoded:
        """One body for all messages if that gives as many rows; otherwise halves, down to single messages.

        A message without a line break can swallow the next one by a quote that it leaves open, but can never become two
        rows: so as many rows as messages means one each.
        """
        lines = [b"" if value is None else value.rstrip(b"\r\n") for value in values]
        alone = len(values) == 1
        if alone or all(map(_may_be_one_line, lines)):
            try:
                # The last line ends, too: Arrow takes its empty last cell for a quoted one otherwise.
                decoded = decoder.csv(head + b"\n".join(lines) + b"\n")
            except RecordsRejected as refused:
                if alone:
                    return _refused(decoder, values[0], Unfit(refused.message))
            else:
                if decoded.rows == len(values):
                    return _as_they_came(decoded, values, {})
                if alone:
                    return _refused(decoder, values[0], _not_one_line(values[0], decoded.rows))
        middle = len(values) // 2
        return merge((decode(values[:middle]), decode(values[middle:])), None)

    return decode


def _may_be_one_line(line: bytes) -> bool:
    return line != b"" and b"\n" not in line and b"\r" not in line and line.count(b'"') % 2 == 0


def _not_one_line(value: bytes | None, rows: int) -> Unfit:
    if rows:
        return Unfit(f"expected one line, got {rows}")
    return Unfit(TOMBSTONE if value is None else EMPTY)


def _refused(decoder: RecordDecoder, value: bytes | None, unfit: Unfit) -> Decoded:
    return Decoded(pa.Table.from_batches([], schema=decoder.arrow_schema), (rejected(0, unfit, value or b""),), 1)


# -- avro -------------------------------------------------------------------------------------------------------


def _avro_decoder(stream: StreamDefinition, columns: Schema) -> ValueDecoder:
    schema = _avro_schema(stream, columns)
    plan = RecordPlan.of(columns)

    def read(value: bytes | None) -> object:
        if value is None:
            raise Unfit(TOMBSTONE)
        try:
            return _avro_record(value, schema)
        except Unfit as plain:
            if len(value) <= _FRAME or value[0]:
                raise
            try:
                return _avro_record(value[_FRAME:], schema)
            except Unfit:
                raise plain from None

    def decode(values: Values) -> Decoded:
        sieve = Sieve(plan.rows.schema, None, plan.weight.row)
        return check_records(plan, values, sieve, read=read, raw=lambda value: value or b"")

    return decode


def _avro_record(value: bytes, schema: Any) -> object:
    body = io.BytesIO(value)
    try:
        record = fastavro.schemaless_reader(body, schema, None)
    except Exception as error:  # whatever bytes can make of it: an end too soon, a length below zero, no UTF-8 …
        raise Unfit(f"not a record of avro_schema: {_said(error)}") from None
    if left := len(value) - body.tell():
        raise Unfit(f"not a record of avro_schema: {left} of {len(value)} bytes are left over")
    return record


def _said(error: Exception) -> str:
    return "the message ends too soon" if isinstance(error, EOFError) else str(error) or type(error).__name__


def _avro_schema(stream: StreamDefinition, columns: Schema) -> Any:
    """The parsed writer's schema, its fields compared with the columns once, not message by message."""
    try:
        schema = fastavro.parse_schema(json.loads(stream.options.avro_schema))
    except (ValueError, TypeError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise _avro_option(stream, f"It is not an Avro schema: {error}.") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _avro_option(stream, "It is not the schema of a record.")
    if _holds_nothings(schema):
        # A few bytes could claim billions of them.
        raise _avro_option(stream, "It has an array or map whose items take no bytes, such as nulls.")
    fields = {field["name"] for field in schema["fields"]}
    if unknown := sorted(fields - {field.name for field in columns.fields}):
        raise _avro_option(stream, f'The stream has no column for its field "{unknown[0]}".')
    absent = [field.name for field in columns.fields if field.required and field.name not in fields]
    if absent:
        raise _avro_option(stream, f'It has no field "{absent[0]}", which the stream requires.')
    return schema


def _holds_nothings(of: Any) -> bool:
    """Whether an Avro type has an array whose items take no bytes."""
    if isinstance(of, list):
        return any(map(_holds_nothings, of))
    if not isinstance(of, dict):
        return False
    inner = [field["type"] for field in of.get("fields", ())]
    inner += [of[key] for key in ("items", "values") if key in of]
    inner += [of["type"]] if isinstance(of["type"], dict | list) else []
    return (of["type"] == "array" and _is_nothing(of["items"])) or any(map(_holds_nothings, inner))


def _is_nothing(of: Any) -> bool:
    """Whether values of an Avro type take no bytes. A name is that of a type which is defined elsewhere."""
    if not isinstance(of, dict):
        return bool(of == "null")
    match of["type"]:
        case "record" | "error":
            return all(_is_nothing(field["type"]) for field in of["fields"])
        case "fixed":
            return bool(of["size"] == 0)
    return _is_nothing(of["type"]) if isinstance(of["type"], dict) else bool(of["type"] == "null")


def _avro_option(stream: StreamDefinition, detail: str) -> InvalidOption:
    return InvalidOption(f'stream "{stream.name}" has an avro_schema that cannot be used', detail=detail)


# -- raw --------------------------------------------------------------------------------------------------------


def _raw_decoder(stream: StreamDefinition, columns: Schema) -> ValueDecoder:
    if len(columns.fields) != 1 or not isinstance(columns.fields[0].field_type, StringType | BinaryType):
        raise InvalidOption(
            f'stream "{stream.name}" cannot have the format raw',
            detail="It needs exactly one column of type STRING or BINARY that takes no other part of the message.",
        )
    (field,) = columns.fields

    def decode(values: Values) -> Decoded:
        column, misfits = bytes_column(values, field)
        rejects = tuple(rejected(row, misfits[row], values[row] or b"") for row in sorted(misfits))
        table = pa.Table.from_arrays([kept(column, misfits)], schema=pa.schema([plain_field(field)]))
        return Decoded(table, rejects, len(values))

    return decode


def bytes_column(values: Values, field: NestedField) -> tuple[pa.Array, dict[int, Unfit]]:
    """The values as a STRING or BINARY column, and the rows whose value does not fit, which are null in it."""
    misfits = {row: Unfit(NULL, field.name) for row, value in enumerate(values) if value is None and field.required}
    column = pa.array(values, pa.binary())
    if isinstance(field.field_type, BinaryType):
        return column, misfits
    try:
        return column.cast(pa.string()), misfits
    except pa.ArrowInvalid:
        bad = {row for row, value in enumerate(values) if value is not None and not _is_text(value)}
        misfits |= {row: Unfit("not valid UTF-8", field.name) for row in bad}
        good = [None if row in bad else value for row, value in enumerate(values)]
        return pa.array(good, pa.binary()).cast(pa.string()), misfits


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def kept(column: pa.Array, dropped: Collection[int]) -> pa.Array:
    """The column without some rows."""
    if not dropped:
        return column
    return column.take(pa.array([row for row in range(len(column)) if row not in dropped], pa.int64()))
