"""Aggregates as partial states: what is computed from a delta, how states merge, and how the answer is made of them.

A partial is computed over weighted rows (`__w` is +1 or -1). An invertible state takes a negative weight as well as a
positive one; the others (MIN, sums of floats and of wide decimals, sketches) hold for additions only, and groups that
lose rows are computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from headwater.catalog.view_layout import Merge
from headwater.views.analyse.functions import function_name
from headwater.views.deltas import WEIGHT

FLOATS = ("double", "float")
HALF = 2**32
MOMENTS = ("n", "mean", "m2")


@dataclass(frozen=True, slots=True)
class State:
    """The state of one aggregate. `partials` are (suffix, SQL over weighted rows); `final` is SQL with {suffix} in it.

    `distinct` are SQL expressions whose values are kept one by one, with their counts; `final` then is an aggregate
    over the values {0}, {1} ... that are there.
    """

    partials: tuple[tuple[str, str], ...]
    merges: tuple[Merge, ...]
    final: str
    invertible: bool
    distinct: tuple[str, ...] = ()

    @property
    def dear(self) -> bool:
        """Whether it takes more to make the answer than to look at a state."""
        return "/" in self.final or self.merges[:1] in (("hll",), ("moments",))


def state_of(call: exp.Expression, argument_type: str | None, result_type: str) -> State | None:
    """How to keep the aggregate; None if it has no state that merges. Types are Spark's, in its own words."""
    condition = None
    if isinstance(call, exp.Filter):
        condition = call.expression.this.sql(dialect="spark")
        call = call.this
    name = function_name(call)
    arguments = [*call.iter_expressions()]
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        values = [_when(condition, each.sql(dialect="spark")) for each in arguments[0].expressions]
        return _distinct(name, values, argument_type, result_type)
    if any(isinstance(each, exp.Order | exp.Distinct) for each in arguments):
        return None
    texts = [_when(condition, each.sql(dialect="spark")) for each in arguments if not isinstance(each, exp.Star)]
    if name == "collect_set" and len(texts) == 1:
        return _distinct(name, texts, argument_type, result_type)
    is_column = bool(arguments) and isinstance(arguments[0], exp.Column)
    return _plain(name, texts, condition, argument_type, result_type, is_column=is_column)


def _plain(
    name: str | None,
    texts: Sequence[str],
    condition: str | None,
    argument_type: str | None,
    result_type: str,
    *,
    is_column: bool,
) -> State | None:
    x = texts[0] if texts else None
    floating = argument_type in FLOATS
    match name:
        case "count":
            counted = texts or ([_when(condition, "1")] if condition else [])
            return State((("n", _count(counted)),), ("sum",), _cast("COALESCE({n}, 0)", result_type), True)
        case "count_if" if x is not None:
            return State((("n", _sum(f"CASE WHEN {x} THEN 1 ELSE 0 END")),), ("sum",), "COALESCE({n}, 0)", True)
        case "sum" if x is not None and argument_type == "bigint":
            return _long_sum(x)
        case "sum" if x is not None and argument_type is not None:
            partials = (("s", _sum(_widened(x, argument_type), argument_type)), ("n", _count([x])))
            final = _cast("CASE WHEN {n} > 0 THEN {s} END", result_type)
            return State(
                partials, ("sum", "sum"), final, not floating and _can_retract(argument_type, is_column=is_column)
            )
        case "avg" | "mean" if x is not None and argument_type is not None:
            return _average(x, argument_type, result_type)
        case "min" | "max" if x is not None and len(texts) == 1:
            return State((("v", f"{name.upper()}({x})"),), (name,), "{v}", False)
        case "bool_and" | "every" | "bool_or" | "some" | "any" if x is not None:
            test = "{t} = {n}" if name in ("bool_and", "every") else "{t} > 0"
            partials = (("t", _sum(f"CASE WHEN {x} THEN 1 ELSE 0 END")), ("n", _count([x])))
            return State(partials, ("sum", "sum"), f"CASE WHEN {{n}} > 0 THEN {test} END", True)
        case "stddev" | "stddev_samp" | "std" | "variance" | "var_samp" | "stddev_pop" | "var_pop" if x is not None:
            return _moments(name, x)
        case "approx_count_distinct" if x is not None and len(texts) == 1:
            value = x if argument_type in ("int", "bigint", "string", "binary") else f"CAST({x} AS STRING)"
            final = "COALESCE(HLL_SKETCH_ESTIMATE({h}), CAST(0 AS BIGINT))"
            return State((("h", f"HLL_SKETCH_AGG({value})"),), ("hll",), final, False)
        case _:
            return None


