"""Columns and types in Spark's spelling, to PyIceberg types and back without loss.

TIMESTAMP means what Spark means by it, an instant (Iceberg's timestamptz); TIMESTAMP_NTZ is Iceberg's timestamp.
Elements and values of nested types may be null unless they say NOT NULL.
"""

from __future__ import annotations

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

from headwater.errors import HeadwaterError, InvalidSchema
from headwater.sql.cursor import Cursor, closest
from headwater.sql.schema_rules import check_count, check_decimal, check_depth, check_fixed, checked_schema
from headwater.sql.tokens import Token, quote

UNASSIGNED = 0
"""The field id of what has not become part of a schema yet."""

TYPES: dict[str, type[IcebergType]] = {
    "BOOLEAN": BooleanType,
    "INT": IntegerType,
    "INTEGER": IntegerType,
    "BIGINT": LongType,
    "LONG": LongType,
    "FLOAT": FloatType,
    "REAL": FloatType,
    "DOUBLE": DoubleType,
    "DATE": DateType,
    "TIME": TimeType,
    "TIMESTAMP": TimestamptzType,
    "TIMESTAMP_LTZ": TimestamptzType,
    "TIMESTAMPTZ": TimestamptzType,
    "TIMESTAMP_NTZ": TimestampType,
    "STRING": StringType,
    "TEXT": StringType,
    "VARCHAR": StringType,
    "UUID": UUIDType,
    "BINARY": BinaryType,
}
PARAMETRIC = ("DECIMAL", "NUMERIC", "DEC", "FIXED", "ARRAY", "MAP", "STRUCT")
BARE_DECIMAL = (38, 9)
"""Precision and scale of a DECIMAL that names none: Spark's (10, 0) would reject 10.50."""

# The first spelling of a type is the one that is rendered.
_SPELLING: dict[type[IcebergType], str] = {of: name for name, of in reversed(TYPES.items())}

_INSTEAD = {
    "TINYINT": "Use INT.",
    "BYTE": "Use INT.",
    "SMALLINT": "Use INT.",
    "SHORT": "Use INT.",
    "CHAR": "Use STRING: Headwater does not enforce lengths.",
    "CHARACTER": "Use STRING: Headwater does not enforce lengths.",
    "BOOL": "Use BOOLEAN.",
    "BYTEA": "Use BINARY.",
    "BLOB": "Use BINARY.",
    "BYTES": "Use BINARY.",
    "DATETIME": "Use TIMESTAMP for an instant, or TIMESTAMP_NTZ for a date and time without zone.",
    "FLOAT64": "Use DOUBLE.",
    "INT64": "Use BIGINT.",
    "INT32": "Use INT.",
    "NUMBER": "Use DECIMAL(p, s).",
    "LIST": "Use ARRAY<T>.",
    "OBJECT": "Use STRUCT<a: T, b: U>.",
    "ROW": "Use STRUCT<a: T, b: U>.",
    "JSON": "Use STRING, or describe the content as STRUCT, MAP and ARRAY.",
    "VARIANT": "Use STRING, or describe the content as STRUCT, MAP and ARRAY.",
    "INTERVAL": "Use BIGINT and say in the comment which unit it counts.",
    "SERIAL": "Every topic has a dense _offset; use BIGINT for your own numbers.",
}
_CONSTRAINTS = {
    "PRIMARY": "Use WITH (dedup_key = '...') to keep the first record of each key.",
    "UNIQUE": "Use WITH (dedup_key = '...') to keep the first record of each key.",
    "DEFAULT": "Topics have no default values; producers send every column that is NOT NULL.",
    "GENERATED": "Compute the value in a query.",
    "CHECK": "Filter in a query.",
    "REFERENCES": "Topics have no foreign keys.",
    "COLLATE": "Strings compare by their bytes.",
}


def parse_columns(text: str) -> Schema:
    """The schema of a column list, with or without brackets around it: `id BIGINT NOT NULL, name STRING`."""
    cursor = Cursor(text, context="column list")
    bracketed = cursor.accept_symbol("(")
    schema = read_columns(cursor)
    if bracketed:
        cursor.expect_symbol(")", "the columns")
    cursor.expect_end()
    return schema


