"""Aggregate and window functions that are proven to agree, over groups and over windows alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from headwater.serving.agreement import types as t
from headwater.serving.agreement.arithmetic import divided, positive_zero
from headwater.serving.agreement.casts import cast, coerce, failing
from headwater.serving.agreement.values import NotProven, Typed

Call = Callable[[str, str], str]
"""(DuckDB function, argument) to a call that carries DISTINCT, FILTER or OVER."""
Built = tuple[str, pa.DataType]


@dataclass(frozen=True, slots=True)
class ProvenAggregate:
    """An aggregate's builder, whether DISTINCT is proven too, and what a reader should know."""

    build: Callable[[Sequence[Typed], Call], Built]
    distinct: bool = False
    most: int = 1
    about: str = ""


def count_rows(call: Call) -> Built:
    """`count(*)`."""
    return call("count", "*"), t.BIGINT


def _count(args: Sequence[Typed], call: Call) -> Built:
    if any(not t.is_comparable(a.type) for a in args) and len(args) > 1:
        raise NotProven('function "count" on this type is not proven to agree')
    if len(args) == 1:
        return call("count", positive_zero(args[0])), t.BIGINT
    # Spark counts the rows in which no argument is null.
    known = " AND ".join(f"{a.sql} IS NOT NULL" for a in args)
    row = ", ".join(f"f{number} := {positive_zero(a)}" for number, a in enumerate(args))
    return call("count", f"CASE WHEN {known} THEN struct_pack({row}) END"), t.BIGINT


def _sum(args: Sequence[Typed], call: Call) -> Built:
    of = args[0].type
    if t.is_integral(of):
        return cast(call("sum", args[0].sql), t.BIGINT), t.BIGINT
    if t.is_decimal(of):
        to = t.decimal(min(of.precision + 10, t.MAX_PRECISION), of.scale)
        return cast(call("sum", args[0].sql), to), to
    return call("sum", _as_double("sum", args[0])), t.DOUBLE


def _average(args: Sequence[Typed], call: Call) -> Built:
    of, x = args[0].type, args[0].sql
    if t.is_integral(of):
        return call("avg", _as_exact_double(args[0])), t.DOUBLE
    if not t.is_decimal(of):
        return call("avg", _as_double("avg", args[0])), t.DOUBLE
    to = t.decimal(min(of.precision + 4, t.MAX_PRECISION), min(of.scale + 4, t.MAX_PRECISION))
    count, total = call("count", x), call("sum", x)
    quotient = divided(total, of, cast(count, t.decimal(20, 0)), t.decimal(20, 0), to)
    return f"(CASE WHEN {count} > 0 THEN {quotient} END)", to


def _as_exact_double(value: Typed) -> str:
    """A whole number as the double that Spark adds up; an error where that is another number."""
    found = cast(value.sql, t.DOUBLE)
    if value.type == t.INT:
        return found
    never = failing("the average of large numbers", t.DOUBLE)
    return f"(CASE WHEN {value.sql} BETWEEN -{2**53} AND {2**53} OR {value.sql} IS NULL THEN {found} ELSE {never} END)"


def _as_double(function: str, value: Typed) -> str:
    if not t.is_fractional(value.type):
        raise NotProven(f'function "{function}" on this type is not proven to agree')
    return positive_zero(coerce(value, t.DOUBLE))


def _spread(function: str) -> Callable[[Sequence[Typed], Call], Built]:
    def build(args: Sequence[Typed], call: Call) -> Built:
        if not t.is_numeric(args[0].type):
            raise NotProven(f'function "{function}" on this type is not proven to agree')
        return call(function, coerce(args[0], t.DOUBLE).sql), t.DOUBLE

    return build


def _extreme(function: str) -> Callable[[Sequence[Typed], Call], Built]:
    def build(args: Sequence[Typed], call: Call) -> Built:
        if not t.is_comparable(args[0].type):
            raise NotProven(f'function "{function}" on this type is not proven to agree')
        return call(function, args[0].sql), args[0].type

    return build


def _logical(function: str) -> Callable[[Sequence[Typed], Call], Built]:
    def build(args: Sequence[Typed], call: Call) -> Built:
        return call(function, _condition(function, args[0])), t.BOOLEAN

    return build


def _count_if(args: Sequence[Typed], call: Call) -> Built:
    return call("count", f"CASE WHEN {_condition('count_if', args[0])} THEN 1 END"), t.BIGINT


def _condition(function: str, value: Typed) -> str:
    if value.type != t.BOOLEAN:
        raise NotProven(f'function "{function}" on this type is not proven to agree')
    return value.sql


_ROUGH = "Sums of doubles depend on the order of rows in both engines."

AGGREGATES: Mapping[str, ProvenAggregate] = MappingProxyType(
    {
        "count": ProvenAggregate(_count, distinct=True, most=9),
        "sum": ProvenAggregate(_sum, distinct=True, about=_ROUGH),
        "avg": ProvenAggregate(_average, distinct=True, about=_ROUGH),
        "mean": ProvenAggregate(_average, distinct=True, about=_ROUGH),
        "min": ProvenAggregate(_extreme("min")),
        "max": ProvenAggregate(_extreme("max")),
        "stddev": ProvenAggregate(_spread("stddev_samp"), about=_ROUGH),
        "std": ProvenAggregate(_spread("stddev_samp"), about=_ROUGH),
        "stddev_samp": ProvenAggregate(_spread("stddev_samp"), about=_ROUGH),
        "stddev_pop": ProvenAggregate(_spread("stddev_pop"), about=_ROUGH),
        "variance": ProvenAggregate(_spread("var_samp"), about=_ROUGH),
        "var_samp": ProvenAggregate(_spread("var_samp"), about=_ROUGH),
        "var_pop": ProvenAggregate(_spread("var_pop"), about=_ROUGH),
        "count_if": ProvenAggregate(_count_if),
        "bool_and": ProvenAggregate(_logical("bool_and")),
        "every": ProvenAggregate(_logical("bool_and")),
        "bool_or": ProvenAggregate(_logical("bool_or")),
    }
)


@dataclass(frozen=True, slots=True)
class ProvenRanking:
    """A function that exists over windows only: DuckDB's call, its Spark type, how Spark writes it and its frame."""

    type: pa.DataType | None
    shown: str
    frame: str = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


_RANGE = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"

RANKINGS: Mapping[str, ProvenRanking] = MappingProxyType(
    {
        "row_number": ProvenRanking(t.INT, "row_number"),
        "rank": ProvenRanking(t.INT, "RANK"),
        "dense_rank": ProvenRanking(t.INT, "DENSE_RANK"),
        "ntile": ProvenRanking(t.INT, "ntile"),
        "percent_rank": ProvenRanking(t.DOUBLE, "PERCENT_RANK"),
        "cume_dist": ProvenRanking(t.DOUBLE, "cume_dist", _RANGE),
        "lag": ProvenRanking(None, "lag"),
        "lead": ProvenRanking(None, "lead"),
    }
)
FRAMED = ("first_value", "last_value")
"""Window functions that read the frame, which an ORDER BY must fix."""
