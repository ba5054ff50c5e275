"""A continuous query as a Spark frame: topics as streams with watermarks, everything else as tables that move on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampNTZType

from headwater.catalog.iceberg import NAME
from headwater.catalog.progress import BATCHES_RETAINED
from headwater.catalog.views import P_READ_SIGNED, STATES, View
from headwater.errors import HeadwaterError
from headwater.spark.compiled import compiled
from headwater.spark.gate_spark import inspect, invalid, isolated
from headwater.streaming.lateness import late_rules
from headwater.streaming.offsets import Place
from headwater.streaming.plan import Continuous, Input, NotStreamed, missing_event_time

Files = Callable[[Place, Place], str]
"""Tells the files between two places, as JSON."""

_STREAMING = "org.apache.spark.sql.execution.streaming"
# Spark's default starts a process for every file that it renames or looks at in a local folder; this one for fewer.
_FILES = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
_LOCAL_FILES = "LocalCheckpoints"
STREAMING_CONF = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _FILES,
    # A second file for every one of a checkpoint; RocksDB and its logs of changes notice damage themselves.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": str(BATCHES_RETAINED),
    "spark.sql.streaming.pollingDelay": "20ms",
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A frame whose streams reach as far as `advance` said."""

    frame: DataFrame
    ids: Mapping[str, str] = field(repr=False)  # the topic to its stream in the JVM

    def advance(self, head: Place) -> None:
        """Let the stream of a topic reach up to here."""
        compiled(self.frame.sparkSession, "TaskSets").advance(self.ids[head.topic], head.to_json())

    def close(self) -> None:
        """Forget the streams, whose query has ended."""
        _forget(self.frame.sparkSession, self.ids.values())


def open_frame(session: SparkSession, plan: Continuous, views: Callable[[str], View], files: Files) -> Opened:
    """The plan's query over its streams, each of which starts where its topic does, and its tables."""
    own = isolated(session)
    for key, value in STREAMING_CONF.items():
        own.conf.set(key, value)
    if own.sparkContext.master.startswith("local"):
        own.conf.set("spark.sql.streaming.checkpointFileManagerClass", f"{_STREAMING}.checkpointing.{_LOCAL_FILES}")
    if not plan.outline.windows and not late_rules(plan):
        # Nothing is emitted or forgotten because time has passed, so no batch is run for that alone.
        own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    # Every partition of a stateful operator is a store that is opened and committed in every batch.
    own.conf.set("spark.sql.shuffle.partitions", str(own.sparkContext.defaultParallelism))
    ids: dict[str, str] = {}
    try:
        for each in plan.outline.inputs:
            if each.stream is None:
                _table(own, each, views).createOrReplaceTempView(each.name)
            else:
                ids[each.table.name] = uuid.uuid4().hex
                _stream(own, each, ids[each.table.name], files).createOrReplaceTempView(each.name)
        query = inspect(own, plan.outline.text)
        jvm = own.sparkContext._gateway.jvm
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(own._jsparkSession, query.plan.clone())
        return Opened(_typed(DataFrame(rows, own), plan), ids)
    except BaseException:
        _forget(own, ids.values())
        raise


def _typed(frame: DataFrame, plan: Continuous) -> DataFrame:
    """The frame with the columns' types that the view has: event times without a zone are read with one."""
    wanted = dict(plan.outline.outputs)
    if not any("timestamp_ntz" in of for of in wanted.values()):
        return frame
    return frame.select(*(frame[f"`{name}`"].cast(wanted[name]).alias(name) for name in frame.columns))


def _forget(session: SparkSession, ids: Iterable[str]) -> None:
    for each in ids:
        compiled(session, "TaskSets").close(each)


def unsupported(session: SparkSession, plan: Continuous, views: Callable[[str], View]) -> NotStreamed | None:
    """Why Spark would not run the plan's query, which is good for a batch, as a stream; None if it would."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm = session.sparkContext._gateway.jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output = modes.Append() if plan.mode == "append" else modes.Update()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        opened = open_frame(session, plan, views, lambda *_: "[]")
        try:
            checker.checkForStreaming(opened.frame._jdf.queryExecution().analyzed(), output)
        finally:
            opened.close()
    except (PySparkException, Py4JJavaError) as refused:
        wrong: HeadwaterError = invalid(refused)
        return NotStreamed(_plain(wrong.detail or str(wrong)), missing_event_time(plan.outline))
    return None


_REASONS = {
    "aggregations without watermark": "groups that no window of a stream's event time tells apart never close",
    "session window": "sessions grow together, so a row that was emitted may have to be taken back",
    "Non-time-based windows": "ranks and other functions over rows need all of them",
    "window function is not supported": "ranks and other functions over rows need all of them",
    "Distinct aggregations": "DISTINCT inside an aggregate needs all rows of a group",
    "Multiple streaming aggregations": "totals of totals change with every record",
    "not allowed in subquery expressions": "a subquery over a stream, as in IN or EXISTS, needs all of its records",
}


def _plain(reason: str) -> str:
    """Spark's reason as the rest of a sentence, in our words where they are known."""
    known = next((ours for theirs, ours in _REASONS.items() if theirs.lower() in reason.lower()), None)
    if known is not None:
        return known
    text = reason.partition("]")[2] if reason.startswith("[") else reason
    text = text.strip().rstrip(".").partition("\n")[0].replace(" on streaming DataFrames/DataSets", "")
    return text[:1].lower() + text[1:]


def _stream(own: SparkSession, source: Input, id: str, files: Files) -> DataFrame:
    assert source.stream is not None
    name = f"{NAME}.{source.table}"
    event_time, bound = source.stream.event_time, source.stream.options.max_out_of_orderness
    table, wanted = own.read.table(name), {*source.columns, event_time}
    # In the table's order, which is the order in which Iceberg's reader gives them.
    schema = table.select(*(f"`{each}`" for each in table.columns if each in wanted)).schema
    # A batch that is repeated reads files from before a column became NOT NULL, and Spark takes its word for it.
    columns = own._jsparkSession.parseDataType(schema.json()).asNullable()
    ensure_callback_server_started(own.sparkContext._gateway)
    start = Place(source.table.name).to_json()
    rows = DataFrame(
        compiled(own, "TaskSets").stream(own._jsparkSession, name, id, columns, start, _Answers(files)), own
    )
    if isinstance(schema[event_time].dataType, TimestampNTZType):
        # Watermarks are of times with a zone. In UTC, which sessions keep to, both say the same.
        rows = rows.withColumn(event_time, rows[f"`{event_time}`"].cast("timestamp"))
    return rows.withWatermark(event_time, f"{round(bound * 1000)} milliseconds")


def _table(own: SparkSession, source: Input, views: Callable[[str], View]) -> DataFrame:
    rows = DataFrame(compiled(own, "TaskSets").moving(own._jsparkSession, f"{NAME}.{source.table}"), own)
    if source.table.namespace == "topics":
        return rows
    rows.createOrReplaceTempView(STATES)
    # As if rows took others back, which they may begin to while the query runs.
    found = own.sql(views(source.table.name).table.metadata.properties[P_READ_SIGNED])
    own.catalog.dropTempView(STATES)
    return found


class _Answers:
    """Answers the JVM, which asks with two places on two lines."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def apply(self, places: str) -> str:
        start, end = places.split("\n")
        return self._files(Place.from_json(start), Place.from_json(end))

    class Java:
        implements = ("java.util.function.Function",)
