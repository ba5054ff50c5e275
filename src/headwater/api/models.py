"""The shapes of requests and answers, for validation and for /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.types import MAX_NAME

NAME = r"^[a-z][a-z0-9_]*$"

ORDERS: dict[str, Any] = {
    "name": "orders",
    "columns": [
        {"name": "order_id", "type": "BIGINT", "nullable": False},
        {"name": "customer", "type": "STRING"},
        {"name": "total", "type": "DECIMAL(12, 2)", "comment": "net"},
        {"name": "placed_at", "type": "TIMESTAMP"},
    ],
    "partitioned_by": ["days(placed_at)"],
    "options": {"compression": "zstd"},
}


class Answer(BaseModel):
    """The base of all answers: nothing is sent that is not described."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """An error as RFC 9457 describes it. Some errors carry more members, such as `rejects`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="A URN that ends in the code.", examples=["urn:headwater:error:topic_not_found"])
    title: str = Field(description="What is wrong.", examples=['topic "order" does not exist'])
    status: int = Field(examples=[404])
    detail: str | None = Field(None, description="More about this occurrence.")
    code: str = Field(description="Stable, for programs.", examples=["topic_not_found"])
    hint: str | None = Field(None, description="What to do about it.", examples=['Did you mean "orders"?'])


class ColumnBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=NAME, max_length=MAX_NAME)
    type: str = Field(description="A type in SQL.", examples=["BIGINT", "ARRAY<STRUCT<sku: STRING, qty: INT>>"])
    nullable: bool = True
    comment: str | None = None


class DefinitionBody(BaseModel):
    """A topic as its creator describes it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": ORDERS})

    name: str = Field(pattern=NAME, max_length=MAX_NAME)
    columns: list[ColumnBody] = Field(min_length=1)
    partitioned_by: list[str] | None = Field(None, examples=[["days(placed_at)", "bucket(8, customer)"]])
    ordered_by: list[str] | None = Field(None, examples=[["customer ASC NULLS LAST"]])
    clustered_by: list[str] | None = Field(None, description="Columns of a Z-order, instead of ordered_by.")
    options: dict[str, Any] | None = Field(None, description="See docs/reference/options.md.")


class Column(Answer):
    name: str
    type: str
    nullable: bool
    comment: str


class TopicSummary(Answer):
    topic: str
    records: int | None = Field(description="Acknowledged records, those in the log included.")
    tail: int | None = Field(description="Records that wait in the log; null if the log does not answer.")
    files: int | None
    bytes: int | None
    description: str
    damage: str | None = Field(
        description="Why the topic cannot be read, with the file; numbers are null then. Null of a sound topic."
    )


class TopicDescription(TopicSummary):
    id: str
    columns: list[Column]
    partitioned_by: list[str]
    ordered_by: list[str]
    clustered_by: list[str]
    options: dict[str, str]
    committed_offset: int = Field(description="The first offset that the table lacks.")
    next_offset: int
    log_bytes: int
    snapshot: str | None
    location: str
    metadata: str


class TopicCreated(TopicDescription):
    status: str = Field(examples=['topic "orders" created'])
    notices: list[str] = Field(description="What the creator should know.")


class AlterBody(BaseModel):
    """Changes to a topic, made in their order, all of them or none."""

    model_config = ConfigDict(extra="forbid")

    changes: list[Annotated[str, Field(min_length=1, max_length=1024**2)]] = Field(
        min_length=1,
        max_length=1000,
        description="Each as ALTER TOPIC takes it; see docs/reference/sql.md.",
        examples=[["ADD COLUMN discount DECIMAL(5, 2) AFTER total", "RENAME COLUMN customer TO buyer"]],
    )
    dry_run: bool = Field(False, description="Only say what would be done.")


class TopicChange(Answer):
    topic: str
    change: str = Field(examples=["ADD COLUMN discount DECIMAL(5, 2) AFTER total"])
    effect: str = Field(examples=['column "discount" is added'])


class TopicAltered(Answer):
    """What the changes did, or would do."""

    topic: str
    dry_run: bool
    snapshot: str | None = Field(description="The snapshot that the changes made; null if there was nothing to do.")
    changes: list[TopicChange]
    notices: list[str] = Field(description="What to know about it.")


class TopicSchema(Answer):
    schema_id: int = Field(alias="schema", description="Its id in the table.")
    current: bool
    since: str | None = Field(description="When it became the topic's.")
    snapshot: str | None = Field(description="The oldest snapshot that is kept of those which are read in it.")
    columns: str = Field(examples=["order_id BIGINT NOT NULL, customer STRING"])
    changes: list[str] = Field(
        description="What is different from the schema before.", examples=[["added note STRING"]]
    )


class TopicSchemas(Answer):
    schemas: list[TopicSchema]


class TopicList(Answer):
    topics: list[TopicSummary]


class Status(Answer):
    status: str


OffsetPair = Annotated[
    list[int], Field(min_length=2, max_length=2, description="The first offset, and the one after the last.")
]


class Acknowledged(Answer):
    """The records are on disk."""

    topic: str
    offsets: OffsetPair
    rows: int = Field(description="Rows stored.")
    duplicates: int = Field(description="Rows dropped by the topic's deduplication key.")
    dead: int = Field(description="Rows that went to the dead letters.")
    repeated: bool = Field(description="True when this very request had been stored before; nothing was stored again.")


class Commit(Answer):
    topic: str
    offsets: OffsetPair
    snapshot: str
    files: int
    bytes: int
    seconds: float
    reason: str


class Flushed(Answer):
    commits: list[Commit]


CONDITION = Field(
    min_length=1,
    max_length=1024**2,
    description="A condition in SQL; TRUE for every row.",
    examples=["customer = 'ada'"],
)


class DeleteBody(BaseModel):
    """Which rows to delete."""

    model_config = ConfigDict(extra="forbid")

    where: str = CONDITION


class UpdateBody(BaseModel):
    """Which rows to change, and how."""

    model_config = ConfigDict(extra="forbid")

    set: dict[str, str] = Field(
        min_length=1,
        description="Columns with expressions in SQL.",
        examples=[{"customer": "NULL", "total": "total + 1"}],
    )
    where: str = CONDITION


class RowsChanged(Answer):
    """What a change of rows did to the topic's table."""

    topic: str
    rows: int = Field(description="Rows deleted or changed.")
    files_removed: int
    files_added: int
    bytes: int = Field(description="Bytes of the added files.")
    seconds: float
    snapshot: str | None = Field(description="The table's snapshot with the change; null if no row matched.")


