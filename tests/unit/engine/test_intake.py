"""What an intake does when one of a lake's logs does not answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.catalog.identity import claim_kafka_log
from headwater.engine import Lake
from headwater.engine.intake import Intake
from headwater.errors import TopicNotFound, Unavailable
from headwater.observability.metrics import Metrics
from headwater.storage.writer import local_path
from headwater.topics import ingest
from headwater.topics.ingest import Ingested
from headwater.types import Offsets

GONE = {"gone": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}}


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
    topics: Any = SimpleNamespace(survey=lambda: ([SimpleNamespace(name=name, id=name) for name in names], []))
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


@pytest.mark.leaves_damage
def test_a_damaged_topic_does_not_keep_records_from_others_when_the_log_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "write_files", lambda _, path, into, entries: ingest.write_entries(path, into, entries))
    with Lake.init(tmp_path / "lake", max_tail_bytes=1_048_576) as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        lake.sql("CREATE TOPIC damaged (s STRING)")
        lake.sql("CREATE TOPIC healthy (s STRING)")
        local_path(lake.topics.load("damaged").table.metadata_location).write_bytes(b"{")
    with Lake.open(tmp_path / "lake", max_tail_bytes=1_048_576) as lake:
        lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]
        for n in range(12):
            lake.topic("healthy").append([{"s": f"{n}" * 200_000}])
        assert lake.sql("SELECT count(*) AS c FROM healthy").rows() == [{"c": 12}]


def test_a_lake_begins_to_ingest_although_its_brokers_are_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Lake.init(tmp_path) as lake:
        claim_kafka_log(lake.paths.catalog, 30)  # as a topic with its log in Kafka does
    with Lake.open(tmp_path, connections=GONE, kafka_connection="gone", kafka_timeout=0.5, ingest_poll=60) as lake:
        lake.start_ingest()
        assert "topics that were dropped are not forgotten yet" in caplog.messages
