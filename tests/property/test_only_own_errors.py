"""Whatever comes in, what goes out is an answer or one of Headwater's own errors, on every surface.

A raw error of Python, of a database or of a library is a defect by itself: it does not say what to do, and its text is
somebody else's.
"""

from __future__ import annotations

import importlib.util
import io
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import headwater
from headwater.api.serve import Service
from headwater.cli import main as cli
from headwater.engine import Lake
from headwater.errors import HeadwaterError, JavaMissing
from headwater.spark.session import SparkEngine
from headwater.topics.produce import Source


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grammar = _beside("surface_grammar")

ROW = {
    "id": 1, "i": 2, "d": 0.5, "f": -0.0, "p": "1.25", "w": "-9999999999999999999999999999.9999999999", "r": "0.5",
    "s": "a", "b": True, "dt": "2026-01-01", "ts": "2026-01-01T00:00:00Z", "tn": "9999-12-31T23:59:59.999999",
    "u": "00000000-0000-0000-0000-000000000001", "raw": "/w==", "st": {"a": 1, "n": {"z": "z"}}, "arr": [1, None],
    "m": {"k": None},
}  # fmt: skip
QUICK = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


def no_spark() -> Any:
    raise JavaMissing("Spark is not part of this test")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with headwater.init(tmp_path_factory.mktemp("errors") / "lake") as opened:
        opened._spark = SparkEngine(no_spark)
        prepare(opened)
        yield opened


def prepare(lake: Lake) -> None:
    """The topic that statements are about, however the last one left it."""
    lake.sql(f"CREATE TOPIC IF NOT EXISTS {grammar.TOPIC} ({grammar.COLUMNS})")


def drop_views(lake: Lake) -> None:
    for name in ("x1", "x2"):
        lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {name}")


def attempt(outcomes: Counter[str], work: Callable[[], Any], what: object) -> None:
    """Does the work; anything but an answer or one of our errors, in our form, is a failure."""
    try:
        work()
    except HeadwaterError as error:
        assert type(error) is not HeadwaterError, (what, error)
        assert error.status != 500, (what, error)
        assert not error.message.endswith("."), (what, error.message)
        outcomes[error.code] += 1
    except Exception as failed:
        raise AssertionError(f"{type(failed).__name__} on {what!r}") from failed
    else:
        outcomes["answered"] += 1


def test_statements(lake: Lake) -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=200, deadline=None, suppress_health_check=QUICK)
    @given(grammar.STATEMENTS)
    def check(text: str) -> None:
        prepare(lake)
        attempt(outcomes, lambda: lake.sql(text).rows(), text)

    check()
    assert outcomes["answered"] > 5, outcomes
    assert len(outcomes) > 8, outcomes


@pytest.mark.spark
@pytest.mark.slow
def test_statements_on_spark(spark: Any, spark_lake: Path) -> None:
    """Views, DELETE, UPDATE and queries on Spark, of a topic that gets a record before each."""
    outcomes: Counter[str] = Counter()
    open_lake = Lake.open if (spark_lake / "headwater.toml").exists() else Lake.init
    with open_lake(spark_lake, query_worker="never") as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)

        @settings(max_examples=120, deadline=None, suppress_health_check=QUICK, phases=[Phase.explicit, Phase.generate])
        @given(grammar.WORK)
        @example("CREATE MATERIALIZED VIEW x1 AS SELECT m, count(*) AS n FROM events GROUP BY m")
        @example("SELECT INTERVAL '1' YEAR AS i, array(make_interval(1)) AS j FROM events")
        @example("CREATE MATERIALIZED VIEW x1 AS SELECT id, make_ym_interval(1, i) AS v FROM events")
        @example(f"SELECT from_json('{{}}', '{'array<' * 90}int{'>' * 90}') AS j FROM events")
        @example("SELECT schema_of_json(repeat('[', 5000)) AS j FROM events")
        @example("SELECT timestamp_seconds(9e18) AS j, date_add(dt, 2147483647) AS k FROM events")
        @example("SELECT max(u) AS a, min(u) AS b FROM events WHERE u > '00000000-0000-0000-0000-000000000000'")
        def check(text: str) -> None:
            prepare(lake)
            lake.topic(grammar.TOPIC).append([ROW])
            if text.startswith("CREATE MATERIALIZED VIEW"):  # else most would only say that the view exists
                drop_views(lake)
            engine = {"engine": "spark"} if text.startswith("SELECT") else {}
            attempt(outcomes, lambda: lake.sql(text, **engine).rows(), text)

        check()
        drop_views(lake)
        lake.sql(f"DROP TOPIC {grammar.TOPIC}")
    assert outcomes["answered"] > 20, outcomes


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(["auto", "duckdb", "spark", "no", "", None, 1]),
        "tail": st.sampled_from([True, False, None, "x"]),
        "max_rows": st.sampled_from([0, 1, -1, 2**70, None, "x", 1.5]),
        "timeout": st.sampled_from([0, 0.001, -1, 1e300, None, "x"]),
        "no_such_option": st.just(1),
    },
)


def test_queries_on_duckdb_with_options(lake: Lake) -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=250, deadline=None, suppress_health_check=QUICK)
    @given(grammar.QUERIES, OPTIONS)
    def check(text: str, options: dict[str, Any]) -> None:
        attempt(outcomes, lambda: lake.sql(text, **options).rows(), (text, options))

    prepare(lake)
    lake.topic(grammar.TOPIC).append([ROW])
    check()
    assert outcomes["answered"] > 5, outcomes


