"""Windows over a topic: sessions and tables with windows in queries of either engine and in views that stay fresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.engine import Lake

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SESSIONS = (
    "SELECT user, SESSION_START(at, '5 min') AS first, SESSION_END(at, '5 min') AS last, count(*) AS n, sum(x) AS s"
    " FROM {t} WHERE x > 0 GROUP BY user, SESSION(at, '5 min')"
)
QUERIES = (
    SESSIONS,
    "SELECT user, window_start, window_end, max(x) AS m FROM TABLE(SESSION(TABLE {t} PARTITION BY user, "
    "DESCRIPTOR(at), INTERVAL '5' MINUTE)) GROUP BY user, window_start, window_end",
    "SELECT user, x, at, window_start, window_end FROM SESSION(TABLE topic('{t}'), DESCRIPTOR(at), '7 min')",
    "SELECT w.user, w.window_start, w.window_end FROM HOP(TABLE {t}, DESCRIPTOR(at), '5 min', '10 min') AS w",
    "SELECT HOP_START(at, '5 min', '10 min') AS s, sum(x) AS x FROM {t} GROUP BY HOP(at, '5 min', '10 min')",
)


def visits(*rows: tuple[str, float | None, int]) -> list[dict[str, Any]]:
    """Rows of a user, minutes behind the start, and a number."""
    made = []
    for user, minutes, x in rows:
        at = None if minutes is None else (START + timedelta(minutes=minutes)).isoformat()
        made.append({"user": user, "at": at, "x": x})
    return made


@pytest.fixture(scope="module")
def topic(lake: Lake) -> Iterator[str]:
    name = "wi_visits"
    lake.sql(f"CREATE TOPIC {name} (user STRING, at TIMESTAMP, x BIGINT)")
    lake.topic(name).append(
        visits(
            *(("ann", 0, 1), ("ann", 5, 2), ("ann", 10.0001, 3), ("bob", 5, 4), ("bob", 5, 5), ("ann", None, 6)),
            *(("bob", 30, 7), ("cid", 3, 8), ("cid", 9, 0), ("cid", 100, 9)),
        )
    )
    lake.flush(name)
    yield name
    lake.sql(f"DROP TOPIC {name}")


def bag(lake: Lake, text: str, **options: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in lake.sql(text, **options).rows())


def test_both_engines_answer_alike(lake: Lake, topic: str) -> None:
    for query in QUERIES:
        text = query.format(t=topic)
        assert lake.sql(f"EXPLAIN {text}").info["plan"]["engine"] == "duckdb", text
        by_duck = bag(lake, text, engine="duckdb")
        assert by_duck == bag(lake, text, engine="spark"), text
        assert by_duck
    sessions = bag(lake, SESSIONS.format(t=topic))
    gap = timedelta(minutes=5)
    assert sessions[("ann", START, START + 2 * gap, 2, 3)] == 1  # a row exactly one gap later belongs to it
    assert sessions[("bob", START + gap, START + 2 * gap, 2, 9)] == 1
    assert len(sessions) == 6


def test_a_view_of_sessions_refreshes_the_touched_keys(lake: Lake, topic: str) -> None:
    lake.sql(f"CREATE MATERIALIZED VIEW wi_sessions WITH (refresh = 'manual') AS {SESSIONS.format(t=topic)}")
    # One bridges two sessions, one starts another, one is of a new user.
    lake.topic(topic).append(visits(("cid", 6, 1), ("ann", 200, 2), ("dan", 1, 3), ("bob", 8, 0)))
    lake.flush(topic)
    assert lake.sql("EXPLAIN REFRESH wi_sessions").info["plan"]["rule"] == "keys"
    lake.sql("REFRESH MATERIALIZED VIEW wi_sessions")
    assert bag(lake, "SELECT * FROM wi_sessions") == bag(lake, SESSIONS.format(t=topic), tail=False)
    lake.sql("DROP MATERIALIZED VIEW wi_sessions")
