"""The Spark side of DELETE and UPDATE: which files hold matching rows, and what is written in their place.

The statement's condition and values are the user's text. They go through the gate like any query, twice: once where a
WHERE clause stands, which refuses windows, aggregates and generators, and then in the form that runs. That form is
analysed once, with the current time put in, and run over the candidate files and again over the touched ones, so that
both runs agree on every row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from headwater.catalog.iceberg import NAME
from headwater.catalog.topics import Topic, Topics
from headwater.errors import InvalidStatement, TopicNotFound
from headwater.spark.gate_spark import analyze, check_expression, inspect, isolated, sources
from headwater.spark.jobs import query_errors
from headwater.sql.names import normalise_topics
from headwater.sql.statements import DeleteRows, RowStatement, UpdateRows
from headwater.storage.read_spark import StagedFiles, read_now, refusing_time_columns, staged_files
from headwater.storage.scan import ManifestCache
from headwater.storage.write_spark import shown_schema, write_frame
from headwater.storage.writer import Target

ROWS, FILE, MATCHED, VALUE = "__rows", "__file", "__matched", "__value_"
"""Names of ours inside the query: no topic and no column begins with an underscore and another."""


def where_sql(statement: RowStatement) -> str:
    """The statement's expressions where only conditions may stand."""
    name = f"`{statement.topic}`"
    tested = " AND ".join(["TRUE", *(f"(\n{value}\n) IS NOT NULL" for _, value in _assignments(statement))])
    matching = f"SELECT * FROM `{ROWS}` AS {name} WHERE (\n{_condition(statement)}\n)"  # noqa: S608
    return f"SELECT 1 FROM ({matching}) AS {name} WHERE {tested}"  # noqa: S608


def marked_sql(statement: RowStatement) -> str:
    """Every row, with whether it matches and, where it does, its new values."""
    # Only where the row matches: elsewhere a value may fail, and nobody asked for it.
    set_to = "".join(
        f", CASE WHEN `{MATCHED}` THEN (\n{value}\n) END AS `{VALUE}{n}`"
        for n, (_, value) in enumerate(_assignments(statement))
    )
    name = f"`{statement.topic}`"
    inner = f"SELECT *, (\n{_condition(statement)}\n) AS `{MATCHED}` FROM `{ROWS}` AS {name}"  # noqa: S608
    return f"SELECT *{set_to} FROM ({inner}) AS {name}"  # noqa: S608


def _assignments(statement: RowStatement) -> tuple[tuple[str, str], ...]:
    return statement.assignments if isinstance(statement, UpdateRows) else ()


def _condition(statement: RowStatement) -> str:
    return statement.condition if statement.condition is not None else "TRUE"


@contextmanager
def open_rewrite(
    session: SparkSession,
    topics: Topics,
    manifests: ManifestCache,
    flush: Callable[[str], object],
    topic: Topic,
    statement: RowStatement,
) -> Iterator[RowRewrite]:
    """The statement on the topic's snapshot, checked; it can be run inside the block."""

    def provide(name: str) -> Topic:
        """A topic that a subquery names, with all that was acknowledged."""
        if name == topic.name:
            return topic
        flush(name)
        return topics.load(name)

    with ExitStack() as until:
        own = isolated(session)

        def register(name: str, topic: Topic) -> DataFrame:
            """The topic's rows as a view; without the columns that tell about files."""
            frame = _rows(own, topic, manifests, until).select(*_columns(topic))
            frame.createOrReplaceTempView(name)
            return frame

        yield RowRewrite(own, topic, statement, _check(own, topic, statement, provide, register), until)


@dataclass(frozen=True, slots=True)
class Matches:
    """How many rows match, by file (those without any are left out), and what they were found in."""

    by_file: Mapping[str, int]
    staged: StagedFiles
    marked: DataFrame


