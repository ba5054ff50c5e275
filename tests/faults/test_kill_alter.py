"""kill -9 while a topic is altered: it is as it was, or altered as a whole, and goes on."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from headwater.errors import RecordsRejected
from headwater.observability.failpoints import NAMES

POINTS = [name for name in NAMES if name.startswith("alter.")]
STATEMENT = (
    "ALTER TOPIC t ADD COLUMN note STRING, ALTER COLUMN text SET NOT NULL, SET (on_invalid = 'dead_letter'), "
    "SET PARTITIONED BY (bucket(4, n))"
)


def test_there_are_such_points() -> None:
    assert POINTS == ["alter.planned", "alter.committed"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_altering(quick: Any, point: str) -> None:
    arguments = ("--batches", "4", "--flush-every", "3", "--no-spark", "--statement", STATEMENT)
    assert quick.run(*arguments, points=f"{point}=kill") == -signal.SIGKILL, quick.said()
    altered = point == "alter.committed"
    with quick.open() as lake:
        topic = lake.topics.load("t")
        assert ("note" in topic.columns.column_names) == altered
        assert topic.schema.find_field("text").required == altered
        assert (topic.definition.options.on_invalid == "dead_letter") == altered
        assert len(quick.check_visible(lake)) == 20
        if altered:
            assert lake.topic("t").append([{"n": -1}]).dead == 1
        lake.sql(STATEMENT.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS"))
        lake.topic("t").alter("SET (on_invalid = 'reject')")
        with pytest.raises(RecordsRejected):
            lake.topic("t").append([{"n": -1}])
        lake.flush("t")
        assert len(quick.check_visible(lake)) == 20