class QueryBody(BaseModel):
    """A reading statement and how to run it."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"sql": "SELECT count(*) AS orders FROM orders"}}
    )

    sql: str = Field(min_length=1, max_length=1024**2, description="SELECT, WITH, VALUES or EXPLAIN.")
    engine: Literal["auto", "duckdb", "spark"] = "auto"
    tail: bool = Field(True, description="False reads committed data only.")
    max_rows: int | None = Field(
        None, ge=1, le=2**53, description="More rows than these are an error; can only lower query_max_rows."
    )
    timeout: float | None = Field(
        None, gt=0, le=86_400, description="Seconds after which the query is stopped; can only lower query_timeout."
    )
    wait: float | None = Field(
        None, ge=0, le=3600, description="Seconds to wait for the result; query_sync_seconds by default."
    )
    limit: int = Field(1000, ge=1, le=10_000, description="Rows of the first page.")
    id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{16,64}$",
        description="An id of the client's choice, by which it can cancel a query before it has an answer.",
    )


RunStatus = Literal["queued", "running", "finished", "streamed", "failed", "cancelled"]


class ResultColumn(Answer):
    name: str
    type: str = Field(description="The Arrow type.", examples=["int64", "timestamp[us, tz=UTC]"])


class RunSummary(Answer):
    id: str
    status: RunStatus
    sql: str
    submitted_at: str
    seconds: float = Field(description="Since it was submitted; in all, once it has ended.")
    row_count: int | None = Field(description="Rows so far.")
    error: Problem | None = None


class RunList(Answer):
    queries: list[RunSummary]


class Pending(Answer):
    """A query that has not finished yet."""

    id: str
    status: Literal["queued", "running"]
    location: str = Field(description="Where to ask again.")


class Page(Answer):
    """A part of a finished query's result."""

    id: str
    status: Literal["finished"]
    columns: list[ResultColumn]
    rows: list[list[Any]] = Field(description="See docs/reference/http.md for how values are written.")
    row_count: int = Field(description="Rows of the whole result.")
    offset: int
    plan: dict[str, Any] | None
    notices: list[str]
    next: str | None = Field(description="Where the next page is.")


class Health(Answer):
    status: Literal["alive"]


class Readiness(Answer):
    status: Literal["ready", "not ready"]
    catalog: str
    log: str
    disk: str = Field(description="`ok`, or why nothing can be written.")
    spark: Literal["not started", "starting", "ready"]
    query_worker: Literal["off", "not started", "starting", "ready", "failed"] = Field(
        description="The process in which queries run on Spark; off if they run in the service itself."
    )


class Version(Answer):
    version: str
    api: Literal["v1"]
