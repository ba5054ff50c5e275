"""What a user is told about a wrong name, and where; that it is wrong for Spark too is held by tests that ask Spark."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headwater.errors import InvalidStatement, TopicNotFound
from headwater.serving.agreement import Agreed, Folded, Mistake, Unproven, agree


def _schema(*names: str) -> Schema:
    columns = (NestedField(number, name, LongType(), required=False) for number, name in enumerate(names, 1))
    return Schema(*columns, NestedField(50, "customer", StringType(), required=False))


SCHEMAS = {
    "orders": _schema("order_id", "total"),
    "customers": _schema("age"),
    "wide": _schema(*map("c{}".format, range(30))),
}


def mistake(text: str) -> Mistake:
    verdict = agree(text, SCHEMAS)
    assert isinstance(verdict, Mistake), verdict
    return verdict


@pytest.mark.parametrize(
    ("text", "message", "detail", "hint"),
    [
        (
            "select custmer from orders",
            'column "custmer" does not exist',
            "Columns here are order_id, total, customer.",
            'Did you mean "customer"?',
        ),
        (
            "select o.Totl from orders o",
            'column "o.Totl" does not exist',
            'Columns of "o" are order_id, total, customer.',
            'Did you mean "total"?',
        ),
        (
            "select c.age from customers cu",
            'column "c.age" does not exist',
            "Columns here are cu.age, cu.customer.",
            'Did you mean "cu.age"?',
        ),
        (
            "select total as price from orders order by pric",
            'column "pric" does not exist',
            "Columns here are order_id, total, customer, price.",
            'Did you mean "price"?',
        ),
        (
            "select order_id from orders o where exists (select 1 from customers where age = oder_id)",
            'column "oder_id" does not exist',
            "Columns here are age, customer, order_id, total.",
            'Did you mean "order_id"?',
        ),
        (
            "select customer from orders o join customers c on true",
            'column "customer" is ambiguous',
            "2 tables of this FROM have it.",
            "Write o.customer or c.customer.",
        ),
        (
            "select o.customer from orders o join customers o on true",
            'column "o.customer" is ambiguous',
            "2 tables of this FROM have it.",
            "Give each an alias.",
        ),
        ("select zzz", 'column "zzz" does not exist', "There is no table to read it from.", None),
    ],
)
def test_a_wrong_column_is_told_with_what_there_is(text: str, message: str, detail: str, hint: str | None) -> None:
    error = mistake(text).error
    assert type(error) is InvalidStatement
    assert (error.message, error.detail, error.hint) == (message, detail, hint)


def test_a_long_list_of_columns_is_cut() -> None:
    detail = mistake("select zzz from wide").error.detail
    assert detail is not None
    assert detail.endswith("c18, c19 and 11 more.")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("select 1 from order", 'Did you mean "orders"?'),
        ("select 1 from zebra", "`SHOW TOPICS` and `SHOW MATERIALIZED VIEWS` list them."),
        ("with c as (select 1 from ordrs) select order_id from orders", 'Did you mean "orders"?'),
    ],
)
def test_an_unknown_table_is_a_topic_or_view_that_does_not_exist(text: str, hint: str) -> None:
    error = mistake(text).error
    assert type(error) is TopicNotFound
    assert error.message.startswith("topic or view ")
    assert error.hint == hint


SPENT = Folded("SELECT `v.c` AS `customer`, `v.t` AS `Total` FROM `__states`", "views.spent", SCHEMAS["orders"])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("select 1 from spend", 'topic or view "spend" does not exist', 'Did you mean "spent"?'),
        ("select s.totl from spent s", 'column "s.totl" does not exist', 'Did you mean "Total"?'),
        ("select order_id from spent", 'column "order_id" does not exist', None),
        ("select __weight from spent", 'column "__weight" does not exist', None),
        (
            "select customer from spent join orders",
            'column "customer" is ambiguous',
            "Write spent.customer or orders.customer.",
        ),
    ],
)
def test_a_view_has_the_columns_that_it_shows(text: str, message: str, hint: str | None) -> None:
    found = agree(text, {**SCHEMAS, "spent": SPENT})
    assert isinstance(found, Mistake), found
    assert (found.error.message, found.error.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("select 'é😀',\n  o.nope from orders o", "o.nope"),
        ("select `nope` from orders", "`nope`"),
        ("select order_id from orders where nope.field = 1", "nope.field"),
        ("select 1 from\n\tnowhere n", "nowhere"),
    ],
)
def test_a_mistake_says_where_it_is(text: str, marked: str) -> None:
    found = mistake(text)
    assert text[found.start : found.end] == marked


@pytest.mark.parametrize(
    "text",
    [
        "select nope from orders, range(3)",
        "select `no pe` from orders",
        "select '\\n', nope from orders",
        "select order_id from orders |> where nope = 1",
        "select nope from orders pivot (sum(total) for customer in ('a'))",
        "select user from orders",
    ],
)
def test_what_is_not_certain_is_not_told(text: str) -> None:
    assert isinstance(agree(text, SCHEMAS), Unproven)


def test_an_unread_common_table_expression_is_looked_at_but_not_read() -> None:
    verdict = agree("with c as (select age from customers) select total from orders", SCHEMAS)
    assert isinstance(verdict, Agreed)
    assert list(verdict.tables) == ["orders"]
