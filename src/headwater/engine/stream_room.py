"""The parts of a lake that its streams are made of, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.identity import load_properties, outlet_prefix
from headwater.catalog.streams import Streams
from headwater.config import LakePaths, Settings
from headwater.engine.connector_job import ConnectorJob
from headwater.engine.intake import Intake
from headwater.engine.stream_views import StreamViews
from headwater.engine.streams import StreamRoom
from headwater.engine.view_room import ViewRoom
from headwater.serving.result import Result
from headwater.spark.session import SparkState
from headwater.sql.statements import TopicStatement
from headwater.streaming.keep import Keeper
from headwater.topics.log import Log
from headwater.topics.produce import Ack, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_streams(
    paths: LakePaths,
    settings: Settings,
    room: ViewRoom,
    spark: Callable[[], SparkSession],
    topic_statement: Callable[[TopicStatement], Result],
    intake: Intake,
    wal: Log,
    spark_state: Callable[[], SparkState],
) -> StreamRoom:
    """The room of a lake's streams."""
    topics, views, upkeep = room.topics, room.upkeep.views, room.upkeep
    streams = Streams(topics)

    def append(topic: str, rows: list[pa.Table], source: Source) -> Ack:
        return intake.append(topic, rows, "arrow", source, wait=True)

    prefix = outlet_prefix(load_properties(paths.catalog, settings.busy_timeout))
    keeper = Keeper(topics, views, paths.streams, spark, upkeep.cache, wal, append, settings.connections, prefix)
    of_views = StreamViews(
        topics, views, upkeep, keeper, spark, room.flush, topic_statement, lambda old: opened.replaced(old)
    )
    opened = StreamRoom(
        paths,
        settings,
        topics,
        views,
        streams,
        of_views,
        keeper,
        topic_statement,
        lambda stream: ConnectorJob(stream, topics, wal, intake, settings.connections),
        wal,
        spark_state,
    )
    return opened
