"""The logs of a lake, put together from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.catalog.identity import P_KAFKA, P_STATE, claim_kafka_log, load_properties, record_state
from headwater.config import LakePaths, Settings
from headwater.connections import kafka_client
from headwater.errors import InvalidSetting
from headwater.topics.log_integrity import check_log
from headwater.topics.log_routed import RoutedLog
from headwater.topics.log_sqlite import SqliteLog

if TYPE_CHECKING:
    from headwater.topics.log_kafka import KafkaLog


def open_logs(paths: LakePaths, settings: Settings) -> RoutedLog:
    """The lake's log; the part in Kafka is opened when a topic needs it."""
    expected = load_properties(paths.catalog, settings.busy_timeout).get(P_STATE)
    check_log(paths.state, expected, settings.busy_timeout)
    sqlite = SqliteLog(
        paths.state,
        busy_timeout=settings.busy_timeout,
        max_tail_bytes=settings.max_tail_bytes,
        producer_horizon=settings.producer_horizon,
    )

    if expected is None:
        record_state(paths.catalog, settings.busy_timeout, sqlite.state.id)

    def exists() -> bool:
        named = bool(settings.kafka_connection)
        return named and P_KAFKA in load_properties(paths.catalog, settings.busy_timeout)

    return RoutedLog(sqlite, lambda: _open_kafka(paths, settings), exists)


def _open_kafka(paths: LakePaths, settings: Settings) -> KafkaLog:
    from headwater.topics.log_kafka import KafkaLog
    from headwater.topics.log_kafka_place import KafkaPlace

    if not settings.kafka_connection:
        raise InvalidSetting(
            'setting "kafka_connection" is not set',
            detail="A topic of this lake has its log in Kafka.",
            hint="Set it to the name of a connection of type kafka, in headwater.toml or HEADWATER_KAFKA_CONNECTION.",
        )
    client = kafka_client(settings.connections, settings.kafka_connection)
    lake = claim_kafka_log(paths.catalog, settings.busy_timeout)
    place = KafkaPlace(
        str(client.pop("bootstrap.servers")),
        f"{settings.kafka_topic_prefix}.{lake}",
        tuple((name, str(value)) for name, value in client.items()),
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
