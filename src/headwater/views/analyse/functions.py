"""Which functions aggregate, which are volatile, and which mean the moment of a refresh."""

from __future__ import annotations

from sqlglot import exp

from headwater.views.analyse.scope import Opaque

AGGREGATES = frozenset(
    (
        *(
            "any",
            "any_value",
            "approx_count_distinct",
            "approx_percentile",
            "approx_top_k",
        ),
        *(
            "approx_top_k_accumulate",
            "approx_top_k_combine",
            "array_agg",
            "avg",
            "bit_and",
            "bit_or",
        ),
        *(
            "bit_xor",
            "bitmap_and_agg",
            "bitmap_construct_agg",
            "bitmap_or_agg",
            "bool_and",
            "bool_or",
        ),
        *(
            "collect_list",
            "collect_set",
            "corr",
            "count",
            "count_if",
            "count_min_sketch",
            "covar_pop",
        ),
        *(
            "covar_samp",
            "every",
            "first",
            "first_value",
            "grouping",
            "grouping_id",
            "histogram_numeric",
        ),
        *(
            "hll_sketch_agg",
            "hll_union_agg",
            "kll_merge_agg_bigint",
            "kll_merge_agg_double",
        ),
        *(
            "kll_merge_agg_float",
            "kll_sketch_agg_bigint",
            "kll_sketch_agg_double",
            "kll_sketch_agg_float",
        ),
        *(
            "kurtosis",
            "last",
            "last_value",
            "listagg",
            "max",
            "max_by",
            "mean",
            "median",
            "min",
            "min_by",
        ),
        *(
            "mode",
            "percentile",
            "percentile_approx",
            "percentile_cont",
            "percentile_disc",
            "regr_avgx",
        ),
        *(
            "regr_avgy",
            "regr_count",
            "regr_intercept",
            "regr_slope",
            "regr_sxx",
            "regr_sxy",
            "regr_syy",
        ),
        *(
            "skewness",
            "some",
            "std",
            "stddev",
            "stddev_pop",
            "stddev_samp",
            "string_agg",
            "sum",
        ),
        *(
            "theta_intersection_agg",
            "theta_sketch_agg",
            "theta_union_agg",
            "try_avg",
            "try_sum",
            "var_pop",
        ),
        *("var_samp", "variance"),
    )
)
"""Spark 4.1's aggregate functions; a test compares the list with Spark's own."""

VOLATILE = frozenset(
    (
        *(
            "rand",
            "random",
            "randn",
            "randstr",
            "uniform",
            "uuid",
            "shuffle",
            "monotonically_increasing_id",
        ),
        *(
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        *(
            "current_user",
            "session_user",
            "user",
            "current_catalog",
            "current_database",
            "current_schema",
        ),
        *("version",),
    )
)
"""Functions that answer differently although no source changed; refused in views."""

NOW = frozenset(("now", "current_timestamp"))
TODAY = frozenset(("current_date", "curdate"))
OTHER_CLOCKS = frozenset(("localtimestamp", "unix_timestamp", "current_time"))

_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def function_name(node: exp.Expr) -> str | None:
    """Spark's lower-case name of a function call; None if the node is no call."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.Func) and not isinstance(node, exp.Cast | exp.Case | exp.And | exp.Or):
        text = node.sql(dialect="spark")
        return text.split("(", 1)[0].strip().lower()
    return None


def is_aggregate(node: exp.Expression) -> bool:
    if isinstance(node, _WRAPPERS):
        return is_aggregate(node.this)
    return isinstance(node, exp.AggFunc) or function_name(node) in AGGREGATES


def contains_aggregate(node: exp.Expression) -> bool:
    """Whether the expression aggregates rows, outside of window functions and subqueries."""
    if isinstance(node, exp.Window):
        return any(contains_aggregate(part) for part in window_parts(node))
    if isinstance(node, exp.Query):
        return False
    return is_aggregate(node) or any(contains_aggregate(child) for child in node.iter_expressions())


def window_parts(node: exp.Window) -> list[exp.Expression]:
    """The expressions that a window function is made of: its arguments, partitions and order."""
    call = node.this
    while isinstance(call, _WRAPPERS):
        call = call.this
    order = node.args.get("order")
    return [
        *call.iter_expressions(),
        *(node.args.get("partition_by") or []),
        *([item.this for item in order.expressions] if order else []),
    ]


def pinned(tree: exp.Expression) -> exp.Expression:
    """The query with the clock's functions replaced by placeholders that a refresh fills with its own moment."""

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.CurrentTimestamp):
            return exp.Placeholder(this="now")
        if isinstance(node, exp.CurrentDate):
            return exp.Placeholder(this="today")
        name = function_name(node)
        if name in NOW:
            return exp.Placeholder(this="now")
        if name in TODAY:
            return exp.Placeholder(this="today")
        if name in OTHER_CLOCKS and not list(node.iter_expressions()):
            raise Opaque(f"{name}() is not understood; now() and current_date are")
        return node

    return tree.transform(put)


def uses_clock(expr: exp.Expression) -> bool:
    """Whether the expression depends on the moment of the refresh."""
    return expr.find(exp.Placeholder) is not None
