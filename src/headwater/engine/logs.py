"""The logs of a lake, put together from its settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headwater.catalog.lake_id import find_lake_id, make_lake_id
from headwater.config import LakePaths, Settings
from headwater.errors import InvalidSetting
from headwater.sql.kafka_texts import resolved
from headwater.topics.log_routed import RoutedLog
from headwater.topics.log_sqlite import SqliteLog

if TYPE_CHECKING:
    from headwater.topics.log_kafka import KafkaLog


def open_logs(paths: LakePaths, settings: Settings) -> RoutedLog:
    """The lake's log; the part in Kafka is opened when a topic needs it."""
    sqlite = SqliteLog(
        paths.state,
        busy_timeout=settings.busy_timeout,
        max_tail_bytes=settings.max_tail_bytes,
        producer_horizon=settings.producer_horizon,
    )

    def exists() -> bool:
        named = bool(settings.kafka_bootstrap_servers)
        return named and find_lake_id(paths.catalog, settings.busy_timeout) is not None

    return RoutedLog(sqlite, lambda: _open_kafka(paths, settings), exists)


def _open_kafka(paths: LakePaths, settings: Settings) -> KafkaLog:
    from headwater.topics.log_kafka import KafkaLog
    from headwater.topics.log_kafka_place import KafkaPlace

    if not settings.kafka_bootstrap_servers:
        raise InvalidSetting(
            'setting "kafka_bootstrap_servers" is not set',
            detail="A topic of this lake has its log in Kafka.",
            hint="Set it to the brokers, as host:port, in headwater.toml or HEADWATER_KAFKA_BOOTSTRAP_SERVERS.",
        )
    lake = make_lake_id(paths.catalog, settings.busy_timeout)
    place = KafkaPlace(
        settings.kafka_bootstrap_servers,
        f"{settings.kafka_topic_prefix}.{lake}",
        tuple((name, _value(name, text)) for name, text in settings.kafka_options.items()),
        settings.kafka_timeout,
    )
    return KafkaLog(
        place,
        paths.kafka_index,
        replication=settings.kafka_replication_factor or None,
        busy_timeout=settings.busy_timeout,
        max_tail_bytes=settings.max_tail_bytes,
        producer_horizon=settings.producer_horizon,
    )


def _value(name: str, text: str) -> str:
    if (found := resolved(text, os.environ)) is None:
        raise InvalidSetting(
            'setting "kafka_options" is not valid', detail=f'"{name}" is read from "{text}", which is not set.'
        )
    return found
