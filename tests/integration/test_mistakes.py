"""A mistake that is told without Spark is one that Spark would tell: the two are asked the same questions."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.serving.agreement import Mistake, agree


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _beside("engines_tables")
engines = _beside("engines_corpus")
corpus = _beside("mistakes_corpus")

pytestmark = pytest.mark.spark

NAMES = ("UNRESOLVED_COLUMN", "TABLE_OR_VIEW_NOT_FOUND", "AMBIGUOUS_REFERENCE")
"""What Spark calls the mistakes that we tell."""


@pytest.fixture(scope="module")
def views(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The tables of the differential tests as views of Spark."""
    for name, (_, theirs) in tables.write(tmp_path_factory.mktemp("mistakes")).items():
        spark.read.parquet(str(theirs)).createOrReplaceTempView(name)
    yield spark
    for name in tables.SCHEMAS:
        spark.catalog.dropTempView(name)


def by_spark(spark: Any, text: str) -> str | None:
    """What Spark's analysis says is wrong, None when it finds nothing."""
    from pyspark.errors import PySparkException

    try:
        spark.sql(text.replace("topic('events')", "events").replace("topics.", ""))
    except PySparkException as refused:
        return str(refused.getCondition())
    return None


def is_about_names(condition: str | None) -> bool:
    return condition is not None and condition.startswith(NAMES)


@pytest.mark.parametrize("text", corpus.queries(corpus.CERTAIN))
def test_a_mistake_is_told_by_both(views: Any, text: str) -> None:
    assert isinstance(agree(text, tables.SCHEMAS), Mistake)
    assert is_about_names(by_spark(views, text))


@pytest.mark.parametrize("text", corpus.queries(corpus.FINE))
def test_what_is_right_is_told_by_neither(views: Any, text: str) -> None:
    assert not isinstance(agree(text, tables.SCHEMAS), Mistake)
    assert not is_about_names(by_spark(views, text))


@pytest.mark.parametrize("text", corpus.queries(corpus.UNTOLD))
def test_what_is_not_certain_is_left_to_spark(views: Any, text: str) -> None:
    assert not isinstance(agree(text, tables.SCHEMAS), Mistake)
    assert by_spark(views, text) is not None


READING = [q for q in (*engines.PROVEN, *engines.RAISES, *engines.LEFT_TO_SPARK) if q.startswith(("select", "with"))]


@pytest.mark.parametrize("text", READING)
def test_whatever_else_is_told_spark_tells_too(views: Any, text: str) -> None:
    assert is_about_names(by_spark(views, text)) or not isinstance(agree(text, tables.SCHEMAS), Mistake)
