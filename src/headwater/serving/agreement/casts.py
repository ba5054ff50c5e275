"""Conversions that give the same value in both engines, implicit ones (Spark's coercion) and written ones."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa

from headwater.serving.agreement import types as t
from headwater.serving.agreement.scope import text_literal
from headwater.serving.agreement.values import CHECK, NotProven, Typed

EXACT_DOUBLE_DIGITS = 15
"""A decimal of this many digits is a whole double over a power of ten: dividing them rounds once, as Spark does."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d:\d\d)?)?\Z")
_INTEGER = re.compile(r"-?\d{1,9}\Z")


def cast(sql: str, to: pa.DataType) -> str:
    """A plain cast in DuckDB's SQL."""
    return f"CAST({sql} AS {t.duck_name(to)})"


def failing(message: str, of: pa.DataType) -> str:
    """A number or string that raises when it is computed.

    DuckDB's own `error` is volatile, which keeps it out of keys and in the way of the optimiser.
    """
    text = text_literal(CHECK + message)
    return cast(f"CAST({text} AS INTEGER)", of) if of == t.STRING else f"CAST({text} AS {t.duck_name(of)})"


def naive(value: Typed) -> str:
    """A date or timestamp as DuckDB's TIMESTAMP in UTC; reading the microseconds is much faster than ICU."""
    if value.type == t.TIMESTAMP:
        return f"make_timestamp(epoch_us({value.sql}))"
    return cast(value.sql, t.TIMESTAMP_NTZ) if value.type == t.DATE else value.sql


def aware(sql: str) -> str:
    """A naive UTC TIMESTAMP as TIMESTAMPTZ."""
    return f"make_timestamptz(epoch_us({sql}))"


def coerce(value: Typed, to: pa.DataType) -> Typed:
    """`value` as Spark would silently convert it to `to`; the name in a result stays."""
    if value.type == to:
        return value
    if value.type == t.STRING and to in t.DATETIMES:
        return _parsed(value, to)
    return replace(value, sql=_widened(value, to), type=to, literal=None)


def _widened(value: Typed, to: pa.DataType) -> str:
    of = value.type
    if of == t.NULL or (t.is_integral(of) and t.is_numeric(to)) or (of == t.FLOAT and to == t.DOUBLE):
        return cast(value.sql, to)
    if t.is_decimal(of) and t.is_decimal(to):
        return cast(value.sql, to)
    if t.is_decimal(of) and to == t.DOUBLE:
        return _decimal_as_double(value)
    if of in t.DATETIMES and to in t.TIMESTAMPS:
        return aware(naive(value)) if to == t.TIMESTAMP else naive(value)
    raise NotProven(f'conversion of "{of}" to "{to}" is not proven to agree')


def _decimal_as_double(value: Typed) -> str:
    if isinstance(value.literal, Decimal):
        return double(float(value.literal))
    if value.type.precision <= EXACT_DOUBLE_DIGITS:
        return cast(value.sql, t.DOUBLE)
    bound = cast(f"'{Decimal(1).scaleb(EXACT_DOUBLE_DIGITS - value.type.scale):f}'", value.type)
    never = failing("a long decimal as a double", t.DOUBLE)
    return f"(CASE WHEN abs({value.sql}) >= {bound} THEN {never} ELSE {cast(value.sql, t.DOUBLE)} END)"


def double(value: float) -> str:
    """A finite double in DuckDB's SQL, exactly."""
    return f"CAST('{value!r}' AS DOUBLE)"


def explicit(value: Typed, to: pa.DataType) -> Typed:
    """`CAST(value AS to)`; a column keeps its name when the cast stands alone in a select list."""
    name = None if value.name is None else f"CAST({value.name} AS {t.spark_name(to)})"
    column = value.attribute if value.attribute == value.name else None
    return Typed(_explicit(value, to), to, name, value.constant, column)


def cast_by_name(value: Typed, to: pa.DataType) -> Typed:
    """`date(value)` and the like, which leave no trace in names."""
    return replace(explicit(value, to), name=value.name)


