"""What an intake does when one of a lake's logs does not answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.catalog.lake_id import make_lake_id
from headwater.engine import Lake
from headwater.engine.intake import Intake
from headwater.errors import TopicNotFound, Unavailable
from headwater.observability.metrics import Metrics
from headwater.topics.ingest import Ingested
from headwater.types import Offsets


class Ingester:
    """Drains every topic but one that is gone and two whose log does not answer."""

    def drain(self, name: str, counted: Callable[[Ingested], None]) -> list[Ingested]:
        if name == "dropped":
            raise TopicNotFound('topic "dropped" does not exist')
        if name.startswith("away"):
            raise Unavailable(f"log of {name} does not answer")
        done = Ingested(name, Offsets(0, 1), 1, 1, 1, 0.1, "asked to")
        counted(done)
        return [done]


def intake(*names: str) -> Intake:
    topics: Any = SimpleNamespace(all=lambda: [SimpleNamespace(name=name, id=name) for name in names])
    log: Any = SimpleNamespace(waiting=list)
    ingester: Any = Ingester()
    producer: Any = None
    return Intake(topics, log, producer, ingester, Metrics(), auto_flush=False)


def test_a_flush_of_all_topics_goes_on_behind_one_whose_log_does_not_answer() -> None:
    assert [done.topic for done in intake("a", "dropped", "b").flush()] == ["a", "b"]
    told: list[str] = []
    with pytest.raises(Unavailable, match="log of away-1"):
        intake("a", "away-1", "b", "away-2", "c").flush(progress=lambda done: told.append(done.topic))
    assert told == ["a", "b", "c"]


def test_a_lake_begins_to_ingest_although_its_brokers_are_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Lake.init(tmp_path) as lake:
        make_lake_id(lake.paths.catalog, 30)  # as a topic with its log in Kafka does
    with Lake.open(tmp_path, kafka_bootstrap_servers="127.0.0.1:1", kafka_timeout=0.5, ingest_poll=60) as lake:
        lake.start_ingest()
        assert "topics that were dropped are not forgotten yet" in caplog.messages
