"""The shapes of answers about a topic's files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.models import Answer
from headwater.sql.parquet_statements import MAX_SAMPLE, MIN_SAMPLE
from headwater.sql.statements import SAMPLED_ROWS


class ParquetColumnStats(Answer):
    column: str = Field(description="The column's name now, or in files if the topic has it no more.")
    type: str = Field(description="The type in SQL; dropped if the topic has the column no more.")
    field_id: int | None
    files: int = Field(description="Files that have the column.")
    values: int
    nulls: int | None
    compressed: int = Field(description="Bytes.")
    uncompressed: int = Field(description="Bytes after encoding, before compression.")
    ratio: float | None = Field(description="Uncompressed by compressed.")
    share: float = Field(description="Of the compressed bytes of all columns.")
    codecs: list[str]
    encodings: list[str] = Field(description="Of data pages.")
    data_pages: int
    dictionary_pages: int
    min: str | None = Field(description="The smallest bound in the table's metadata; a text may be cut short.")
    max: str | None = Field(description="The largest bound.")
    bloom_files: int = Field(description="Files with bloom filters for the column.")
    bloom_bytes: int
    page_index_files: int
    distinct: int | None = Field(description="About how many different values; null if not asked, or nested.")
    distinct_rows: int | None = Field(description="Rows that were looked at for that.")


class ParquetStats(Answer):
    """What the files of a topic's current snapshot are made of."""

    topic: str
    snapshot: str | None
    files: int
    rows: int
    bytes: int
    row_groups: int
    small_files: int = Field(description="Files below three quarters of target_file_size.")
    target_file_size: int
    partitions: int
    ordered_rows: int = Field(description="Rows in files that are in the topic's sort order.")
    clustered_rows: int = Field(description="Rows in files that were sorted across each other.")
    page_index_files: int
    checksum_files: int = Field(description="Files whose pages have checksums.")
    sealed_files: int = Field(description="Files that carry checksums of everything.")
    codecs: list[str]
    writers: list[str]
    columns: list[ParquetColumnStats]


class ParquetSchemaColumn(Answer):
    column: str
    path: str = Field(description="The path in the file.")
    field_id: int | None
    physical: str = Field(examples=["INT64", "BYTE_ARRAY"])
    logical: str = Field(examples=["TIMESTAMP(MICROS, UTC)", "STRING"])
    repetition: Literal["required", "optional", "repeated"]
    files: int = Field(description="Files in which it is just this.")
    others: list[str] = Field(description="What it is in other files.", examples=[["missing in 2"]])


class ParquetSchema(Answer):
    """The Parquet schema of the newest file, and how others differ."""

    topic: str
    file: str | None
    files: int
    columns: list[ParquetSchemaColumn]


class Advice(Answer):
    kind: Literal["encoding", "compression", "bloom_filter", "partitioning", "ordering", "row_groups"]
    columns: list[str]
    current: str
    proposed: str
    bytes_before: int | None = Field(description="Of the sample.")
    bytes_after: int | None
    write_seconds_before: float | None = Field(description="Of a processor.")
    write_seconds_after: float | None
    read_seconds_before: float | None
    read_seconds_after: float | None
    read_before: float | None = Field(description="The share of rows that the recorded queries read.")
    read_after: float | None
    confidence: Literal["high", "medium", "low"]
    why: str
    statement: str


class Recommendations(Answer):
    """What would be better, tried on a sample; no recommendations mean that nothing is worth a change."""

    topic: str
    sample_rows: int
    queries: int = Field(description="Recorded queries that were considered.")
    recommendations: list[Advice]
    statement: str | None = Field(description="The one statement that makes all of these changes.")
    applied: bool
    notices: list[str]


class ApplyBody(BaseModel):
    """How to look for recommendations that are then applied."""

    model_config = ConfigDict(extra="forbid")

    sample_rows: int = Field(SAMPLED_ROWS, ge=MIN_SAMPLE, le=MAX_SAMPLE, description="Rows to try them on.")
