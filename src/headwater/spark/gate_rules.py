"""What a reading query may be made of, as data and one pure check.

Spark's parser accepts everything that Spark can do. A query passes only if every class in its parsed plan, every
function and every relation is named here: what a later Spark adds is refused until someone has looked at it. The lists
follow what Spark 4.1's parser builds for a SELECT; a test holds the two lists of functions to its registry.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from headwater.errors import HeadwaterError, InvalidStatement, StatementNotAllowed
from headwater.spark.plans import PlanParts, PlanReads

_CATALYST = "org.apache.spark.sql.catalyst."


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _names(package: str, names: str) -> frozenset[str]:
    return frozenset(f"{_CATALYST}{package}.{name}" for name in _words(names))


PLANS = _names(
    "plans.logical",
    """
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit Offset
    OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot UnresolvedHint
    UnresolvedWith WithWindowDefinition
    """,
) | _names(
    "analysis",
    """
    UnresolvedHaving UnresolvedInlineTable UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
    UnresolvedTableValuedFunction
    """,
)

EXPRESSIONS = (
    _names(
        "expressions",
        """
    Add Alias And Ascending$ AttributeReference BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce
    Collate Concat CreateNamedStruct Cube CurrentDate CurrentRow$ CurrentTime CurrentTimestamp Descending$ Divide
    EqualNullSafe EqualTo Exists GreaterThan GreaterThanOrEqual GroupingSets Hex ILike In InSubquery IntegralDivide
    IsNotNull IsNotUnknown IsNull IsUnknown LambdaFunction LateralSubquery LessThan LessThanOrEqual Like LikeAll
    LikeAny ListQuery Literal Lower Multiply NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay
    PipeExpression PipeOperator RLike Remainder Rollup ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight
    ShiftRightUnsigned SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight
    Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing$ UnboundedPreceding$
    UnresolvedCollation UnresolvedNamedLambdaVariable UnresolvedWindowExpression UnspecifiedFrame$ WindowExpression
    WindowSpecDefinition WindowSpecReference
    """,
    )
    | _names(
        "expressions.aggregate",
        "AggregateExpression AnyValue First Last",
    )
    | _names(
        "analysis",
        """
    MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator
    UnresolvedOrdinal UnresolvedPipeAggregateOrdinal UnresolvedRegex UnresolvedStar UnresolvedStarExceptOrReplace
    """,
    )
)

VALUES = (
    _names(
        "expressions", "Ascending$ Descending$ ExprId NullsFirst$ NullsLast$ NumericEvalContext RangeFrame$ RowFrame$"
    )
    | _names("expressions", "WindowSpecReference")
    | _names("expressions.aggregate", "Complete$")
    | _names("plans", "Cross$ FullOuter$ Inner$ LeftAnti$ LeftOuter$ LeftSemi$ NaturalJoin RightOuter$ UsingJoin")
    | _names("plans.logical", "JoinHint")
    | frozenset(_CATALYST + name for name in ("AliasIdentifier", "FunctionIdentifier"))
    | frozenset({"[B", "java.math.BigDecimal", "java.util.UUID", "scala.Enumeration$Val"})
    | frozenset({"org.apache.spark.sql.util.CaseInsensitiveStringMap"})
)
"""Classes that are neither plans nor expressions: what a node's constructor took."""

VALUE_PACKAGES = ("java.lang.", "org.apache.spark.sql.types.", "org.apache.spark.unsafe.types.")

FUNCTIONS = _words(
    """
    ! % & * + - / < << <= <=> = == > >= >> >>> ^ abs acos acosh add_months aes_decrypt aes_encrypt aggregate and any
    any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    approx_top_k_estimate array array_agg array_append array_compact array_contains array_distinct array_except
    array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove
    array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2
    atanh avg base64 between bigint bin binary bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg
    bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or
    boolean bround btrim cardinality cast cbrt ceil ceiling char char_length character_length chr coalesce collate
    collation collect_list collect_set concat concat_ws contains conv convert_timezone corr cos cosh cot count
    count_if count_min_sketch covar_pop covar_samp crc32 csc cume_dist curdate current_catalog current_database
    current_date current_schema current_time current_timestamp current_timezone date date_add date_diff date_format
    date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
    dayofyear decimal decode degrees dense_rank div double e element_at elt encode endswith equal_null every exists
    exp explode explode_outer expm1 extract factorial filter find_in_set first first_value flatten float floor
    forall format_number format_string from_csv from_json from_unixtime from_utc_timestamp get get_json_object
    getbit greatest grouping grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union
    hll_union_agg hour hypot if ifnull ilike in initcap inline inline_outer instr int is_valid_utf8 is_variant_null
    isnan isnotnull isnull json_array_length json_object_keys json_tuple kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least
    left len length levenshtein like listagg ln localtimestamp locate log log10 log1p log2 lower lpad ltrim
    luhn_check make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean median min min_by
    minute mod mode monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day
    not now nth_value ntile nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url percent_rank
    percentile percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position
    positive pow power printf quarter quote radians raise_error rand randn random randstr rank reduce regexp
    regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right
    rint rlike round row_number rpad rtrim schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg sec
    second sentences sequence session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned shuffle sign
    signum sin sinh size skewness slice smallint some sort_array soundex space spark_partition_id split split_part
    sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith std stddev stddev_pop
    stddev_samp str_to_map string string_agg struct substr substring substring_index sum tan tanh theta_difference
    theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg
    time time_diff time_trunc timestamp timestamp_micros timestamp_millis timestamp_seconds tinyint to_binary
    to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys transform_values
    translate trim trunc try_add try_aes_decrypt try_avg try_divide try_element_at try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json
    try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time try_to_timestamp
    try_url_decode try_validate_utf8 try_variant_get typeof ucase unbase64 unhex uniform unix_date unix_micros
    unix_millis unix_seconds unix_timestamp upper url_decode url_encode uuid validate_utf8 var_pop var_samp variance
    variant_get version weekday weekofyear when width_bucket window window_time xxhash64 year zeroifnull zip_with |
    ~
    """
)

