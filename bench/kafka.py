"""What Kafka costs: messages of a broker into a topic, and a topic's log in Kafka beside the one on disk.

A broker of the tests runs on this machine, so it shares the cores with what is measured. `connector_per_s` counts
messages from Kafka to their durable place in the topic's log, position included; `connector_vs_reading` says how much
of the rate of a consumer that does nothing with them that is. `kafka_log_vs_sqlite` is how fast small batches are
acknowledged by a log in Kafka, beside the log on disk, with eight producers each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

import headwater
from bench.report import Report, timed
from headwater.connections import KafkaConnection
from headwater.engine import Lake
from headwater.sources.kafka import KafkaConnector
from headwater.sources.kafka_settings import consumer_settings
from headwater.types import StreamDefinition, StreamOptions

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from kafka_broker import Broker

COLUMNS = "id BIGINT, city STRING, amount DOUBLE, at TIMESTAMP, note STRING"
PRODUCERS, SMALL = 8, 10


def message(number: int) -> bytes:
    at = f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    note = f"order {number} of a customer who has been here before, to be sent as soon as it is paid"
    return json.dumps({"id": number, "city": "oslo", "amount": number / 4, "at": at, "note": note}).encode()


def fill(broker: Broker, name: str, messages: int) -> None:
    broker.create_topic(name, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    for number in range(messages):
        while True:
            try:
                producer.produce(name, message(number), partition=number % 2)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def local(broker: Broker) -> KafkaConnection:
    return KafkaConnection(type="kafka", bootstrap_servers=broker.bootstrap)


def stream(name: str, topic: str) -> StreamDefinition:
    options = StreamOptions(connector="kafka", connection="local", kafka_topic=name)
    return StreamDefinition(topic, None, options)


def read(broker: Broker, name: str, messages: int) -> None:
    """All messages, with the connector's settings, and nothing done with them."""
    consumer = Consumer(consumer_settings(stream(name, "any"), {"local": local(broker)}))
    consumer.assign([TopicPartition(name, number, 0) for number in range(2)])
    left = messages
    while left > 0:
        left -= sum(1 for each in consumer.consume(2_000, 0.05) if not each.error())
    consumer.close()


def connect(broker: Broker, lake: Lake, name: str, topic: str, messages: int) -> None:
    lake.sql(f"CREATE TOPIC {topic} ({COLUMNS})")
    connector = KafkaConnector(stream(name, topic), lake.topics, lake.log, lake._intake.store, {"local": local(broker)})
    try:
        while connector.status().messages < messages:
            connector.poll_once()
    finally:
        connector.close()


def connector(broker: Broker, folder: Path, messages: int, times: int, report: Report) -> None:
    fill(broker, "orders", messages)
    ours, theirs = [], []
    with headwater.init(folder / "connected", max_tail_bytes=8 * 1024**3, maintenance=False) as lake:
        for number in range(times + 1):  # the first warms up
            theirs.append(timed(lambda: read(broker, "orders", messages)))
            ours.append(timed(lambda number=number: connect(broker, lake, "orders", f"orders{number}", messages)))
    own, other = (messages / statistics.median(each[1:]) for each in (ours, theirs))
    size = len(message(0))
    report.figure("reading_per_s", other, f"{other:,.0f} messages/s of {size} bytes, read and thrown away")
    report.figure("connector_per_s", own, f"{own:,.0f} messages/s, validated and durable in the topic's log")
    report.ratio("connector_vs_reading", own / other, f"{own / other:.2f}x of the rate of reading alone")


def log(broker: Broker, folder: Path, batches: int, times: int, report: Report) -> None:
    rates: dict[str, list[float]] = {"sqlite": [], "kafka": []}
    waits: dict[str, list[float]] = {"sqlite": [], "kafka": []}
    settings = {"connections": {"local": local(broker)}, "kafka_connection": "local", "maintenance": False}
    with headwater.init(folder / "logged", max_tail_bytes=8 * 1024**3, **settings) as lake:
        for kind in rates:
            lake.sql(f"CREATE TOPIC {kind}_log ({COLUMNS}) WITH (log = '{kind}')")
            append(lake, kind, 100)
        for _ in range(times):
            for kind, found in rates.items():
                started = time.perf_counter()
                waits[kind] += append(lake, kind, batches)
                found.append(batches / (time.perf_counter() - started))
    for kind, found in rates.items():
        rate, p99 = statistics.median(found), statistics.quantiles(waits[kind], n=100)[98] * 1000
        report.figure(f"{kind}_log_per_s", rate, f"{rate:,.0f} batches/s of {SMALL} rows, {PRODUCERS} producers")
        report.figure(f"{kind}_log_ack_p99_ms", p99, f"{p99:.1f} ms until the acknowledgement (p99)")
    ratio = statistics.median(rates["kafka"]) / statistics.median(rates["sqlite"])
    report.ratio("kafka_log_vs_sqlite", ratio, f"{ratio:.2f}x of the rate of the log on disk")


def append(lake: Lake, kind: str, batches: int) -> list[float]:
    """Seconds until each batch was acknowledged."""
    body = b"\n".join(message(number) for number in range(SMALL))
    topic, found = lake.topic(f"{kind}_log"), []

    def produce() -> None:
        found.extend([timed(lambda: topic.append(body)) for _ in range(batches // PRODUCERS)])

    threads = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--batches", type=int, default=4000)
    arguments.add_argument("--times", type=int, default=3)
    asked = arguments.parse_args()
    report = Report("kafka")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        broker = Broker(Path(folder) / "broker").start()
        try:
            connector(broker, Path(folder), asked.messages, asked.times, report)
            log(broker, Path(folder), asked.batches, asked.times, report)
        finally:
            broker.stop()
    report.print()


if __name__ == "__main__":
    main()
