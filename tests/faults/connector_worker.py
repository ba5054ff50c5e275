"""A Kafka connector in a process of its own that may die at any moment.

Failpoints of the environment are armed after `--clean` appends. It ends when the topic holds everything.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from headwater.connections import KafkaConnection
from headwater.engine import Lake
from headwater.observability import failpoints
from headwater.sources.kafka import KafkaConnector
from headwater.sources.kafka_reader import Limits
from headwater.types import StreamDefinition, StreamOptions

FEW = Limits(rows=7, idle=0.1, linger=0.02, away=0.1, refresh=0.5)
"""Small batches, so that there are many moments to die at."""


def stream(kafka_topic: str) -> StreamDefinition:
    options: dict[str, Any] = {"partition_field": "p", "offset_field": "o"}
    return StreamDefinition(
        "t",
        None,
        StreamOptions(connector="kafka", connection="local", kafka_topic=kafka_topic, **options),
    )


def connector(lake: Lake, bootstrap: str, kafka_topic: str) -> KafkaConnector:
    connections = {"local": KafkaConnection(type="kafka", bootstrap_servers=bootstrap)}
    store = lake._intake.store
    return KafkaConnector(stream(kafka_topic), lake.topics, lake.log, store, connections, limits=FEW)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("lake")
    parser.add_argument("bootstrap")
    parser.add_argument("kafka_topic")
    parser.add_argument("--clean", type=int, default=0)
    asked = parser.parse_args()
    armed = os.environ.pop(failpoints.VARIABLE, "")
    with Lake.open(asked.lake) as lake:
        reading = connector(lake, asked.bootstrap, asked.kafka_topic)
        while reading.status().lag != 0:
            if reading.status().appends >= asked.clean and failpoints.VARIABLE not in os.environ:
                os.environ[failpoints.VARIABLE] = armed
                failpoints._actions.cache_clear()
            reading.poll_once()
        reading.close()


if __name__ == "__main__":
    main()