DENIED_FUNCTIONS = {
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), "It calls any method of any class of the server."),
    **dict.fromkeys(
        ("input_file_name", "input_file_block_start", "input_file_block_length"), "It tells where files are stored."
    ),
    **dict.fromkeys(
        _words("xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number")
        | _words("xpath_short xpath_string"),
        "An XML document can name a document type to be read from a file or from the network.",
    ),
    **dict.fromkeys(("from_xml", "schema_of_xml"), "Its options can name a file to be read."),
    **dict.fromkeys(
        ("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        "Its arguments can name files and classes of the server.",
    ),
    **dict.fromkeys(("current_user", "session_user", "user"), "It tells which account the server runs under."),
}

DENIED_CLASSES = {
    "CurrentUser": DENIED_FUNCTIONS["current_user"],
    **dict.fromkeys(("CallMethodViaReflection", "TryReflect"), DENIED_FUNCTIONS["reflect"]),
    **dict.fromkeys(
        ("InputFileName", "InputFileBlockStart", "InputFileBlockLength"), "It tells where files are stored."
    ),
    **dict.fromkeys(("ScriptTransformation", "ScriptTransformationExec"), "It runs commands on the server."),
    **dict.fromkeys(
        ("XmlToStructs", "SchemaOfXml", "AvroDataToCatalyst", "ProtobufDataToCatalyst"), "It can read files."
    ),
}
"""What an analyzed plan must not have: a bare `current_user`, for one, is parsed as a column and only then resolved."""

HARMLESS_LEAVES = _names("plans.logical", "OneRowRelation LocalRelation Range CTERelationRef")
"""Leaves that read nothing."""

