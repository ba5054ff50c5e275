"""The job that feeds a topic from Kafka."""

from __future__ import annotations

import threading
from typing import Any

from headwater.catalog.streams import Stream
from headwater.catalog.topics import Topics
from headwater.connections import Connections
from headwater.engine.intake import Intake
from headwater.sources.kafka import KafkaConnector
from headwater.topics.log import Log


class ConnectorJob:
    """Runs a stream's connector until it is stopped."""

    def __init__(self, stream: Stream, topics: Topics, wal: Log, intake: Intake, connections: Connections) -> None:
        self.name = stream.name
        self._connector = KafkaConnector(stream.definition, topics, wal, intake.store, connections)

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        self._connector.run(stop)

    def describe(self) -> dict[str, Any]:
        """What a stream's status says beside its name and state."""
        status = self._connector.status()
        return {
            "started_at": status.started_at,
            "last_batch_at": status.last_message_at,
            "lag_rows": status.lag,
            "rows_in": status.messages,
            "rows_out": status.messages - status.dead_letters,
            "last_error": status.last_error or status.waiting_for,
        }
