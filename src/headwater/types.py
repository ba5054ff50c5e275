"""Values that every room may speak of: names, offset ranges, definitions. No I/O.

A column's type is a PyIceberg type and a topic's columns are a PyIceberg `Schema`: Iceberg's own vocabulary is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.schema import Schema

from headwater.errors import InvalidName

NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
MAX_NAME = 128

OFFSET = "_offset"
TIMESTAMP = "_timestamp"
SYSTEM_COLUMNS = (OFFSET, TIMESTAMP)

DEAD_SUFFIX = "__dead"
LATE_SUFFIX = "__late"
CORRECTIONS_SUFFIX = "__corrections"

TOPICS = "topics"
"""The Iceberg namespace in which topics live."""

VIEWS = "views"
"""The Iceberg namespace in which materialized views live."""

RESERVED_REF = "headwater-"
"""How the names of tags begin that are Headwater's own."""
VIEW_TAG = f"{RESERVED_REF}view-"
"""How the tags begin that keep the snapshots which views stand for; the view's name follows."""


def checked_name(name: str, kind: str) -> str:
    """`name`, if it may become an identifier and a path segment; otherwise InvalidName."""
    if len(name) <= MAX_NAME and NAME.match(name):
        return name
    suggestion = re.sub(r"_+", "_", re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
    suggestion = suggestion.strip("_").lstrip("0123456789_")[:MAX_NAME]
    shown = "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_NAME])
    raise InvalidName(
        f'{kind} name "{shown}" is not allowed',
        detail=f"Names match [a-z][a-z0-9_]* and have at most {MAX_NAME} characters.",
        hint=f'Use "{suggestion}".' if suggestion else None,
    )


def id_text(id: int | None) -> str | None:
    """A 64-bit id in plain data, as text: many readers of JSON keep only 53 bits of a number."""
    return None if id is None else str(id)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table of the lake: a namespace and a name, both checked."""

    namespace: str
    name: str

    def __post_init__(self) -> None:
        checked_name(self.namespace, "namespace")
        checked_name(self.name, "table")

    @classmethod
    def topic(cls, name: str) -> TableName:
        return cls(TOPICS, checked_name(name, "topic"))

    @classmethod
    def view(cls, name: str) -> TableName:
        return cls(VIEWS, checked_name(name, "materialized view"))

    @property
    def identifier(self) -> tuple[str, str]:
        return (self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Offsets:
    """A half-open range of a topic's offsets, `[start, end)`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range of offsets: [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


Transform = Literal["identity", "bucket", "truncate", "year", "month", "day", "hour"]


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition field: a transform of a column, with the number that bucket and truncate take."""

    transform: Transform
    column: str
    parameter: int | None = None

    @property
    def name(self) -> str:
        """The partition field's name in Iceberg metadata and in paths."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"

    def __str__(self) -> str:
        match self.transform:
            case "identity":
                return self.column
            case "bucket" | "truncate":
                return f"{self.transform}({self.parameter}, {self.column})"
            case _:
                return f"{self.transform}s({self.column})"


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of a sort order. Without `NULLS`, nulls come first when ascending and last when descending."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        direction, nulls = "DESC" if self.descending else "ASC", "FIRST" if self.nulls_first else "LAST"
        return f"{self.column} {direction} NULLS {nulls}"


Codec = Literal["none", "snappy", "gzip", "lz4", "zstd", "brotli"]
Encoding = Literal["plain", "delta", "byte_stream_split", "delta_length", "delta_strings"]
ColumnKind = Literal["text", "numeric", "temporal", "boolean", "binary"]
"""Kinds of column that share a setting."""

LogKind = Literal["sqlite", "kafka"]
"""What keeps the log of a topic."""

Pairs = tuple[tuple[str, str], ...]
"""Settings by column or by kind, as they are written: ("note", "zstd:9")."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What `WITH (...)` sets, in base units (bytes, seconds, rows); docs/reference/options.md explains each."""

    compression: Codec = "zstd"
    compression_level: int | None = None
    compression_kinds: Pairs = ()
    compression_columns: Pairs = ()
    dictionary: Literal["auto", "on", "off"] = "auto"
    dictionary_columns: Pairs = ()
    encoding_columns: Pairs = ()
    bloom_columns: Pairs = ()
    page_index: Literal["on", "off"] = "on"
    page_size: int = 1024**2
    row_group_rows: int = 256 * 1024
    target_file_size: int = 128 * 1024**2
    rotation_timeout: float = 300.0
    batch_size: int = 10_000
    commit_interval: float = 10.0
    on_invalid: Literal["reject", "dead_letter"] = "reject"
    dedup_key: tuple[str, ...] = ()
    dedup_horizon: float = 3600.0
    evolution: Literal["strict", "merge"] = "strict"
    compaction: Literal["auto", "off"] = "auto"
    compact_after: float = 3600.0
    retention: float = 0.0
    retention_column: str = TIMESTAMP
    retention_size: int = 0
    snapshot_retention: float = 86_400.0
    min_snapshots: int = 10
    max_snapshots: int = 1000
    log: LogKind = "sqlite"
    description: str = ""


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic as its creator described it: the user's columns only, without the system columns.

    Rows of a file are ordered by `ordering`, or along a Z-order curve through the columns of `clustering`.
    """

    name: str
    schema: Schema
    partitioning: tuple[Partition, ...] = ()
    options: TopicOptions = field(default_factory=TopicOptions)
    ordering: tuple[SortKey, ...] = ()
    clustering: tuple[str, ...] = ()


StreamFormat = Literal["json", "csv", "avro", "raw"]
"""What the messages of a connector hold."""

Connector = Literal["none", "kafka"]
"""Where the records of a stream come from, besides the topic's producers."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What `WITH (...)` sets on a stream, in base units; docs/reference/options.md explains each."""

    topic: str = ""
    format: StreamFormat = "json"
    timestamp_field: str = ""
    max_out_of_orderness: float = 0.0
    connector: Connector = "none"
    connection: str = ""
    kafka_topic: str = ""
    kafka_start: Literal["earliest", "latest"] = "earliest"
    kafka_options: Pairs = ()
    avro_schema: str = ""
    key_field: str = ""
    headers_field: str = ""
    record_time_field: str = ""
    partition_field: str = ""
    offset_field: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """A stream as its creator described it: a typed view of a topic with an event time.

    Without a schema it has all columns of the topic, which must exist. `partitioning` and `topic_options`, by name as
    WITH takes them, are for the topic that the stream makes if there is none.
    """

    name: str
    schema: Schema | None = None
    options: StreamOptions = field(default_factory=StreamOptions)
    partitioning: tuple[Partition, ...] = ()
    topic_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic that the stream is a view of."""
        return self.options.topic or self.name

    @property
    def event_time(self) -> str:
        """The column that tells when a record happened."""
        return self.options.timestamp_field or TIMESTAMP


RefreshMode = Literal["immediate", "periodic", "manual", "on_query", "continuous"]
"""When a view is refreshed."""

RefreshMethod = Literal["auto", "incremental", "full"]
"""How a view is refreshed; `auto` recomputes where nothing else applies or where it is cheaper."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What `WITH (...)` sets on a view, in base units; the option `refresh` sets `mode`, `method` or both."""

    mode: RefreshMode = "periodic"
    method: RefreshMethod = "auto"
    interval: float = 60.0
    max_staleness: float = 0.0
    compact: Literal["auto", "off"] = "auto"
    verify_every: int = 0
    verify_sample: int = 100
    compression: Codec = "zstd"
    compression_level: int | None = None
    target_file_size: int = 128 * 1024**2
    emit: Literal["changes", "close"] = "changes"
    into_topic: str = ""
    into_kafka: str = ""
    kafka_options: Pairs = ()
    late: Literal["drop", "keep", "correct"] = "drop"
    trigger: float = 0.0
    description: str = ""

    @property
    def refresh(self) -> tuple[RefreshMode, RefreshMethod]:
        """The value of the option `refresh`."""
        return self.mode, self.method


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """A materialized view as its creator described it; `query` is the text as it was written."""

    name: str
    query: str
    options: ViewOptions = field(default_factory=ViewOptions)