TABLE_FUNCTIONS = _words(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
    variant_explode_outer
    """
)


HINTS = _words(
    """
    BROADCAST BROADCASTJOIN MAPJOIN MERGE SHUFFLE_MERGE MERGEJOIN SHUFFLE_HASH SHUFFLE_REPLICATE_NL
    COALESCE REPARTITION REPARTITION_BY_RANGE REBALANCE
    """
)

MAX_PARTITIONS = 200
"""Partitions that a hint may ask for: each is a task, and a hundred thousand of them take minutes to plan."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a class of node is refused, in the user's words."""

    what: str
    detail: str | None = None
    hint: str | None = None


_PARAMETER = Refusal("a parameter marker is not allowed in queries", hint="Write the value itself.")
_IDENTIFIER = Refusal("IDENTIFIER() is not allowed in queries", hint="Write the name itself.")
_SCRIPT = Refusal("a SQL script is not allowed in queries", hint="Send one SELECT at a time.")

REFUSALS = {
    "RelationTimeTravel": Refusal(
        "time travel is not available here", hint="Write AS OF right behind the name of a topic or a view."
    ),
    "ScriptTransformation": Refusal(
        "TRANSFORM is not allowed in queries", "It runs commands on the server.", "Use SQL functions."
    ),
    "PlanWithUnresolvedIdentifier": _IDENTIFIER,
    "ExpressionWithUnresolvedIdentifier": _IDENTIFIER,
    "NamedParameter": _PARAMETER,
    "PosParameter": _PARAMETER,
    "CompoundBody": _SCRIPT,
    "CurrentUser": Refusal('function "current_user" is not allowed in queries', DENIED_FUNCTIONS["current_user"]),
    "UnresolvedExecuteImmediate": Refusal("EXECUTE IMMEDIATE is not allowed in queries", hint="Send the query itself."),
    "Call": Refusal("CALL is not allowed in queries", "Procedures change tables and files."),
}


@dataclass(frozen=True, slots=True)
class QueryNames:
    """The names of a query that passed: relations it may read, in lower case, and CTEs it defines itself.

    A name can be both, since `WITH orders AS (SELECT … FROM orders)` reads the topic under the name it then hides.
    """

    relations: frozenset[str]
    ctes: frozenset[str]


def check_parts(parts: PlanParts) -> QueryNames:
    """The names that a parsed plan reads, if everything in it is allowed; otherwise the error that says what is not."""
    _check_nodes(parts.root, parts.nodes)
    _check_flags(parts.flags)
    for function in sorted(parts.functions):
        _check_function(function)
    for function in sorted(parts.table_functions):
        _check_table_function(function)
    for name, *parameters in sorted(parts.hints):
        _check_hint(name.upper(), parameters)
    relations = frozenset(_checked_relation(name) for name in parts.relations)
    _check_values(parts.values)
    return QueryNames(relations, frozenset(name.lower() for name in parts.ctes))


def check_reads(reads: PlanReads, allowed: Set[tuple[str, str]]) -> None:
    """StatementNotAllowed unless an analyzed plan reads only `allowed` and has no denied function under any name."""
    for node in sorted(map(_short, reads.nodes)):
        if reason := DENIED_CLASSES.get(node):
            raise StatementNotAllowed(f'"{node}" is not allowed in queries', detail=reason)
    foreign = {leaf for leaf in reads.leaves - allowed if leaf[0] not in HARMLESS_LEAVES}
    if foreign:
        raise StatementNotAllowed(
            "query reads something that is not a topic of this lake",
            detail=f"Its plan has a leaf of kind {_short(min(foreign)[0])}.",
        )


def _check_nodes(root: str, nodes: frozenset[str]) -> None:
    unknown = {_short(node): node for node in nodes if _outer(node) not in PLANS | EXPRESSIONS}
    if known := sorted(unknown.keys() & REFUSALS.keys()):
        refusal = REFUSALS[known[0]]
        raise StatementNotAllowed(refusal.what, detail=refusal.detail, hint=refusal.hint)
    statements = [name for name, node in sorted(unknown.items()) if "expressions" not in node.split(".")]
    if statements:
        name = _short(root) if _short(root) in unknown else statements[0]
        raise StatementNotAllowed(
            "only reading queries are allowed",
            detail=f"Spark reads this statement as {_article(name)}.",
            hint="Send a SELECT over topics.",
        )
    if unknown:
        raise StatementNotAllowed(f'expression "{min(unknown)}" is not allowed in queries')


def _check_flags(flags: Iterable[str]) -> None:
    refusals = {
        "recursive": "WITH RECURSIVE is not allowed in queries",
        "streaming": "STREAM is not allowed in queries",
        "options": "options after a topic are not allowed in queries",
        "partitions": "a number of partitions is not allowed in range()",
    }
    for flag in sorted(flags):
        raise StatementNotAllowed(refusals.get(flag, f'"{flag}" is not allowed in queries'))


def _check_hint(name: str, parameters: Sequence[str]) -> None:
    if name not in HINTS:
        raise StatementNotAllowed(
            f'hint "{name}" is not allowed in queries', detail=f"Allowed are {', '.join(sorted(HINTS))}."
        )
    for parameter in parameters:
        if parameter.isdigit() and int(parameter) > MAX_PARTITIONS:
            raise StatementNotAllowed(
                f'hint "{name}" has too many partitions', detail=f"At most {MAX_PARTITIONS} are allowed in queries."
            )


def _check_function(parts: tuple[str, ...]) -> None:
    name = _single(parts, "function")
    if reason := DENIED_FUNCTIONS.get(name):
        raise StatementNotAllowed(f'function "{name}" is not allowed in queries', detail=reason)
    if name not in FUNCTIONS:
        raise _unknown("function", name, FUNCTIONS)


def _check_table_function(parts: tuple[str, ...]) -> None:
    name = _single(parts, "table function")
    if name not in TABLE_FUNCTIONS:
        raise StatementNotAllowed(
            f'table function "{name}" is not allowed in queries',
            detail=f"Allowed are {', '.join(sorted(TABLE_FUNCTIONS))}.",
        )


def _single(parts: tuple[str, ...], kind: str) -> str:
    if len(parts) != 1:
        name = ".".join(part for part in parts if part)
        raise StatementNotAllowed(
            f'{kind} "{name}" is not allowed in queries', hint="Call functions by their plain name."
        )
    return parts[0].lower()


def _checked_relation(parts: tuple[str, ...]) -> str:
    if len(parts) != 1:
        raise StatementNotAllowed(
            f'relation "{".".join(parts)}" is not allowed in queries',
            detail="A query reads topics of this lake, by their plain names; never files, catalogs or system tables.",
            hint="Write FROM and the topic's name.",
        )
    return parts[0].lower()


def _check_values(values: frozenset[str]) -> None:
    for value in sorted(values):
        if value not in VALUES and not value.startswith(VALUE_PACKAGES):
            raise StatementNotAllowed(f'"{_short(value)}" is not allowed in queries')


def _unknown(kind: str, name: str, known: Iterable[str]) -> HeadwaterError:
    close = difflib.get_close_matches(name, known, n=1)
    return InvalidStatement(f'{kind} "{name}" does not exist', hint=f'Did you mean "{close[0]}"?' if close else None)


def _outer(node: str) -> str:
    """The class in which an anonymous subclass of Spark's own was written: IsUnknown for IsUnknown$$anon$1."""
    return node.partition("$$anon$")[0]


def _short(node: str) -> str:
    return _outer(node).rpartition(".")[2].rstrip("$")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