def _long_sum(x: str) -> State:
    """A sum of BIGINT as the sums of the values' upper and lower halves.

    Rows that leave may add up to more than a BIGINT holds (-9223372036854775808 alone does), and so may partial sums in
    the order in which they happen to be merged, although the sum of what is there does not. Half as wide, none does.
    """
    upper = f"(({x}) DIV {HALF})"
    lower = f"(({x}) - {upper} * {HALF})"
    partials = (("h", f"SUM({WEIGHT} * {upper})"), ("l", f"SUM({WEIGHT} * {lower})"), ("n", _count([x])))
    quick = f"WHEN {{h}} BETWEEN -{HALF // 4} AND {HALF // 4 - 1} THEN {{h}} * {HALF} + {{l}}"
    wide = f"CAST(CAST({{h}} AS DECIMAL(20,0)) * {HALF} + {{l}} AS BIGINT)"
    return State(partials, ("sum", "sum", "sum"), f"CASE WHEN {{n}} > 0 THEN CASE {quick} ELSE {wide} END END", True)


def _can_retract(argument_type: str, *, is_column: bool) -> bool:
    """Whether the sum of what a change adds and takes back fits the type of a sum, and negatives are exact.

    A sum has more digits than its values, but no more than 38: an UPDATE of one value of 38 digits from x to -x changes
    the sum by more than the type holds, although both sums fit. The type of an expression, such as a product of prices
    and rates, is wider than its values; there only exact negatives are asked for: Spark gives a difference one more
    digit before the point, up to 38 in all, and takes it from those behind the point where there are more than six.
    """
    precision, scale = _decimal(argument_type) or (0, 0)
    return precision < 38 or (scale <= 6 and not is_column)


def _decimal(argument_type: str) -> tuple[int, int] | None:
    if not argument_type.startswith("decimal"):
        return None
    precision, scale = argument_type[8:-1].split(",")
    return int(precision), int(scale)


def _average(x: str, argument_type: str, result_type: str) -> State | None:
    if argument_type in FLOATS:
        partials = (("s", _sum(f"CAST({x} AS DOUBLE)")), ("n", _count([x])))
        return State(partials, ("sum", "sum"), "CASE WHEN {n} > 0 THEN {s} / {n} END", False)
    if argument_type.startswith("decimal"):
        precision, scale = (int(part) for part in argument_type[8:-1].split(","))
        # Spark divides with this many digits behind the point and then rounds to scale + 4; with nine more digits than
        # that, rounding twice gives what rounding once gives, for any count below a thousand million.
        if 38 - (precision + 10 - scale) < scale + 13:
            return None
        partials = (("s", _sum(x)), ("n", _count([x])))
        total = f"CAST({{s}} AS DECIMAL({precision + 10},{scale}))"
        final = f"CASE WHEN {{n}} > 0 THEN CAST({total} / CAST({{n}} AS DECIMAL(20,0)) AS {result_type}) END"
        return State(partials, ("sum", "sum"), final, True)
    partials = (("s", _sum(f"CAST({x} AS DECIMAL(20,0))")), ("n", _count([x])))
    return State(partials, ("sum", "sum"), "CASE WHEN {n} > 0 THEN CAST({s} AS DOUBLE) / {n} END", True)


