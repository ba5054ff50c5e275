"""What `agree` answers: SQL, names, types and needs for proven queries, a reason for all others."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThan
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headwater.serving.agreement import Agreed, OutputColumn, Unproven, agree, scan_needs, shaped

ITEM = StructType(
    NestedField(11, "sku", StringType(), required=True), NestedField(12, "qty", IntegerType(), required=False)
)
SYSTEM = (
    NestedField(90, "_offset", LongType(), required=True),
    NestedField(91, "_timestamp", TimestamptzType(), required=True),
)
ORDERS = Schema(
    NestedField(1, "order_id", LongType(), required=True),
    NestedField(2, "customer", StringType(), required=False),
    NestedField(3, "items", ListType(10, ITEM, element_required=False), required=False),
    NestedField(4, "total", DecimalType(12, 2), required=False),
    NestedField(5, "placed_at", TimestamptzType(), required=False),
    NestedField(6, "token", UUIDType(), required=False),
    NestedField(7, "opens", TimeType(), required=False),
    *SYSTEM,
)
CUSTOMERS = Schema(NestedField(1, "customer", StringType(), required=False), *SYSTEM)
SCHEMAS = {"orders": ORDERS, "customers": CUSTOMERS}


def agreed(text: str) -> Agreed:
    verdict = agree(text, SCHEMAS)
    assert isinstance(verdict, Agreed), verdict
    return verdict


def reason(text: str) -> str:
    verdict = agree(text, SCHEMAS)
    assert isinstance(verdict, Unproven), verdict
    return verdict.reason


def test_an_analytic_query_is_translated_with_sparks_names_and_types() -> None:
    found = agreed("SELECT customer, COUNT(*), SUM(total), AVG(total) FROM orders WHERE order_id > 7 GROUP BY customer")
    assert found.output == (
        OutputColumn("customer", pa.string()),
        OutputColumn("count(1)", pa.int64()),
        OutputColumn("sum(total)", pa.decimal128(22, 2)),
        OutputColumn("avg(total)", pa.decimal128(16, 6)),
    )
    assert found.tables["orders"].columns == {"customer", "total", "order_id"}
    assert found.tables["orders"].filter == GreaterThan("order_id", 7)
    assert '"orders" AS' in found.sql


def test_system_columns_are_columns() -> None:
    found = agreed("select max(_offset), max(_timestamp) from orders")
    assert found.tables["orders"].columns == {"_offset", "_timestamp"}


def test_count_reads_no_column() -> None:
    assert agreed("select count(*) from orders").tables["orders"].columns == frozenset()


def test_nested_types_keep_what_is_required() -> None:
    element = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("qty", pa.int32())])
    assert agreed("select items from orders").output[0].type == pa.list_(pa.field("element", element))


def test_a_uuid_is_a_string_and_a_time_passes_through() -> None:
    found = agreed("select token, opens from orders")
    assert [column.type for column in found.output] == [pa.string(), pa.time64("us")]
    assert "VARCHAR" in found.sql
    assert "opens" not in reason("select opens from orders order by opens")


@pytest.mark.parametrize("inner", [UUIDType(), TimeType()])
def test_a_nested_type_that_spark_shows_differently_is_not_proven_but_in_nobodys_way(
    inner: UUIDType | TimeType,
) -> None:
    schemas = {
        "t": Schema(
            NestedField(1, "a", IntegerType(), required=False),
            NestedField(2, "l", ListType(3, inner, element_required=False), required=False),
            NestedField(4, "m", MapType(5, StringType(), 6, inner, value_required=False), required=False),
        )
    }
    assert isinstance(agree("select a from t", schemas), Agreed)
    assert isinstance(agree("select l from t", schemas), Unproven)
    assert isinstance(agree("select * from t", schemas), Unproven)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select regexp_replace(customer, 'a', 'b') from orders", 'function "regexp_replace" is not proven to agree'),
        ("select a.nothing.more from orders", 'column "a.nothing.more" does not exist'),
        ("select customer, total from orders group by customer", 'column "total" is neither grouped nor aggregated'),
        ("select 'a\\nb'", "escapes in string literals are not proven to agree"),
        ("select 1; select 2", "the text is not one statement"),
        ("select (", "the statement is not understood"),
        ("drop table orders", "drop is not proven to agree"),
        ("select * from orders version as of 3", '"version" of table is not proven to agree'),
        ("select * from orders tablesample (5 rows)", '"sample" of table is not proven to agree'),
    ],
)
def test_a_query_that_is_not_proven_says_why(text: str, expected: str) -> None:
    assert reason(text) == expected


def test_deep_nesting_is_declined_not_crashed_on() -> None:
    assert isinstance(agree("select " + "(" * 3000 + "1" + ")" * 3000, SCHEMAS), Unproven)
    assert isinstance(agree("select 1" + " / (select max(order_id) from orders)" * 30, SCHEMAS), Unproven)


@pytest.mark.parametrize(
    "step", ["select a.x from c{0} a join c{0} b on a.x = b.x", "select x from c{0} union all select x from c{0}"]
)
@pytest.mark.parametrize("first", ["select 1 as x", "select order_id as x from orders"])
def test_with_clauses_that_double_are_declined_at_once(step: str, first: str) -> None:
    """A kilobyte of SQL that stands for a billion tables."""
    parts = ", ".join(f"c{place + 1} as ({step.format(place)})" for place in range(30))
    text = f"with c0 as ({first}), {parts} select * from c30"
    assert reason(text) == "its WITH clauses unfold into too many parts"
    scan_needs(text, SCHEMAS)


@pytest.mark.parametrize(
    "text",
    [
        "select replace(customer, 'a', customer) as x from orders",
        "select replace(replace(replace(customer, 'a', '123456789'), '1', '123456789'), '2', '123456789') from orders",
        "select order_id from orders where length(replace(customer, 'a', customer)) > 3",
        "with a as (select customer || customer || customer || customer as x from orders), "
        "b as (select x || x || x || x as x from a), c as (select x || x || x || x as x from b), "
        "d as (select x || x || x || x as x from c) select x || x as x from d",
        f"select replace(customer, 'x', '{'x' * 200}') as a from orders order by replace(a, 'x', '{'x' * 200}')",
        f"select replace(max(customer), 'x', '{'x' * 200}') as a from orders "
        f"having length(replace(a, 'x', '{'x' * 200}')) > 1",
        f"select customer || '{'x' * 90_000}' as a from orders",
    ],
)
def test_strings_that_may_become_too_long_are_left_to_spark(text: str) -> None:
    """DuckDB would make them in this process, beside its memory limit."""
    assert reason(text) == "its strings may become too long"


def test_strings_that_stay_short_are_not() -> None:
    assert agreed("select replace(customer, 'a', 'bc') as x, customer || ' ' || customer as y from orders")
    assert agreed("select x || 'a' as x from (select upper(customer) || customer as x from orders) t")


def nested(text: str, depth: int) -> str:
    """`text` around itself: a star becomes two of them at each step."""
    inner = "select order_id, customer from orders"
    for _ in range(depth):
        inner = text.format(inner)
    return inner


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "select " + ", ".join(f"order_id as a{n}" for n in range(1100)) + " from orders",
            "its rows may become too wide",
        ),
        (
            "select " + ", ".join(f"customer || customer as a{n}" for n in range(600)) + " from orders",
            "its rows may become too wide",
        ),
        (nested("select *, * from ({})", 40), "it has too many columns"),
        (nested("select count(*) as n from (select *, *, * from ({})) t", 1), None),
        (
            "with c0 as (select * from orders)"
            + "".join(f", c{n + 1} as (select *, * from c{n})" for n in range(40))
            + " select count(*) as n from c40",
            "it has too many columns",
        ),
        (
            "select a0.order_id from orders a0 "
            + " ".join(f"join orders a{n} on a0.order_id = a{n}.order_id" for n in range(1, 150)),
            "it joins too many tables",
        ),
        (
            "select upper(upper(upper(upper(upper(customer))))) as b from orders order by "
            + ", ".join(f"b || '{n}'" for n in range(3000)),
            "the statement is too long",
        ),
    ],
    ids=["columns", "long columns", "stars", "few stars", "stars of WITH", "joins", "order"],
)
def test_what_grows_beyond_the_text_is_left_to_spark(text: str, expected: str | None) -> None:
    """A short text must not stand for more than this process can hold, or DuckDB plan in time."""
    verdict = agree(text, SCHEMAS)
    assert (verdict.reason if isinstance(verdict, Unproven) else None) == expected
    scan_needs(text, SCHEMAS)


def test_a_wide_topic_is_read_as_it_is() -> None:
    fields = [NestedField(n, f"c{n}", LongType(), required=False) for n in range(1, 2001)]
    verdict = agree("select * from wide", {"wide": Schema(*fields)})
    assert isinstance(verdict, Agreed) and verdict.growth == 1


def test_a_long_sequence_is_left_to_spark() -> None:
    """DuckDB makes the whole of it for two thousand rows at a time, beside its memory limit."""
    text = "select count(c) as n from orders lateral view explode(sequence(1L, cast({} as bigint))) x as c"
    database = duckdb.connect()
    database.execute("create table orders as select 1::bigint as order_id")
    assert database.sql(agreed(text.format(9_999)).sql).fetchall() == [(9_999,)]
    with pytest.raises(duckdb.Error, match="left to spark: a long sequence"):
        database.sql(agreed(text.format(300_000_000)).sql).fetchall()


def test_checks_of_values_are_announced() -> None:
    assert agreed("select upper(customer) from orders").checked
    assert agreed("select total / order_id from orders").checked
    assert not agreed("select sum(total) / 2, avg(total) from orders").checked


def test_names_are_found_without_regard_to_case_and_kept_as_written() -> None:
    found = agreed("select O.CUSTOMER, Total + 1 from ORDERS o")
    assert [column.name for column in found.output] == ["CUSTOMER", "(Total + 1)"]


def test_columns_that_differ_in_case_only_are_not_proven() -> None:
    schema = Schema(
        NestedField(1, "a", IntegerType(), required=False), NestedField(2, "A", IntegerType(), required=False)
    )
    assert isinstance(agree("select 1 from t", {"t": schema}), Unproven)


def test_what_is_quoted_stays_inside_its_quotes() -> None:
    schema = Schema(NestedField(1, 'a"; drop table x; --', StringType(), required=False))
    found = agree('select `a"; drop table x; --` from t where `a"; drop table x; --` = "it\'s"', {"t": schema})
    assert isinstance(found, Agreed)
    with duckdb.connect() as duck:
        duck.register("t", pa.table({'a"; drop table x; --': ["it's", "no"]}))
        assert duck.sql(found.sql).fetchall() == [("it's",)]


@pytest.mark.parametrize("form", ["orders", "ORDERS", "topics.orders", "topic('orders')", "topic('orders') as orders"])
def test_a_topic_can_be_named_in_several_ways(form: str) -> None:
    assert set(agreed(f"select orders.total from {form}").tables) == {"orders"}


def test_a_common_table_expression_hides_a_topic() -> None:
    assert agreed("with orders as (select 1 as one) select one from orders").tables == {}


def test_shaped_gives_sparks_names_types_and_nullability() -> None:
    found = agreed("select total, total as total, items from orders")
    rows = pa.table({"a": pa.array([None], pa.decimal128(12, 2)), "b": [None], "c": [[{"sku": "x", "qty": 1}]]})
    result = shaped(rows, found.output)
    assert result.column_names == ["total", "total", "items"]
    assert [field.type for field in result.schema] == [column.type for column in found.output]


def test_shaped_refuses_values_that_do_not_fit() -> None:
    with pytest.raises(pa.ArrowInvalid):
        shaped(pa.table({"n": [2**40]}), (OutputColumn("n", pa.int32()),))


def test_scan_needs_work_for_queries_that_are_not_proven() -> None:
    text = (
        "select regexp_replace(o.customer, 'a', 'b') from orders o "
        "join customers c on o.customer = c.customer where order_id = 3"
    )
    needs = scan_needs(text, SCHEMAS)
    assert needs["orders"].filter == EqualTo("order_id", 3)
    assert needs["orders"].columns == {field.name for field in ORDERS.fields}
    assert needs["customers"].filter == AlwaysTrue()


def test_nothing_is_said_of_text_that_is_not_understood() -> None:
    needs = scan_needs("select * from orders where 'a\\'b' = customer and order_id = 1", SCHEMAS)
    assert needs == {}


def test_scan_needs_look_into_every_corner_of_an_unproven_query() -> None:
    text = (
        "with c as (select * from orders where order_id = 1) select rand(), (select max(order_id) from orders) from c"
    )
    assert scan_needs(text, SCHEMAS)["orders"].filter == AlwaysTrue()