def parse_type(text: str) -> IcebergType:
    """The type that a text spells; its nested fields have no ids before they become part of a schema."""
    cursor = Cursor(text, context="type")
    of = read_type(cursor)
    cursor.expect_end()
    return of


def read_columns(cursor: Cursor) -> Schema:
    """Read columns up to the bracket or the end behind them."""
    start = cursor.token
    if start.kind == "end" or cursor.at_symbol(")"):
        with cursor.locating(start):
            return checked_schema(())
    fields = _read_fields(cursor, in_struct=False, depth=1)
    with cursor.locating(start):
        return checked_schema(fields)


def read_type(cursor: Cursor, depth: int = 1) -> IcebergType:
    """Read one type."""
    token = cursor.token
    with cursor.locating(token):
        check_depth((), depth)
    if token.kind != "word":
        raise cursor.unexpected("a type")
    match name := token.keyword:
        case "DECIMAL" | "NUMERIC" | "DEC":
            return _read_decimal(cursor)
        case "FIXED":
            return _read_fixed(cursor)
        case "ARRAY" | "MAP" | "STRUCT":
            return _read_nested(cursor, depth)
        case _ if name in TYPES:
            cursor.advance()
            if cursor.at_symbol("("):
                raise _refused_parameter(cursor, token)
            return TYPES[name]()
    raise _refused_type(cursor, token)


def _refused_type(cursor: Cursor, token: Token) -> HeadwaterError:
    guess = closest(token.text, (*TYPES, *PARAMETRIC))
    hint = _INSTEAD.get(token.keyword) or (f"Did you mean {guess}?" if guess else None)
    known = ", ".join(
        (
            *dict.fromkeys(_SPELLING[of] for of in TYPES.values()),
            "DECIMAL(p, s)",
            "FIXED(n)",
            "ARRAY<T>",
            "MAP<K, V>",
            "STRUCT<...>",
        )
    )
    return cursor.located(
        InvalidSchema(f'type "{token.text[:64]}" is not known', detail=f"Topics have {known}.", hint=hint), token
    )


def _refused_parameter(cursor: Cursor, token: Token) -> HeadwaterError:
    text = TYPES[token.keyword] is StringType
    return cursor.located(
        InvalidSchema(
            f'type "{token.keyword}" takes no parameter',
            hint="Use STRING: Headwater does not enforce lengths." if text else f"Write {token.keyword} alone.",
        )
    )


def _read_decimal(cursor: Cursor) -> DecimalType:
    """DECIMAL is DECIMAL(38, 9), which holds amounts of any kind; DECIMAL(p) is DECIMAL(p, 0), as in Spark."""
    token = cursor.advance()
    precision, scale = BARE_DECIMAL
    if cursor.accept_symbol("("):
        precision, scale = cursor.integer("a precision"), 0
        if cursor.accept_symbol(","):
            scale = cursor.integer("a scale")
        cursor.expect_symbol(")", "the precision and scale")
    with cursor.locating(token):
        check_decimal(precision, scale)
    return DecimalType(precision, scale)


def _read_fixed(cursor: Cursor) -> FixedType:
    token = cursor.advance()
    close = "]" if cursor.at_symbol("[") else ")"
    if not cursor.accept_symbol("["):
        cursor.expect_symbol("(", "FIXED")
    length = cursor.integer("a number of bytes")
    cursor.expect_symbol(close, "the number of bytes")
    with cursor.locating(token):
        check_fixed(length)
    return FixedType(length)