def _explicit(value: Typed, to: pa.DataType) -> str:
    of = value.type
    if of == to:
        return value.sql
    if isinstance(value.literal, str) and of == t.STRING:
        return _parsed_literal(value.literal, to)
    if t.is_fractional(of) or t.is_decimal(of):
        return _from_number(value, to)
    if (t.is_integral(of) or of == t.BOOLEAN) and to in (t.INT, t.BIGINT, t.STRING):
        return cast(value.sql, to)
    if t.is_integral(of) and to == t.BOOLEAN:
        return f"({value.sql} <> 0)"
    if t.is_integral(of) and to == t.FLOAT:
        return cast(value.sql, to)
    if of in t.TIMESTAMPS and to == t.DATE:
        return cast(naive(value), t.DATE)
    if of == t.DATE and to == t.STRING:
        return _date_as_text(value.sql)
    return _widened(value, to)


def _date_as_text(sql: str) -> str:
    # Outside of four digits, Spark writes +10000-01-01 and 0000-12-31, and DuckDB 10000-01-01 and 0001-12-31 (BC).
    never = failing("a year of other than four digits as text", t.STRING)
    common = f"{sql} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' OR {sql} IS NULL"
    return f"(CASE WHEN {common} THEN {cast(sql, t.STRING)} ELSE {never} END)"


def _decimal_as_text(value: Typed) -> str:
    of = value.type
    if of.precision > of.scale:
        return cast(value.sql, t.STRING)
    # Without a digit before the point, DuckDB writes .5 where Spark writes 0.5.
    return cast(cast(value.sql, t.decimal(of.precision + 1, of.scale)), t.STRING)


def _from_number(value: Typed, to: pa.DataType) -> str:
    if t.is_integral(to):
        return cast(f"trunc({value.sql})", to)
    if t.is_decimal(value.type) and to == t.STRING:
        return _decimal_as_text(value)
    if value.type == t.DOUBLE and to == t.FLOAT:
        return cast(value.sql, to)
    return _widened(value, to)


def _parsed(value: Typed, to: pa.DataType) -> Typed:
    if not isinstance(value.literal, str):
        raise NotProven("strings as dates or timestamps are not proven to agree")
    moment = instant(value.literal, to)
    return replace(value, sql=moment_sql(moment, to), type=to, literal=moment)


def _parsed_literal(text: str, to: pa.DataType) -> str:
    if to in t.DATETIMES:
        return moment_sql(instant(text, to), to)
    if t.is_integral(to) and _INTEGER.match(text):
        return cast(str(int(text)), to)
    raise NotProven("this conversion of a string is not proven to agree")


def instant(text: str, to: pa.DataType) -> dt.date | dt.datetime:
    """The date or timestamp that a literal means, in the plain ISO forms; NotProven for any other."""
    try:
        if to == t.DATE:
            if _DATE.match(text):
                return dt.date.fromisoformat(text)
        elif found := _TIMESTAMP.match(text):
            day, time, zone = found.groups()
            return _timestamp(day, time, zone, to)
    except (ValueError, OverflowError):
        pass
    raise NotProven(f'"{text}" as a date or timestamp is not proven to agree')


def _timestamp(day: str, time: str | None, zone: str | None, to: pa.DataType) -> dt.datetime:
    if zone and to == t.TIMESTAMP_NTZ:
        raise ValueError("a zone where Spark takes none")
    moment = dt.datetime.fromisoformat(f"{day}T{time or '00:00'}{zone or ''}")
    if to == t.TIMESTAMP_NTZ:
        return moment
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


def moment_sql(moment: dt.date | dt.datetime, to: pa.DataType) -> str:
    """A date or timestamp in DuckDB's SQL."""
    return f"CAST({text_literal(moment.isoformat(*(' ',) * isinstance(moment, dt.datetime)))} AS {t.duck_name(to)})"


def moment_name(moment: dt.date | dt.datetime, to: pa.DataType) -> str:
    """A date or timestamp as Spark writes it in names."""
    if not isinstance(moment, dt.datetime):
        return f"DATE '{moment.isoformat()}'"
    text = moment.replace(tzinfo=None).isoformat(" ")
    text = text.rstrip("0") if "." in text else text
    return f"{t.spark_name(to)} '{text}'"
