"""Iceberg schemas as Arrow schemas: the one mapping that the log, the decoder and the Parquet writer share."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.errors import InvalidSchema

FIELD_ID = b"PARQUET:field_id"

_PRIMITIVES: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    StringType: pa.string(),
    UUIDType: pa.uuid(),
    BinaryType: pa.binary(),
}


def arrow_type(of: IcebergType) -> pa.DataType:
    """The Arrow type that carries values of an Iceberg type in the log, in batches and in Parquet."""
    match of:
        case DecimalType():
            return pa.decimal128(of.precision, of.scale)
        case FixedType():
            return pa.binary(len(of))
        case ListType():
            return pa.list_(_field("element", of.element_type, of.element_required, of.element_id))
        case MapType():
            return pa.map_(
                _field("key", of.key_type, True, of.key_id),
                _field("value", of.value_type, of.value_required, of.value_id),
            )
        case StructType():
            return pa.struct([arrow_field(field) for field in of.fields])
    if known := _PRIMITIVES.get(type(of)):
        return known
    raise InvalidSchema(f'type "{of}" cannot be stored', hint="Use one of the Iceberg v2 types.")


def arrow_field(field: NestedField) -> pa.Field:
    """One column as an Arrow field that carries its Iceberg field id, so that Parquet files do too."""
    return _field(field.name, field.field_type, field.required, field.field_id)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's or a topic's columns, in order."""
    return pa.schema([arrow_field(field) for field in schema.fields])


def _field(name: str, of: IcebergType, required: bool, field_id: int) -> pa.Field:
    return pa.field(name, arrow_type(of), nullable=not required, metadata={FIELD_ID: str(field_id).encode()})


def nullable_inside(schema: Schema) -> Schema:
    """The schema as a condition sees it: a required field is null all the same where the struct around it is."""
    fields = [_below(field, null=False) for field in schema.fields]
    same = all(new is old for new, old in zip(fields, schema.fields, strict=True))
    return schema if same else Schema(*fields, schema_id=schema.schema_id)


def _below(field: NestedField, *, null: bool) -> NestedField:
    """The field, with those inside it; `null` if a struct around it may be."""
    of, null = field.field_type, null or not field.required
    if isinstance(of, StructType):
        inside = [_below(each, null=null) for each in of.fields]
        if any(new is not old for new, old in zip(inside, of.fields, strict=True)):
            field = field.model_copy(update={"field_type": StructType(*inside)})
    return field.model_copy(update={"required": False}) if null and field.required else field
