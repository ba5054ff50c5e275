from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headwater.errors import HeadwaterError, InvalidInput, InvalidName, InvalidStatement
from headwater.sql.moments import parse_moment
from headwater.sql.parse import parse
from headwater.sql.render import render_create_view
from headwater.sql.statements import CreateView
from headwater.sql.tokens import tokenise
from headwater.sql.view_definition import checked_view, view_from_dict, view_to_dict
from headwater.sql.window_sizes import Size, read_size
from headwater.types import TableName, ViewDefinition, ViewOptions

QUERY = "-- why\nSELECT a, count(*) AS n FROM t GROUP BY a WITH ROLLUP"


def test_the_statement_the_value_and_the_json_form_make_equal_definitions() -> None:
    statement = parse(f"CREATE MATERIALIZED VIEW v AS\n{QUERY}\nWITH (refresh = 'manual, full', verify_every = 3)")
    assert isinstance(statement, CreateView)
    definition = statement.definition
    assert definition == checked_view("v", f" {QUERY} ; -- done", {"refresh": "manual full", "verify_every": 3})
    assert definition == checked_view("v", QUERY, ViewOptions(mode="manual", method="full", verify_every=3))
    body = view_to_dict(definition)
    assert body == {"name": "v", "query": QUERY, "options": {"refresh": "manual, full", "verify_every": "3"}}
    assert view_from_dict(body) == view_from_dict(view_to_dict(definition, all_options=True)) == definition
    assert parse(render_create_view(definition)) == CreateView(definition)


@pytest.mark.parametrize(
    "query",
    [
        "",
        ";",
        "-- nothing",
        "DROP TOPIC x",
        "SELECT 1; SELECT 2",
        "SELECT (1",
        "SELECT 1) UNION (SELECT 2",
        "SELECT 1 WITH (refresh = 'full')",
        "SELECT * FROM t WITH (a = 1) WHERE x",
        "SELECT 1 WITH TAIL OFF",
        "SELECT 1 EMIT CHANGES",
        "SELECT a FROM t EMIT ON WINDOW CLOSE WHERE a",
        "SELECT 1 INTO TOPIC 'x'",
        "SELECT 'a",
        "SELECT '\0'",
    ],
)
def test_queries_that_cannot_be_views(query: str) -> None:
    with pytest.raises(InvalidStatement):
        checked_view("v", query)


@pytest.mark.parametrize(
    "name", ["", "V", "a b", "../x", "a" * 129, "x__dead", "x__late", "x__corrections", "_x", "1a", "views.v"]
)
def test_names_that_cannot_be_views(name: str) -> None:
    with pytest.raises(HeadwaterError, match=r"^materialized view name"):
        checked_view(name, "SELECT 1")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "v"},
        {"query": "SELECT 1"},
        {"name": 3, "query": "SELECT 1"},
        {"name": "v", "query": ["SELECT 1"]},
        {"name": "v", "query": "SELECT 1", "options": "manual"},
        {"name": "v", "query": "SELECT 1", "options": []},
        {"name": "v", "query": "SELECT 1", "options": {"refresh": 3}},
        {"name": "v", "query": "SELECT 1", "columns": []},
    ],
)
def test_bodies_that_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(HeadwaterError) as caught:
        view_from_dict(body)
    assert caught.value.status == 400


def test_tables_of_late_rows_have_names_too() -> None:
    options = {"refresh": "continuous", "late": "keep"}
    assert checked_view("v" * 115, "SELECT 1", options).options.late == "keep"
    with pytest.raises(InvalidName, match="too long"):
        checked_view("v" * 116, "SELECT 1", options)
    assert checked_view("v" * 128, "SELECT 1", {"refresh": "continuous"})


def test_views_live_in_their_own_namespace() -> None:
    assert str(TableName.view("v")) == "views.v"
    assert view_from_dict({"name": "v", "query": "SELECT 1", "options": None}) == ViewDefinition("v", "SELECT 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
        (" 2026-01-02 03:04:05.678901 ", datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04+02:00", datetime(2026, 1, 2, 1, 4, tzinfo=UTC)),
    ],
)
def test_moments_are_in_utc(text: str, expected: datetime) -> None:
    assert parse_moment(text) == expected
    assert parse_moment(text).utcoffset() == UTC.utcoffset(None)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-01-01 25:00", "0001-01-01T00:00:00+02:00", "1"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not understood"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "micros", "sql"),
    [
        ("INTERVAL '1 hour'", 3_600_000_000, "INTERVAL '1' HOUR"),
        ("INTERVAL '5' MINUTE", 300_000_000, "INTERVAL '5' MINUTE"),
        ("INTERVAL 5 MINUTES", 300_000_000, "INTERVAL '5' MINUTE"),
        ("interval 1 day 6 hours", 108_000_000_000, "INTERVAL '30' HOUR"),
        ("'5 min'", 300_000_000, "INTERVAL '5' MINUTE"),
        ("'1 week'", 604_800_000_000, "INTERVAL '7' DAY"),
        ("'90s'", 90_000_000, "INTERVAL '90' SECOND"),
        ("'1.5 ms'", 1_500, "INTERVAL '0.0015' SECOND"),
        ("'1 us'", 1, "INTERVAL '0.000001' SECOND"),
    ],
)
def test_sizes_of_windows_are_exact(text: str, micros: int, sql: str) -> None:
    assert read_size(tokenise(text)[:-1]) == Size(micros)
    assert Size(micros).sql == sql
