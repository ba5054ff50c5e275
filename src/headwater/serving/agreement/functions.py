"""The scalar functions that are proven to agree. What is not in this table goes to Spark.

Each entry builds DuckDB's SQL from arguments whose Spark types are known; the differential tests run every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

import pyarrow as pa

from headwater.serving.agreement import types as t
from headwater.serving.agreement.arithmetic import absolute, arithmetic, rounded, whole
from headwater.serving.agreement.casts import aware, cast, coerce, explicit, failing, naive
from headwater.serving.agreement.values import NotProven, Typed

Args = Sequence[Typed]
Built = tuple[str, pa.DataType]


@dataclass(frozen=True, slots=True)
class Proven:
    """A function's builder, how many arguments it takes, and how Spark writes its name in result columns."""

    build: Callable[[Args], Built]
    least: int = 1
    most: int = 1
    shown: str | None = None
    about: str = ""
    defaults: tuple[str, ...] = ()


def common(args: Args) -> list[Typed]:
    """All arguments, brought to the one type that Spark chooses."""
    to = reduce(t.common_type, (a.type for a in args))
    if not (t.is_comparable(to) or all(a.type == to for a in args)):
        raise NotProven(f'type "{to}" here is not proven to agree')
    return [coerce(a, to) for a in args]


def whole_literal(value: Typed, least: int) -> int:
    """A literal whole number of at least `least`; NotProven for anything else."""
    if isinstance(value.literal, bool) or not isinstance(value.literal, int) or value.literal < least:
        raise NotProven("this argument must be a literal to be proven to agree")
    return value.literal


def string(value: Typed) -> str:
    """A string argument; Spark also takes whole numbers, booleans, dates and decimals."""
    if value.type == t.NULL:
        return cast(value.sql, t.STRING)
    return explicit(value, t.STRING).sql


def _text_of_string(value: Typed) -> str:
    if value.type != t.STRING:
        raise NotProven("this function on anything but strings is not proven to agree")
    return value.sql


def _coalesce(args: Args) -> Built:
    unified = common(args)
    return f"coalesce({', '.join(a.sql for a in unified)})", unified[0].type


def _nullif(args: Args) -> Built:
    left, right = common(args)
    if not t.is_comparable(left.type):
        raise NotProven('function "nullif" on this type is not proven to agree')
    return f"(CASE WHEN {left.sql} = {right.sql} THEN NULL ELSE {args[0].sql} END)", args[0].type


def _extreme(function: str) -> Callable[[Args], Built]:
    def build(args: Args) -> Built:
        unified = common(args)
        if not t.is_comparable(unified[0].type):
            raise NotProven(f'function "{function}" on this type is not proven to agree')
        of, found = unified[0].type, f"{function}({', '.join(a.sql for a in unified)})"
        return (_of_one_zero(found, unified) if t.is_fractional(of) else found), of

    return build


def _of_one_zero(found: str, among: Args) -> str:
    """`found`, or an error where it is zero and there are both zeros: which one Spark takes is up to its optimiser.

    Beside a null, DuckDB gives 0.0 for -0.0.
    """
    negative = " OR ".join(f"({a.sql} = 0 AND signbit({a.sql}))" for a in among)
    positive = " OR ".join(f"({a.sql} = 0 AND NOT signbit({a.sql}))" for a in among)
    never = failing("0.0 beside -0.0", among[0].type)
    minus = cast("'-0.0'", among[0].type)
    zero = f"CASE WHEN ({negative}) AND ({positive}) THEN {never} WHEN {negative} THEN {minus} ELSE {found} END"
    return f"(CASE WHEN {found} = 0 THEN {zero} ELSE {found} END)"


def _absolute(args: Args) -> Built:
    if not t.is_numeric(args[0].type):
        raise NotProven('function "abs" on this type is not proven to agree')
    return absolute(args[0]), args[0].type


def _positive_remainder(args: Args) -> Built:
    if not all(t.is_integral(a.type) for a in args) or not 0 < whole_literal(args[1], 1) < 2**31 * 2**31:
        raise NotProven('function "pmod" on these arguments is not proven to agree')
    a, b = common(args)
    return f"((({a.sql} % {b.sql}) + {b.sql}) % {b.sql})", a.type


def _micros(args: Args) -> Built:
    if args[0].type != t.TIMESTAMP:
        raise NotProven('function "unix_micros" on this type is not proven to agree')
    return f"epoch_us({args[0].sql})", t.BIGINT


def _round(args: Args) -> Built:
    return rounded(args[0], whole_literal(args[1], 0) if len(args) == 2 else 0)


def _square_root(args: Args) -> Built:
    x = coerce(args[0], t.DOUBLE).sql
    return f"sqrt({x})", t.DOUBLE


def _length(args: Args) -> Built:
    if args[0].type == t.BINARY:
        return cast(f"octet_length({args[0].sql})", t.INT), t.INT
    return cast(f"length({_text_of_string(args[0])})", t.INT), t.INT