def _moments(name: str, x: str) -> State:
    value = f"CAST({x} AS DOUBLE)"
    partials = (
        ("n", f"CAST(COUNT({value}) AS DOUBLE)"),
        ("mean", f"COALESCE(AVG({value}), 0D)"),
        ("m2", f"COALESCE(VAR_POP({value}) * COUNT({value}), 0D)"),
    )
    if name.endswith("_pop"):
        variance = "CASE WHEN {n} > 0 THEN {m2} / {n} END"
    else:
        variance = "CASE WHEN {n} > 1 THEN {m2} / ({n} - 1) END"
    final = f"SQRT({variance})" if name.startswith("st") else variance
    return State(partials, ("moments", "moments", "moments"), final, False)


def _distinct(name: str | None, values: Sequence[str], argument_type: str | None, result_type: str) -> State | None:
    one = len(values) == 1
    if argument_type is not None and "map<" in argument_type:  # two maps cannot be compared
        return None
    match name:
        case "count":
            return State((), (), "COUNT(CASE WHEN " + _all_there(len(values)) + " THEN 1 END)", True, tuple(values))
        case "sum" | "avg" | "mean" if one and argument_type not in FLOATS:
            call = "SUM" if name == "sum" else "AVG"
            return State((), (), _cast(f"{call}({{0}})", result_type), True, tuple(values))
        case "collect_set" if one and argument_type not in FLOATS:
            return State((), (), "COLLECT_LIST({0})", True, tuple(values))
        case "min" | "max" if one:
            return State((("v", f"{name.upper()}({values[0]})"),), (name,), "{v}", False)
        case _:
            return None


def merged(kind: Merge, names: Sequence[str]) -> str:
    """SQL that merges the states in the columns `names` of several rows; moments merge into one struct."""
    (name, *_) = names
    match kind:
        case "sum" | "min" | "max":
            return f"{kind.upper()}({name})"
        case "hll":
            return f"HLL_UNION_AGG({name})"
        case "moments":
            n, mean, m2 = names
            row = f"NAMED_STRUCT('n', {n}, 'mean', {mean}, 'm2', {m2})"
            none = "NAMED_STRUCT('n', 0D, 'mean', 0D, 'm2', 0D)"
            delta, both = "(b.mean - a.mean)", "(a.n + b.n)"
            step = (
                f"NAMED_STRUCT('n', {both}, 'mean', a.mean + {delta} * b.n / {both}, "
                f"'m2', a.m2 + b.m2 + {delta} * {delta} * a.n * b.n / {both})"
            )
            return f"AGGREGATE(COLLECT_LIST({row}) FILTER (WHERE {n} > 0), {none}, (a, b) -> {step})"


def _all_there(count: int) -> str:
    return " AND ".join(f"{{{place}}} IS NOT NULL" for place in range(count))


def _when(condition: str | None, value: str) -> str:
    return value if condition is None else f"CASE WHEN {condition} THEN {value} END"


def _sum(value: str, argument_type: str = "") -> str:
    negated = f"-({value})"
    if (digits := _decimal(argument_type)) is not None:  # Spark's minus sign rounds to 34 digits, a difference does not
        of = f"DECIMAL({digits[0]},{digits[1]})"
        negated = f"CAST(CAST(0 AS {of}) - ({value}) AS {of})"
    return f"SUM(CASE WHEN {WEIGHT} > 0 THEN {value} ELSE {negated} END)"


def _count(values: Sequence[str]) -> str:
    if not values:
        return f"SUM(CAST({WEIGHT} AS BIGINT))"
    there = " AND ".join(f"({value}) IS NOT NULL" for value in values)
    return f"SUM(CASE WHEN {there} THEN CAST({WEIGHT} AS BIGINT) ELSE CAST(0 AS BIGINT) END)"


def _widened(value: str, argument_type: str) -> str:
    if argument_type in ("tinyint", "smallint", "int"):
        return f"CAST({value} AS BIGINT)"
    return f"CAST({value} AS DOUBLE)" if argument_type == "float" else value


def _cast(value: str, result_type: str) -> str:
    return f"CAST({value} AS {result_type})"
