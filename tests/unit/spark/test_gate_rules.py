from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.errors import InvalidStatement, StatementNotAllowed
from headwater.spark.gate_rules import DENIED_FUNCTIONS, FUNCTIONS, check_parts, check_reads
from headwater.spark.plans import PlanParts, PlanReads

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
EMPTY: frozenset[tuple[str, ...]] = frozenset()
SELECT = PlanParts(
    root=f"{LOGICAL}Project",
    nodes=frozenset({f"{LOGICAL}Project"}),
    values=frozenset(),
    relations=frozenset({("Orders",)}),
    functions=EMPTY,
    table_functions=EMPTY,
    hints=frozenset(),
    ctes=frozenset({"A"}),
    flags=frozenset(),
)


def test_names_come_out_in_lower_case() -> None:
    names = check_parts(SELECT)
    assert (names.relations, names.ctes) == ({"orders"}, {"a"})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (replace(SELECT, nodes=frozenset({f"{LOGICAL}Brandnew"})), "only reading queries are allowed"),
        (
            replace(SELECT, nodes=frozenset({"org.apache.spark.sql.catalyst.expressions.Brandnew"})),
            'expression "Brandnew" is not allowed in queries',
        ),
        (replace(SELECT, nodes=frozenset({"com.evil.Project"})), "only reading queries are allowed"),
        (replace(SELECT, values=frozenset({"java.io.File"})), '"File" is not allowed in queries'),
        (replace(SELECT, flags=frozenset({"brandnew"})), '"brandnew" is not allowed in queries'),
        (replace(SELECT, relations=frozenset({("csv", "/x")})), 'relation "csv./x" is not allowed in queries'),
        (replace(SELECT, functions=frozenset({("Reflect",)})), 'function "reflect" is not allowed in queries'),
        (replace(SELECT, functions=frozenset({("a", "b")})), 'function "a.b" is not allowed in queries'),
        (replace(SELECT, table_functions=frozenset({("x",)})), 'table function "x" is not allowed in queries'),
    ],
)
def test_what_is_not_listed_is_refused(parts: PlanParts, message: str) -> None:
    with pytest.raises(StatementNotAllowed) as raised:
        check_parts(parts)
    assert raised.value.message == message


def test_a_misspelt_function_gets_a_suggestion() -> None:
    with pytest.raises(InvalidStatement) as raised:
        check_parts(replace(SELECT, functions=frozenset({("uper",)})))
    assert (raised.value.message, raised.value.hint) == ('function "uper" does not exist', 'Did you mean "upper"?')


def test_no_function_is_both_allowed_and_denied() -> None:
    assert not FUNCTIONS & DENIED_FUNCTIONS.keys()


def test_leaves_must_have_been_registered() -> None:
    known, other = ("org.Relation", "lake topics.orders"), ("org.Relation", "lake topics.secrets")
    nothing = (f"{LOGICAL}OneRowRelation", "instance 1")
    check_reads(PlanReads(frozenset(), frozenset({known, nothing})), {known})
    with pytest.raises(StatementNotAllowed, match="not a topic of this lake"):
        check_reads(PlanReads(frozenset(), frozenset({known, other})), {known})
    with pytest.raises(StatementNotAllowed, match="CurrentUser"):
        check_reads(PlanReads(frozenset({"org.x.CurrentUser"}), frozenset()), {known})