def _cased(function: str) -> Callable[[Args], Built]:
    def build(args: Args) -> Built:
        x = _text_of_string(args[0])
        # Java's mapping knows context and one-to-many letters; for ASCII the two are one.
        guard = failing(f"{function} of letters outside ASCII", t.STRING)
        return f"(CASE WHEN strlen({x}) <> length({x}) THEN {guard} ELSE {function}({x}) END)", t.STRING

    return build


def _substring(args: Args) -> Built:
    x, start = _text_of_string(args[0]), whole_literal(args[1], 1)
    if len(args) == 2:
        return f"substring({x}, {start})", t.STRING
    return f"substring({x}, {start}, {whole_literal(args[2], 0)})", t.STRING


def _edge(function: str) -> Callable[[Args], Built]:
    def build(args: Args) -> Built:
        return f"{function}({_text_of_string(args[0])}, {whole_literal(args[1], 0)})", t.STRING

    return build


def _trim(function: str) -> Callable[[Args], Built]:
    def build(args: Args) -> Built:
        return f"{function}({_text_of_string(args[0])}, ' ')", t.STRING

    return build


def _replace(args: Args) -> Built:
    if not args[1].literal or not isinstance(args[1].literal, str):
        raise NotProven('function "replace" with a search text that is no literal is not proven to agree')
    return f"replace({', '.join(_text_of_string(a) for a in args)})", t.STRING


def _within(function: str) -> Callable[[Args], Built]:
    """Whether the first text holds the second, at some place; both engines compare bytes."""

    def build(args: Args) -> Built:
        return f"{function}({', '.join(_text_of_string(a) for a in args)})", t.BOOLEAN

    return build


def concatenated(args: Args) -> Built:
    """`concat` and `||`: null when any part is."""
    return f"({' || '.join(string(a) for a in args)})", t.STRING


def moment(value: Typed) -> str:
    """A date or timestamp (or a literal that means one) as a naive UTC timestamp."""
    if value.type == t.STRING:
        value = coerce(value, t.TIMESTAMP)
    if value.type not in t.DATETIMES:
        raise NotProven("this function on anything but dates and timestamps is not proven to agree")
    return naive(value)


def _day(value: Typed) -> str:
    return value.sql if value.type == t.DATE else cast(moment(value), t.DATE)


def part(unit: str, value: Typed) -> Built:
    """A part of a date or timestamp as a whole number."""
    return cast(PARTS[unit].format(x=moment(value)), t.INT), t.INT


PARTS: Mapping[str, str] = MappingProxyType(
    {
        "year": "year({x})",
        "quarter": "quarter({x})",
        "month": "month({x})",
        "week": "weekofyear({x})",
        "day": "day({x})",
        "dayofweek": "dayofweek({x}) + 1",
        "weekday": "isodow({x}) - 1",
        "doy": "dayofyear({x})",
        "hour": "hour({x})",
        "minute": "minute({x})",
        "second": "second({x})",
    }
)


def _part(unit: str) -> Proven:
    return Proven(lambda args: part(unit, args[0]))


_UNITS = {"year", "quarter", "month", "week", "day", "hour", "minute", "second"}


def _truncated(args: Args) -> Built:
    unit = args[0].literal
    if not isinstance(unit, str) or unit.lower() not in _UNITS:
        raise NotProven('function "date_trunc" with this unit is not proven to agree')
    cut = f"date_trunc('{unit.lower()}', {moment(args[1])})"
    if args[1].type == t.TIMESTAMP_NTZ:
        raise NotProven('function "date_trunc" on timestamp_ntz is not proven to agree')
    return aware(cut), t.TIMESTAMP


def _truncated_date(args: Args) -> Built:
    unit = args[1].literal
    if not isinstance(unit, str) or unit.lower() not in {"year", "quarter", "month", "week"}:
        raise NotProven('function "trunc" with this unit is not proven to agree')
    return cast(f"date_trunc('{unit.lower()}', {_day(args[0])})", t.DATE), t.DATE


def shifted_days(args: Args, sign: str = "+") -> Built:
    """`date_add` and `date_sub`: a date some days away."""
    if args[1].type != t.INT:
        raise NotProven("days that are no int are not proven to agree")
    return f"({_day(args[0])} {sign} {args[1].sql})", t.DATE


def _days_between(args: Args) -> Built:
    return cast(f"date_diff('day', {_day(args[1])}, {_day(args[0])})", t.INT), t.INT


def _to_date(args: Args) -> Built:
    return _day(args[0]), t.DATE


def _size(args: Args) -> Built:
    if pa.types.is_list(args[0].type):
        return cast(f"len({args[0].sql})", t.INT), t.INT
    if pa.types.is_map(args[0].type):
        return cast(f"cardinality({args[0].sql})", t.INT), t.INT
    raise NotProven('function "size" on this type is not proven to agree')


def _contains(args: Args) -> Built:
    array, value = args
    if not pa.types.is_list(array.type) or not t.is_comparable(array.type.value_type):
        raise NotProven('function "array_contains" on this type is not proven to agree')
    x = coerce(value, array.type.value_type).sql
    return (
        f"(CASE WHEN {array.sql} IS NULL OR {x} IS NULL THEN NULL WHEN list_contains({array.sql}, {x}) THEN TRUE "
        f"WHEN list_count({array.sql}) < len({array.sql}) THEN NULL ELSE FALSE END)"
    ), t.BOOLEAN


