"""What docs/reference/incremental.md says of CREATE is what CREATE says, with Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.incremental_share import OTHER_MEANING, forms, measure
from tools.reference_incremental import RECOMPUTED, REFUSED, SHARE, always

from headwater.engine import Lake
from headwater.errors import HeadwaterError
from headwater.spark.session import SparkEngine

pytestmark = pytest.mark.spark

TOPICS = {
    "t": "id BIGINT, g BIGINT, k BIGINT, v BIGINT, d DECIMAL(10,2), f DOUBLE, s STRING",
    "u": "k BIGINT, name STRING, x BIGINT",
    "page_visits": "g BIGINT",
}


@pytest.fixture(scope="module")
def lake(spark: Any, spark_lake: Path) -> Iterator[Lake]:
    made = (spark_lake / "headwater.toml").exists()
    opened = Lake.open(spark_lake) if made else Lake.init(spark_lake)
    opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
    for name, columns in TOPICS.items():
        opened.sql(f"CREATE TOPIC {name} ({columns})")
    yield opened
    for name in TOPICS:
        opened.sql(f"DROP TOPIC {name}")
    opened.close()


def test_forms_that_are_read_in_their_meaning(lake: Lake) -> None:
    cases = measure(lake.spark, forms())
    assert {case.text for case in cases if case.reason is not None} == set(OTHER_MEANING)
    assert (len(cases) - len(OTHER_MEANING), len(cases)) == SHARE["forms"]


@pytest.mark.parametrize("what", REFUSED)
def test_refused(lake: Lake, what: str) -> None:
    query, message = REFUSED[what]
    with pytest.raises(HeadwaterError) as refused:
        lake.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    assert refused.value.message == message
    assert not lake.views.exists("v")


@pytest.mark.parametrize("what", [name for name, query in RECOMPUTED.items() if always(query)])
def test_recomputed(lake: Lake, what: str) -> None:
    query = RECOMPUTED[what]
    (first, *_) = lake.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}").rows()
    assert first["plan"] == f"view v: Every refresh recomputes it: {always(query)}."


def test_functions_that_are_constants_are_kept(lake: Lake) -> None:
    (first, *_) = lake.sql("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT g, e() AS x FROM t").rows()
    assert first["plan"].startswith("view v: Refreshes are incremental")
    with pytest.raises(HeadwaterError, match='function "version" is not allowed'):
        lake.sql("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT g, version() AS x FROM t")


def test_a_misspelt_source_is_told_what_was_meant(lake: Lake) -> None:
    with pytest.raises(HeadwaterError) as refused:
        lake.sql("CREATE MATERIALIZED VIEW v AS SELECT g FROM page_visit")
    assert refused.value.message == 'topic or view "page_visit" does not exist'
    assert refused.value.hint == 'Did you mean "page_visits"?'


def test_a_state_is_explained_by_its_columns(lake: Lake) -> None:
    query = "SELECT g, sum(v) AS s, count(DISTINCT s) AS d FROM t GROUP BY g"
    lines = [row["plan"] for row in lake.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}").rows()]
    halves = "__a0_h * 4294967296 + __a0_l"
    wide = "CAST(CAST(__a0_h AS DECIMAL(20,0)) * 4294967296 + __a0_l AS BIGINT)"
    sums = f"CASE WHEN __a0_h BETWEEN -1073741824 AND 1073741823 THEN {halves} ELSE {wide} END"
    assert [line for line in lines if line.startswith("state of")] == [
        f"state of CASE WHEN __a0_n > 0 THEN {sums} END: __a0_h, __a0_l, __a0_n; rows can be taken back",
        "state of COUNT(CASE WHEN __d1_0 IS NOT NULL THEN 1 END): __d1_0; rows can be taken back",
    ]