@dataclass(frozen=True, slots=True)
class RowRewrite:
    """One statement on one snapshot of its topic: it finds, and then it writes."""

    session: SparkSession
    topic: Topic
    statement: RowStatement
    allowed: frozenset[tuple[str, str]]
    until: ExitStack

    def find(self, candidates: Sequence[DataFile], row_filter: BooleanExpression) -> Matches:
        """The rows of `candidates`, of which there must be some, that match."""
        staged = self.until.enter_context(staged_files(self.session, self.topic.table_name, candidates, row_filter))
        marked = self._mark(staged.frame)
        with query_errors():
            counts = marked.where(F.col(MATCHED)).groupBy(FILE).count().collect()
        return Matches({row[FILE]: row["count"] for row in counts}, staged, marked)

    def _mark(self, frame: DataFrame) -> DataFrame:
        rows = frame.select(*_columns(self.topic), F.col("_file").alias(FILE))
        rows.createOrReplaceTempView(ROWS)
        query = inspect(self.session, normalise_topics(marked_sql(self.statement)))
        return _at_one_time(analyze(self.session, query, self.allowed | sources(rows)))

    def write(self, matches: Matches, files: Sequence[DataFile], into: Target) -> list[DataFile]:
        """Files that stand for `files`, some of those that hold matches."""
        if not files:
            return []
        matches.staged.narrow(files)
        matched = F.coalesce(F.col(MATCHED), F.lit(False))
        if isinstance(self.statement, DeleteRows):
            return write_frame(matches.marked.where(~matched).select(*_columns(self.topic)), into)
        valued = _assigned(matches.marked, self.statement, shown_schema(into))
        new = {column: F.col(f"{VALUE}{n}") for n, (column, _) in enumerate(self.statement.assignments)}
        columns = [
            F.when(matched, new[name]).otherwise(F.col(name)).alias(name) if name in new else F.col(name)
            for name in _columns(self.topic)
        ]
        return write_frame(valued.select(*columns), into)


def _check(
    session: SparkSession,
    topic: Topic,
    statement: RowStatement,
    provide: Callable[[str], Topic],
    register: Callable[[str, Topic], DataFrame],
) -> frozenset[tuple[str, str]]:
    """What the statement's subqueries read, registered in the session; an error if the statement cannot run."""
    for text in (_condition(statement), *(value for _, value in _assignments(statement))):
        check_expression(session, text)
    query = inspect(session, normalise_topics(where_sql(statement)))
    frames = [register(ROWS, topic)]
    for name in sorted(query.relations - {ROWS}):
        try:
            frames.append(register(name, provide(name)))
        except TopicNotFound:
            if name not in query.ctes:
                raise
    allowed = sources(*frames)
    with _without_place():
        checked = analyze(session, query, allowed)
    if not checked._jdf.queryExecution().analyzed().deterministic():
        raise InvalidStatement(
            f'rows of topic "{topic.name}" cannot be changed by chance',
            detail="The statement calls a function that answers differently each time, such as rand().",
        )
    return allowed


def _rows(session: SparkSession, topic: Topic, manifests: ManifestCache, until: ExitStack) -> DataFrame:
    with refusing_time_columns(topic.name):
        if topic.snapshot_id is None:
            return session.read.table(f"{NAME}.{topic.table_name}")
        return until.enter_context(read_now(session, topic.table_name, topic.table, topic.snapshot_id, manifests))


def _columns(topic: Topic) -> list[str]:
    return [field.name for field in topic.schema.fields]


def _at_one_time(frame: DataFrame) -> DataFrame:
    """The frame with the current time as a constant, so that it is the same in every run."""
    session = frame.sparkSession
    spark_sql = session.sparkContext._gateway.jvm.org.apache.spark.sql
    plan = spark_sql.catalyst.optimizer.ComputeCurrentTime.apply(frame._jdf.queryExecution().analyzed())
    return DataFrame(spark_sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _assigned(marked: DataFrame, statement: UpdateRows, columns: StructType) -> DataFrame:
    """`marked` with its new values in the types of their columns, converted as an INSERT would."""
    for n, (column, _) in enumerate(statement.assignments):
        name, wanted = f"{VALUE}{n}", columns[column].dataType
        fields = [
            StructField(field.name, wanted if field.name == name else field.dataType, nullable=True)
            for field in marked.schema.fields
        ]
        try:
            marked = marked.to(StructType(fields))
        except AnalysisException:
            given = marked.schema[name].dataType.simpleString()
            raise InvalidStatement(
                f'value for column "{column}" has a type that does not fit',
                detail=f"It is {given}, and the column is {wanted.simpleString()}.",
                hint="Write a CAST.",
            ) from None
    return marked


@contextmanager
def _without_place() -> Iterator[None]:
    """Errors without the line and position that Spark tells: they are those of the query around the user's text."""
    try:
        yield
    except InvalidStatement as error:
        detail = re.sub(r" \(line \d+, position \d+\)", "", error.detail or "")
        raise InvalidStatement(error.message, detail=detail or None, hint=error.hint) from None
