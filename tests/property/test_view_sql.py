"""What is rendered of a view is read back equal, and no text makes the readers of view SQL fail in another way."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.sql.names import normalise, normalise_topics
from headwater.sql.option_table import COMPRESSION_LEVELS
from headwater.sql.parse import parse, parse_script
from headwater.sql.render import render_create_view
from headwater.sql.statements import CreateView, DeleteRows, UpdateRows
from headwater.sql.tokens import tokenise
from headwater.sql.view_definition import checked_view, view_from_dict, view_to_dict
from headwater.sql.view_options import change_view_options, parse_view_options, render_view_options
from headwater.sql.windows import rewrite_windows
from headwater.sql.windows_streaming import streaming_windows
from headwater.types import ViewDefinition, ViewOptions

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(
    lambda each: not each.endswith(("__dead", "__late", "__corrections"))
)
DURATIONS = st.floats(min_value=0.1, max_value=86_400, allow_nan=False)
QUERIES = st.sampled_from(
    (
        "SELECT 1",
        "-- why\nSELECT a, ')' AS `(` FROM t -- and\n GROUP BY a WITH ROLLUP",
        "WITH a AS (SELECT 1), b(x) AS (TABLE a) SELECT * FROM a, b",
        "(SELECT 1) UNION ALL (SELECT 'WITH (refresh = 1)')",
        "FROM orders |> AGGREGATE count(*) AS n GROUP BY city",
        "SELECT ';' AS x, /* ; */ r'\\' FROM topic('o')",
    )
)


@st.composite
def of_stream(draw: st.DrawFn) -> dict[str, Any]:
    """What only continuous views have."""
    into = draw(
        st.sampled_from(
            [{}, {"into_topic": "out"}, {"into_kafka": "a:1,[::1]:65535/t.x", "kafka_options": (("linger.ms", "5"),)}]
        )
    )
    emit, late = draw(st.sampled_from(["changes", "close"])), draw(st.sampled_from(["drop", "keep", "correct"]))
    return {"emit": emit, "late": late, "trigger": draw(st.just(0.0) | DURATIONS), **into}


@st.composite
def view_options(draw: st.DrawFn) -> ViewOptions:
    codec = draw(st.sampled_from(["none", "snappy", "gzip", "lz4", "zstd", "brotli"]))
    level = draw(st.none() | st.integers(*COMPRESSION_LEVELS[codec])) if codec in COMPRESSION_LEVELS else None
    mode = draw(st.sampled_from(["immediate", "periodic", "manual", "on_query", "continuous"]))
    return ViewOptions(
        mode=mode,  # type: ignore[arg-type]
        **(draw(of_stream()) if mode == "continuous" else {}),
        method=draw(st.sampled_from(["auto", "incremental", "full"])),
        interval=draw(DURATIONS),
        max_staleness=draw(DURATIONS | st.just(0.0)),
        compact=draw(st.sampled_from(["auto", "off"])),
        verify_every=draw(st.integers(0, 1_000_000)),
        verify_sample=draw(st.integers(1, 1_000_000)),
        compression=codec,  # type: ignore[arg-type]
        compression_level=level,
        target_file_size=draw(st.integers(1024**2, 50 * 1024**3)),
        description=draw(TEXTS),
    )


@given(view_options(), view_options())
@settings(deadline=None)
def test_options_survive_text(options: ViewOptions, before: ViewOptions) -> None:
    assert parse_view_options(render_view_options(options)) == options
    assert parse_view_options(render_view_options(options, changed_only=True)) == options
    named = change_view_options(before, {**render_view_options(options), "refresh": options.refresh})
    assert named == options


@given(NAMES, QUERIES, view_options())
@settings(deadline=None)
def test_definitions_survive_text_and_json(name: str, query: str, options: ViewOptions) -> None:
    definition = checked_view(name, query, options)
    assert definition == ViewDefinition(name, query, options)
    text = render_create_view(definition)
    assert parse(text) == CreateView(definition)
    assert parse_script(f"{text};\n{text}") == (CreateView(definition), CreateView(definition))
    assert view_from_dict(json.loads(json.dumps(view_to_dict(definition)))) == definition


WORDS = """
    CREATE OR REPLACE MATERIALIZED VIEW VIEWS IF NOT EXISTS AS SELECT FROM WITH ( ) , ; = > . v w x 'v' 12 'a' 1.5 `q`
    DROP SHOW REFRESHES FOR LIMIT ALTER SET REFRESH FULL VERIFY SAMPLE EXPLAIN COMPACT DELETE UPDATE WHERE TRUE a b
    refresh interval 'manual' '5 s' mv topic views topics fresh true VERSION TIMESTAMP OF SYSTEM_TIME '2026-01-01'
    JOIN UNION ALL TABLE TABLESAMPLE COMMENT TAIL OFF -- /* */ ' | TUMBLE TUMBLE_START HOP HOP_END ts GROUP BY HAVING
    INTERVAL '1 hour' '5 min' MINUTE RECURSIVE EXCEPT * LATERAL SESSION SESSION_END DESCRIPTOR PARTITION window_start
    window_end EMIT CHANGES ON WINDOW CLOSE INTO KAFKA TOPIC 'k:1/t' emit late 'continuous' STREAM START STOP STATUS