@pytest.mark.parametrize("sequence", ["y", 1.5, True, -1, [1], None, 2**63, math.nan])
def test_sequences(lake: Lake, sequence: Any) -> None:
    prepare(lake)
    outcomes: Counter[str] = Counter()
    attempt(outcomes, lambda: lake.topic(grammar.TOPIC).append([ROW], producer="p", sequence=sequence), sequence)
    assert outcomes == {"invalid_input": 1}


def test_records(lake: Lake) -> None:
    outcomes: Counter[str] = Counter()
    kinds = st.one_of(
        grammar.ROWS.map(lambda rows: ("append", rows)),
        grammar.arrow_tables().map(lambda table: ("append", table)),
        grammar.bodies().map(lambda body: ("append", body)),
        st.text(max_size=30).map(lambda text: ("append", text)),
        grammar.VALUES.map(lambda value: ("append", value)),
        grammar.bodies().map(lambda body: ("json", body)),
        grammar.bodies().map(lambda body: ("csv", body)),
    )

    @settings(max_examples=250, deadline=None, suppress_health_check=QUICK)
    @given(kinds)
    def check(request: tuple[Any, Any]) -> None:
        kind, data = request
        if kind == "append":
            attempt(outcomes, lambda: lake.topic(grammar.TOPIC).append(data), request)
        else:
            attempt(outcomes, lambda: lake.append(grammar.TOPIC, [data], kind, Source("python")), request)

    prepare(lake)
    check()
    assert outcomes["answered"] > 5, outcomes
    assert outcomes["records_rejected"] > 50, outcomes


def test_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Counter[int] = Counter()
    with headwater.init(tmp_path / "lake") as made:
        prepare(made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("headwater.engine.lake.Lake.spark", property(lambda self: no_spark()))

    @settings(max_examples=80, deadline=None, suppress_health_check=[*QUICK, HealthCheck.function_scoped_fixture])
    @given(grammar.commands())
    def check(words: list[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        raised: list[BaseException] = []
        monkeypatch.setattr(cli, "report_bug", lambda failed, screen: raised.append(failed) or 1)
        code = cli.main(["-C", str(tmp_path / "lake"), *words])
        if raised:
            raise AssertionError(f"{type(raised[0]).__name__} on {words!r}") from raised[0]
        outcomes[code] += 1

    check()
    assert {0, 1, 2} <= set(outcomes), outcomes


@pytest.fixture(scope="module")
def service(lake: Lake) -> Iterator[httpx.Client]:
    served = Service(lake, port=0)
    with httpx.Client(base_url=served.start(), timeout=60) as client:
        yield client
    served.stop()


MEDIA_TYPES = ["application/x-ndjson", "application/json", "text/csv"]
ENDINGS = ["", "/refs", "/snapshots", "/diff?from=x&to=1", "/tags/x", "/rollback", "/explain", "/changes"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    sql = st.fixed_dictionaries({"sql": grammar.STATEMENTS}, optional={"engine": st.sampled_from(["duckdb", "x", 1])})
    part = st.sampled_from(["events", "x1", "..", "%2e%2e", "a%00b", "ü", "a b", "1", "'", "headwater", "%ff"])
    table = draw(grammar.arrow_tables())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrow = sink.getvalue().to_pybytes()
    arrow = arrow[: draw(st.integers(0, len(arrow)))] if draw(st.booleans()) else arrow
    return draw(
        st.one_of(
            sql.map(lambda body: ("POST", "/api/v1/query", {"json": body})),
            grammar.JSON_VALUES.map(lambda body: ("POST", "/api/v1/query", {"json": body})),
            grammar.bodies().map(lambda body: ("POST", "/api/v1/query", {"content": body})),
            st.tuples(part, grammar.bodies(), st.sampled_from(MEDIA_TYPES)).map(
                lambda of: (
                    "POST", f"/api/v1/topics/{of[0]}/records", {"content": of[1], "headers": {"Content-Type": of[2]}}
                )
            ),
            st.just(
                (
                    "POST",
                    "/api/v1/topics/events/records",
                    {"content": arrow, "headers": {"Content-Type": "application/vnd.apache.arrow.stream"}},
                )
            ),
            st.tuples(
                st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE"]),
                st.sampled_from(["topics", "views", "streams", "query", "x"]),
                part,
                st.sampled_from(ENDINGS),
                grammar.JSON_VALUES,
            ).map(lambda of: (of[0], f"/api/v1/{of[1]}/{of[2]}{of[3]}", {"json": of[4]})),
        )
    )  # fmt: skip


def test_requests(lake: Lake, service: httpx.Client) -> None:
    outcomes: Counter[int] = Counter()

    @settings(max_examples=250, deadline=None, suppress_health_check=QUICK)
    @given(requests())
    @example(("PATCH", "/api/v1/topics", {}))
    def check(request: tuple[str, str, dict[str, Any]]) -> None:
        method, path, more = request
        try:
            built = service.build_request(method, path, **more)
        except (ValueError, httpx.InvalidURL):  # what no client can send: a number that is not JSON, a lone surrogate
            return
        answer = service.send(built)
        outcomes[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code == 503, (request, answer.text)
        if answer.status_code >= 400:
            problem = answer.json()
            assert problem["type"].startswith("urn:headwater:error:"), (request, problem)
            assert problem["status"] == answer.status_code

    prepare(lake)
    check()
    assert {200, 400, 404, 405, 422} <= set(outcomes), outcomes
