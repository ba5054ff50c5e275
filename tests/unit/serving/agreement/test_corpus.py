"""The tables of proven functions and operators, held against the queries of the differential suite."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from headwater.serving.agreement import AGGREGATES, CASTS, FRAMED, RANKINGS, SCALARS, Agreed, Unproven, agree
from headwater.serving.agreement.expressions import HANDLERS
from headwater.serving.agreement.functions import PARTS
from headwater.serving.agreement.parsing import parse
from headwater.serving.agreement.queries import SET_OPERATIONS
from headwater.serving.agreement.relations import JOINS


def _integration(name: str) -> Any:
    path = Path(__file__).parents[3] / "integration" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


corpus = _integration("engines_corpus")
tables = _integration("engines_tables")

NODES = [node for text in corpus.PROVEN for node in parse(text).walk()]


def _called() -> set[str]:
    return {str(node.this).lower() for node in NODES if isinstance(node, exp.Anonymous)}


def _over(name: str) -> bool:
    return any(isinstance(node, exp.Window) and str(node.this.this).lower() == name for node in NODES)


@pytest.mark.parametrize("name", sorted({*SCALARS, *CASTS, *AGGREGATES}))
def test_every_proven_function_is_in_the_differential_suite(name: str) -> None:
    assert name in _called()


@pytest.mark.parametrize("name", sorted({*RANKINGS, *FRAMED, "sum", "count", "avg", "min", "max"}))
def test_every_proven_window_function_is_in_the_differential_suite(name: str) -> None:
    assert _over(name)


@pytest.mark.parametrize("kind", sorted(HANDLERS, key=lambda kind: kind.__name__))
def test_every_proven_node_is_in_the_differential_suite(kind: type[exp.Expression]) -> None:
    assert any(type(node) is kind for node in NODES)


@pytest.mark.parametrize("kind", SET_OPERATIONS)
@pytest.mark.parametrize("distinct", [True, False])
def test_every_set_operation_is_in_the_differential_suite(kind: type[exp.Expression], distinct: bool) -> None:
    assert any(type(node) is kind and bool(node.args.get("distinct")) is distinct for node in NODES)


@pytest.mark.parametrize("word", sorted(set(JOINS.values())))
def test_every_join_is_in_the_differential_suite(word: str) -> None:
    joins = [node for node in NODES if isinstance(node, exp.Join)]
    assert any(JOINS[(join.side.upper(), join.kind.upper())] == word for join in joins)


@pytest.mark.parametrize("unit", sorted(set(PARTS) - {"second", "weekday"}))
def test_every_part_that_extract_takes_is_in_the_differential_suite(unit: str) -> None:
    assert any(isinstance(node, exp.Extract) and node.this.name.lower() == unit for node in NODES)


@pytest.mark.parametrize("text", [*corpus.PROVEN, *corpus.RAISES])
def test_the_suite_is_proven(text: str) -> None:
    assert isinstance(agree(text, tables.SCHEMAS), Agreed)


@pytest.mark.parametrize("text", corpus.LEFT_TO_SPARK)
def test_what_is_left_to_spark_has_a_reason(text: str) -> None:
    verdict = agree(text, tables.SCHEMAS)
    assert isinstance(verdict, Unproven)
    assert verdict.reason