"""
PIECES = st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join)
BEGINNINGS = st.sampled_from(
    (
        "",
        "CREATE MATERIALIZED VIEW v AS SELECT ",
        "CREATE MATERIALIZED VIEW v WITH (",
        "CREATE MATERIALIZED VIEW v WITH (refresh = 'continuous') AS SELECT a FROM t EMIT CHANGES ",
        "CREATE STREAM x (a STRING, ts TIMESTAMP) ",
        "CREATE STREAM x (a STRING) WITH (",
        "ALTER MATERIALIZED VIEW v SET (",
        "REFRESH MATERIALIZED VIEW ",
        "DELETE FROM x WHERE ",
        "UPDATE x SET a = ",
        "SHOW REFRESHES ",
        "EXPLAIN ",
    )
)


@given(BEGINNINGS, PIECES)
@settings(max_examples=600, deadline=None)
def test_any_text_is_parsed_or_refused_with_a_place(beginning: str, pieces: str) -> None:
    text = beginning + pieces
    try:
        statements = parse_script(text)
    except HeadwaterError as error:
        assert error.status in (400, 403)
        assert error.message and not error.message.endswith(".")
        assert error.data["line"] >= 1 and error.data["column"] >= 1
        return
    for statement in statements:
        match statement:
            case CreateView(definition):
                assert definition.query in text
                assert parse(render_create_view(definition)) == CreateView(definition)
                assert checked_view(definition.name, definition.query, definition.options) == definition
            case DeleteRows(_, condition) if condition:
                assert condition in text
            case UpdateRows(_, assignments, _):
                assert all(value in text for _, value in assignments)


FROMS = st.sampled_from(
    ("SELECT * FROM ", "SELECT a FROM v JOIN ", "WITH w AS (SELECT 1) SELECT * FROM ", "TABLE ", "SELECT * FROM (")
)


@given(FROMS | st.just(""), PIECES)
@settings(max_examples=600, deadline=None)
def test_names_of_any_text_are_plain_or_refused(beginning: str, pieces: str) -> None:
    text = beginning + pieces
    try:
        found = normalise(text)
    except HeadwaterError as error:
        assert error.status == 400 and error.data["line"] >= 1
        return
    again = normalise(found.text)
    assert again.text == found.text
    assert all(relation.kind == "any" and relation.alias_in_text == relation.name for relation in again.relations)
    words = [token.value.lower() for token in tokenise(text)]
    for relation in found.relations:
        assert relation.name in words
        if relation.alias_in_text != relation.name:
            assert relation.alias_in_text not in words and relation.alias_in_text in found.text
    if not any(relation.fresh or relation.version or relation.timestamp for relation in found.relations):
        assert found.text == normalise_topics(text)
        assert [len(line) for line in found.text.split("\n")] == [len(line) for line in text.split("\n")]


GROUPED = st.sampled_from(
    (
        "",
        "SELECT TUMBLE_START(ts, '1 hour') FROM t GROUP BY ",
        "SELECT 1 FROM t WHERE a GROUP BY ",
        "SELECT window_start, x AS y FROM ",
        "SELECT a, SESSION_END(ts, '5 min') FROM (SELECT * FROM t) AS q WHERE a GROUP BY a, ",
    )
)
CALLS = st.sampled_from(
    (
        *("", "TUMBLE(ts, '1 hour') ", "HOP(ts, '5 min', '1 hour') ", "(TUMBLE(a.b + c, '3 s')) "),
        *("SESSION(ts, '5 min') ", "TUMBLE(TABLE t, DESCRIPTOR(ts), '1 hour') ", "window_end "),
        *("TABLE(HOP(TABLE t, DESCRIPTOR(ts), '1 min', '1 hour')) AS t GROUP BY t.window_start ",),
        *("SESSION(TABLE t PARTITION BY (a), DESCRIPTOR(ts), '5 min') GROUP BY a, window_end ",),
    )
)


@given(GROUPED, CALLS, PIECES)
@settings(max_examples=600, deadline=None)
def test_windows_of_any_text_are_rewritten_or_refused(beginning: str, call: str, pieces: str) -> None:
    text = beginning + call + pieces
    try:
        rewritten = rewrite_windows(text)
    except HeadwaterError as error:
        assert error.status == 400 and error.data["line"] >= 1
        return
    assert rewrite_windows(rewritten) == rewritten
    try:
        streaming = streaming_windows(text)
    except HeadwaterError as error:
        assert error.status == 400 and error.data["line"] >= 1
        return
    assert streaming_windows(streaming.text).windows == ()
    assert bool(streaming.windows) <= ("window(" in streaming.text)
