"""Generated queries with wrong names: what is told as a mistake is one for Spark, and most of Spark's are told."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.serving.agreement import Mistake, agree


def _integration(name: str) -> Any:
    path = Path(__file__).parents[1] / "integration" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _integration("engines_tables")
asked = _integration("test_mistakes")
views = asked.views

pytestmark = pytest.mark.spark

RIGHT = ["id", "k", "c", "b", "st.a", "st", "e.id", "e.k", "name", "score", "r.name", "r.k", "K", "`id`"]
WRONG = ["nope", "e.nope", "r.id", "events.id", "z.k", "idd"]
GIVEN = ["g", "h", "k", "id", "other"]
FORMS = ["{}", "{}", "{}", "upper({})", "coalesce({}, {})", "{} + 1", "max({})", "count({})", "cast({} as string)"]
FORMS += ["case when {} is null then {} end", "({})", "struct({})", "row_number() over (partition by {} order by {})"]
TESTS = [
    "{} = {}",
    "{} is not null",
    "{} in (1, 2)",
    "{} in (select k from people)",
    "{} > (select max({}) from people)",
]
TESTS += ["exists (select 1 from people r where r.k = {})", "exists (select {} from nothing where {} = 1)"]
ORIGINS = ["events", "events e", "people r", "events e join people r on e.k = r.k", "events e, people r"]
ORIGINS += ["events e left join people r on {} = {}", "events e join people r using (k)", "unknown"]
ORIGINS += ["events e left semi join people r on e.k = r.k", "(select {}, {} as g from events e) e", "w e", "w"]
ORIGINS += ["(select * from events) e", "(select {} from people r) r", "events e lateral view explode(arr) v as g"]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query over events and people, in which any name may be wrong."""
    wrongly = draw(st.sampled_from([0, 0, 1, 3]))

    def name() -> str:
        return draw(st.sampled_from(RIGHT * 4 + GIVEN + WRONG * wrongly))

    def filled(forms: list[str]) -> str:
        form = draw(st.sampled_from(forms))
        return form.format(*(name() for _ in range(form.count("{}"))))

    def item() -> str:
        alias = f" as {draw(st.sampled_from(GIVEN))}" if draw(st.booleans()) else ""
        return filled([*FORMS, "*"]) if not alias else filled(FORMS) + alias

    def select(origin: str) -> str:
        text = f"select {', '.join(item() for _ in range(draw(st.integers(1, 3))))} from {origin}"
        text += f" where {filled(TESTS)}" if draw(st.booleans()) else ""
        text += f" group by {filled(['{}', '{}, {}'])}" if draw(st.integers(0, 2)) == 0 else ""
        return text + (f" order by {filled(FORMS[:6])}" if draw(st.integers(0, 2)) == 0 else "")

    given_first = f"with w as ({select(filled(ORIGINS[:5]))}) " if draw(st.booleans()) else ""
    return given_first + select(filled(ORIGINS))


SEEN: Counter[str] = Counter()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(text=queries())
def test_a_generated_mistake_is_one_for_spark(views: Any, text: str) -> None:
    told = isinstance(agree(text, tables.SCHEMAS), Mistake)
    condition = asked.by_spark(views, text)
    SEEN["both" if told and condition else "spark" if asked.is_about_names(condition) else "none"] += 1
    assert condition is not None or not told, text


def test_most_mistakes_are_told() -> None:
    assert SEEN["both"] > 100
    assert SEEN["spark"] < SEEN["both"] / 5


def test_and_right_queries_are_among_them() -> None:
    assert SEEN["none"] > 50