def _read_nested(cursor: Cursor, depth: int) -> IcebergType:
    kind = cursor.advance().keyword
    cursor.expect_symbol("<", kind)
    of: IcebergType
    if kind == "ARRAY":
        element = read_type(cursor, depth + 1)
        of = ListType(UNASSIGNED, element, element_required=_read_not_null(cursor))
    elif kind == "MAP":
        key = read_type(cursor, depth + 1)
        _read_not_null(cursor)  # keys are never null, so saying it changes nothing
        cursor.expect_symbol(",", "the key's type")
        value = read_type(cursor, depth + 1)
        of = MapType(UNASSIGNED, key, UNASSIGNED, value, value_required=_read_not_null(cursor))
    elif cursor.at_symbol(">"):
        raise cursor.unexpected("a field name")
    else:
        of = StructType(*_read_fields(cursor, in_struct=True, depth=depth + 1))
    cursor.expect_symbol(">", f"the type inside {kind}")
    return of


def _read_not_null(cursor: Cursor) -> bool:
    """Read NOT NULL if it is there; NOT alone is a mistake."""
    if found := cursor.at("NOT"):
        cursor.expect("NOT", "NULL")
    return found


def _read_fields(cursor: Cursor, *, in_struct: bool, depth: int) -> list[NestedField]:
    fields: dict[str, NestedField] = {}
    while True:
        token = cursor.token
        field = _read_field(cursor, in_struct=in_struct, depth=depth)
        if field.name in fields:
            raise cursor.located(InvalidSchema(f'column "{field.name}" is defined twice'), token)
        fields[field.name] = field
        with cursor.locating(token):
            check_count(len(fields))
        if not cursor.accept_symbol(","):
            return list(fields.values())


def _read_field(cursor: Cursor, *, in_struct: bool, depth: int) -> NestedField:
    named = cursor.at("CONSTRAINT") and cursor.ahead(2).keyword in ("PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
    if named or cursor.at("PRIMARY", "KEY") or cursor.at("FOREIGN", "KEY"):
        raise _refused_constraint(cursor)
    name = cursor.name("column")
    if in_struct:
        cursor.accept_symbol(":")
    of = read_type(cursor, depth)
    required: bool | None = None
    comment: str | None = None
    while True:
        if required is None and _read_not_null(cursor):
            required = True
        elif required is None and cursor.accept("NULL"):
            required = False
        elif comment is None and cursor.accept("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.token.keyword in _CONSTRAINTS:
            raise _refused_constraint(cursor)
        else:
            break
    if not (cursor.token.kind == "end" or cursor.token.text in (",", ")", ">")):
        raise cursor.unexpected(f'"," or the end of the columns after column "{name}"', known=("NOT NULL", "COMMENT"))
    return NestedField(UNASSIGNED, name, of, required=bool(required), doc=comment)


def _refused_constraint(cursor: Cursor) -> HeadwaterError:
    keyword = cursor.token.keyword
    hint = _CONSTRAINTS.get(keyword, "Leave the constraint out.")
    return cursor.unexpected("columns with NOT NULL and COMMENT only", hint=hint)


def render_type(of: IcebergType) -> str:
    """A type as text that `parse_type` reads back to an equal type, ids aside."""
    match of:
        case DecimalType():
            return f"DECIMAL({of.precision}, {of.scale})"
        case FixedType():
            return f"FIXED({len(of)})"
        case ListType():
            return f"ARRAY<{render_type(of.element_type)}{_not_null(of.element_required)}>"
        case MapType():
            value = render_type(of.value_type) + _not_null(of.value_required)
            return f"MAP<{render_type(of.key_type)}, {value}>"
        case StructType():
            return f"STRUCT<{', '.join(_render_field(field, ': ') for field in of.fields)}>"
        case _:
            return _SPELLING[type(of)]


def render_columns(schema: Schema, *, separator: str = ", ") -> str:
    """Columns as text that `parse_columns` reads back to an equal schema."""
    return separator.join(_render_field(field, " ") for field in schema.fields)


def _render_field(field: NestedField, between: str) -> str:
    comment = "" if field.doc is None else f" COMMENT {quote(field.doc)}"
    return f"{field.name}{between}{render_type(field.field_type)}{_not_null(field.required)}{comment}"


def _not_null(required: bool) -> str:
    return " NOT NULL" if required else ""
