"""What /query accepts, and in which form it answers."""

from __future__ import annotations

import pytest

from headwater.api.models import QueryBody
from headwater.api.query_routes import negotiated, reading
from headwater.config import Settings
from headwater.errors import InvalidStatement, NotAcceptable, StatementNotAllowed
from headwater.sql.statements import Explain, Query

SETTINGS = Settings(query_timeout=60)


def test_the_body_sets_the_query() -> None:
    body = QueryBody(sql="SELECT 1", engine="spark", tail=False, timeout=2.0)
    assert reading(body, SETTINGS, 5) == Query("SELECT 1", "spark", False, 5, 2.0)


def test_a_request_can_only_lower_the_time_limit() -> None:
    assert reading(QueryBody(sql="SELECT 1", timeout=61), SETTINGS, None) == Query("SELECT 1", timeout=60)


def test_the_text_may_turn_the_tail_off() -> None:
    assert reading(QueryBody(sql="SELECT 1 WITH TAIL OFF"), SETTINGS, None) == Query("SELECT 1", tail=False, timeout=60)


def test_explain_reads_too() -> None:
    found = reading(QueryBody(sql="EXPLAIN SELECT 1", engine="duckdb"), SETTINGS, None)
    assert found == Explain(Query("SELECT 1", "duckdb", timeout=60))


@pytest.mark.parametrize(
    ("sql", "route"),
    [
        ("CREATE TOPIC t (id INT)", "POST /api/v1/topics"),
        ("DROP TOPIC t", "DELETE /api/v1/topics/{topic}"),
        ("SHOW TOPICS", "GET /api/v1/topics"),
        ("DESCRIBE TOPIC t", "GET /api/v1/topics/{topic}"),
        ("FLUSH", "POST /api/v1/flush"),
    ],
)
def test_other_statements_are_sent_to_their_route(sql: str, route: str) -> None:
    with pytest.raises(StatementNotAllowed) as refused:
        reading(QueryBody(sql=sql), SETTINGS, None)
    assert refused.value.data["endpoint"] == route


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES (1)", "SET x = 1", "SELECT 1; DROP TOPIC t", "nonsense"])
def test_what_never_runs_is_refused(sql: str) -> None:
    with pytest.raises((StatementNotAllowed, InvalidStatement)):
        reading(QueryBody(sql=sql), SETTINGS, None)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "json"),
        ("*/*", "json"),
        ("application/json", "json"),
        ("text/html, */*;q=0.1", "json"),
        ("application/x-ndjson", "ndjson"),
        ("application/json;q=0.5, application/x-ndjson", "ndjson"),
        ("Application/VND.apache.arrow.stream", "arrow"),
        ("application/x-ndjson;q=0, application/*", "json"),
    ],
)
def test_the_form_is_negotiated(accept: str, form: str) -> None:
    assert negotiated(accept) == form


def test_a_form_that_does_not_exist_is_not_acceptable() -> None:
    with pytest.raises(NotAcceptable):
        negotiated("text/html")
