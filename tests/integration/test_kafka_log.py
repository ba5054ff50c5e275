"""Topics whose log is in Kafka, from the first record to the view: what users do with any other topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.errors import Conflict, InvalidOption, InvalidSetting, RecordsRejected
from headwater.spark.session import SparkEngine
from headwater.topics.ingest import log_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = ("logged", "logged__dead", "large", "embedded")


@pytest.fixture
def settings(kafka: Any) -> dict[str, Any]:
    brokers = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "options": {"compression.type": "lz4"}}
    return {"connections": {"local": brokers}, "kafka_connection": "local"}


@pytest.fixture
def lake(spark: Any, spark_lake: Path, settings: dict[str, Any]) -> Iterator[Lake]:
    opened = opened_again(spark, spark_lake, settings)
    yield opened
    opened.close()
    with opened_again(spark, spark_lake, settings) as cleaned:
        cleaned.sql("DROP MATERIALIZED VIEW IF EXISTS logged_totals")
        for name in NAMES:
            cleaned.sql(f"DROP TOPIC IF EXISTS {name}")
        assert cleaned.log.kafka.waiting() == []


def opened_again(spark: Any, folder: Path, settings: dict[str, Any]) -> Lake:
    made = (folder / "headwater.toml").exists()
    opened = Lake.open(folder, **settings) if made else Lake.init(folder, **settings)
    opened._spark = SparkEngine(lambda: spark, stop=lambda _: None)
    return opened


def held(lake: Lake, name: str) -> tuple[int, int, int]:
    """How many topics of that id SQLite's log has, how many records Kafka's holds, and how far the table is."""
    topic = lake.topics.load(name)
    stats = lake.log.kafka.stats(log_topic(topic))
    embedded = [each for each in lake.log.sqlite.waiting() if each.id == topic.id]
    return len(embedded), stats.end - stats.start, topic.committed


def test_from_the_first_record_to_the_view(lake: Lake, spark: Any, spark_lake: Path, settings: dict[str, Any]) -> None:
    lake.sql(
        "CREATE TOPIC logged (id BIGINT NOT NULL, kind STRING, amount DOUBLE) "
        "WITH (log = 'kafka', on_invalid = 'dead_letter', dedup_key = 'id')"
    )
    lake.sql("CREATE TOPIC embedded (id BIGINT)")
    rows = [{"id": n, "kind": "ab"[n % 2], "amount": n / 2} for n in range(100)]
    ack = lake.topic("logged").append([*rows, {"id": "no"}, rows[0]], producer="p", sequence=1)
    assert (ack.rows, ack.duplicates, ack.dead) == (100, 1, 1)
    lake.topic("embedded").append([{"id": 1}])
    assert held(lake, "logged") == (0, 100, 0)
    assert lake.sql("SELECT count(*) AS c, sum(amount) AS s FROM logged JOIN embedded ON true").rows() == [
        {"c": 100, "s": 2475.0}
    ]

    lake.sql("CREATE MATERIALIZED VIEW logged_totals AS SELECT kind, sum(amount) AS total FROM logged GROUP BY kind")
    lake.flush()
    assert held(lake, "logged") == (0, 0, 100)
    assert lake.sql("SELECT raw FROM logged__dead", tail=False).rows() == [{"raw": '{"id":"no"}'}]
    lake.sql("REFRESH MATERIALIZED VIEW logged_totals")
    assert lake.sql("SELECT * FROM logged_totals ORDER BY kind").rows() == [
        {"kind": "a", "total": 1225.0},
        {"kind": "b", "total": 1250.0},
    ]

    lake.topic("logged").append([{"id": 500, "kind": "a", "amount": 1.0}, {"id": 99}], producer="p", sequence=2)
    lake.close()
    for file in spark_lake.glob("kafka-log.db*"):  # only a copy
        file.unlink()
    with opened_again(spark, spark_lake, settings) as again:
        assert again.topic("logged").append([*rows, {"id": "no"}, rows[0]], producer="p", sequence=1).repeated
        assert again.sql("SELECT max(_offset) AS o, count(*) AS c FROM logged").rows() == [{"o": 100, "c": 101}]
        again.sql("ALTER TOPIC logged ALTER COLUMN amount SET NOT NULL")
        again.sql("ALTER TOPIC logged SET (on_invalid = 'reject')")
        with pytest.raises(RecordsRejected):
            again.topic("logged").append([{"id": 501}])
        again.flush("logged")
        assert held(again, "logged") == (0, 0, 101)
        again.sql("DELETE FROM logged WHERE id >= 50")
        assert again.sql("SELECT count(*) AS c FROM logged").rows() == [{"c": 50}]


def test_workers_read_large_appends_from_kafka(lake: Lake) -> None:
    """Enough for two tasks, in messages that entries share and entries that span several of them."""
    lake.sql("CREATE TOPIC large (n BIGINT NOT NULL, text STRING) WITH (log = 'kafka')")
    text = "".join(f'{{"n":{n},"text":"{"x" * 60}{n}"}}\n' for n in range(150_000)).encode()
    for sequence in range(2):
        lake.append("large", [text], "ndjson", _source(sequence))
    lake.topic("large").append([{"n": -1}])
    (done,) = lake.flush("large")
    assert (len(done.offsets), done.files) == (300_001, 2)
    assert lake.sql("SELECT count(*) AS c, sum(n) AS s, max(_offset) AS o FROM large").rows() == [
        {"c": 300_001, "s": 2 * sum(range(150_000)) - 1, "o": 300_000}
    ]
    assert held(lake, "large") == (0, 0, 300_001)


def _source(sequence: int) -> Any:
    from headwater.topics.produce import Source

    return Source("test", "p", sequence)


def test_what_cannot_be_had_is_said(lake: Lake, spark_lake: Path) -> None:
    lake.sql("CREATE TOPIC logged (id BIGINT) WITH (log = 'kafka')")
    with pytest.raises(InvalidOption, match='option "log" of topic "logged" cannot be changed'):
        lake.sql("ALTER TOPIC logged SET (log = 'sqlite')")
    lake.sql("CREATE TOPIC embedded (id BIGINT)")
    mixed = [log_topic(lake.topics.load(name)) for name in ("logged", "embedded")]
    from headwater.topics.log import Append, Part

    with pytest.raises(Conflict, match='topics "logged" and "embedded" have different logs'):
        lake.log.append(Append(tuple(Part(topic, ()) for topic in mixed)))
    with Lake.open(spark_lake) as unset:
        assert unset.sql("SELECT count(*) AS c FROM embedded").rows() == [{"c": 0}]
        for statement in ("SELECT * FROM logged", "CREATE TOPIC other (id BIGINT) WITH (log = 'kafka')"):
            with pytest.raises(InvalidSetting, match='setting "kafka_connection" is not set'):
                unset.sql(statement)
        assert "other" not in unset.topics.names()