def _null_test(suffix: str) -> Callable[[Args], Built]:
    return lambda args: (f"({args[0].sql} {suffix})", t.BOOLEAN)


def _now(args: Args) -> Built:
    return "now()", t.TIMESTAMP


def _today(args: Args) -> Built:
    return cast("make_timestamp(epoch_us(now()))", t.DATE), t.DATE


_ASCII = "Text outside ASCII is left to Spark at run time."
_LITERAL = "Positions and lengths are literals, counted from 1."

CASTS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "boolean": t.BOOLEAN,
        "int": t.INT,
        "bigint": t.BIGINT,
        "float": t.FLOAT,
        "double": t.DOUBLE,
        "string": t.STRING,
        "date": t.DATE,
        "timestamp": t.TIMESTAMP,
    }
)
"""Functions that are another way to write a cast."""

SCALARS: Mapping[str, Proven] = MappingProxyType(
    {
        "coalesce": Proven(_coalesce, 1, 99),
        "nvl": Proven(_coalesce, 2, 2),
        "ifnull": Proven(_coalesce, 2, 2),
        "nullif": Proven(_nullif, 2, 2),
        "isnull": Proven(_null_test("IS NULL"), shown="({} IS NULL)"),
        "isnotnull": Proven(_null_test("IS NOT NULL"), shown="({} IS NOT NULL)"),
        "greatest": Proven(_extreme("greatest"), 2, 99),
        "least": Proven(_extreme("least"), 2, 99),
        "abs": Proven(_absolute),
        "mod": Proven(lambda args: arithmetic("%", args[0], args[1]), 2, 2),
        "pmod": Proven(_positive_remainder, 2, 2, about="Whole numbers, by a positive literal."),
        "round": Proven(_round, 1, 2, about="Doubles and decimals, to 0 to 6 digits.", defaults=("0",)),
        "floor": Proven(lambda args: whole("floor", args[0]), shown="FLOOR"),
        "ceil": Proven(lambda args: whole("ceil", args[0]), shown="CEIL"),
        "ceiling": Proven(lambda args: whole("ceil", args[0])),
        "sqrt": Proven(_square_root, shown="SQRT"),
        "length": Proven(_length),
        "char_length": Proven(_length),
        "character_length": Proven(_length),
        "len": Proven(_length),
        "upper": Proven(_cased("upper"), about=_ASCII),
        "ucase": Proven(_cased("upper"), about=_ASCII),
        "lower": Proven(_cased("lower"), about=_ASCII),
        "lcase": Proven(_cased("lower"), about=_ASCII),
        "substring": Proven(_substring, 2, 3, about=_LITERAL, defaults=("2147483647",)),
        "substr": Proven(_substring, 2, 3, about=_LITERAL, defaults=("2147483647",)),
        "left": Proven(_edge("left"), 2, 2, about=_LITERAL),
        "right": Proven(_edge("right"), 2, 2, about=_LITERAL),
        "trim": Proven(_trim("trim"), about="Spaces only."),
        "ltrim": Proven(_trim("ltrim"), about="Spaces only."),
        "rtrim": Proven(_trim("rtrim"), about="Spaces only."),
        "replace": Proven(_replace, 3, 3, about="The search text is a literal."),
        "concat": Proven(concatenated, 1, 99),
        "startswith": Proven(_within("starts_with"), 2, 2),
        "endswith": Proven(_within("ends_with"), 2, 2),
        "contains": Proven(_within("contains"), 2, 2),
        "year": _part("year"),
        "quarter": _part("quarter"),
        "month": _part("month"),
        "weekofyear": _part("week"),
        "day": _part("day"),
        "dayofmonth": _part("day"),
        "dayofweek": _part("dayofweek"),
        "weekday": _part("weekday"),
        "dayofyear": _part("doy"),
        "hour": _part("hour"),
        "minute": _part("minute"),
        "second": _part("second"),
        "date_trunc": Proven(_truncated, 2, 2, about="Units from second to year."),
        "trunc": Proven(_truncated_date, 2, 2, about="Units from week to year."),
        "date_add": Proven(shifted_days, 2, 2),
        "dateadd": Proven(shifted_days, 2, 2, shown="date_add"),
        "date_sub": Proven(lambda args: shifted_days(args, "-"), 2, 2),
        "datediff": Proven(_days_between, 2, 2),
        "date_diff": Proven(_days_between, 2, 2),
        "to_date": Proven(_to_date),
        "last_day": Proven(lambda args: (f"last_day({_day(args[0])})", t.DATE)),
        "now": Proven(_now, 0, 0, about="Constant within a statement."),
        "current_timestamp": Proven(_now, 0, 0, about="Constant within a statement."),
        "current_date": Proven(_today, 0, 0, about="Constant within a statement."),
        "unix_micros": Proven(_micros),
        "size": Proven(_size),
        "cardinality": Proven(_size),
        "array_contains": Proven(_contains, 2, 2),
    }
)
