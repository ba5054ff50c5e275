"""Every option that a topic's `WITH (...)` takes, as one table: what parses, is checked, rendered and documented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headwater.errors import InvalidOption
from headwater.sql.option_pairs import (
    BLOOM_BY_COLUMN,
    CODEC_BY_COLUMN,
    CODEC_BY_KIND,
    ENCODING_BY_COLUMN,
    SWITCH_BY_COLUMN,
)
from headwater.sql.option_table import Option, check_level, find_option
from headwater.types import TopicOptions

OPTIONS: tuple[Option, ...] = (
    Option(
        "compression",
        "choice",
        "The codec of the topic's Parquet files.",
        choices=("none", "snappy", "gzip", "lz4", "zstd", "brotli"),
    ),
    Option("compression_level", "level", "How hard the codec tries; the codec's own default if it is not set."),
    Option(
        "compression_kinds", "pairs", "Codecs of columns by their kind, instead of compression.", pairs=CODEC_BY_KIND
    ),
    Option(
        "compression_columns",
        "pairs",
        "Codecs of single columns, instead of those of their kind.",
        pairs=CODEC_BY_COLUMN,
    ),
    Option(
        "dictionary",
        "choice",
        "Whether columns are stored with a dictionary of their values: auto where values repeat.",
        choices=("auto", "on", "off"),
    ),
    Option("dictionary_columns", "pairs", "The same for single columns.", pairs=SWITCH_BY_COLUMN),
    Option(
        "encoding_columns",
        "pairs",
        "How columns without a dictionary are encoded; otherwise by a sample of their values.",
        pairs=ENCODING_BY_COLUMN,
    ),
    Option(
        "bloom_columns",
        "pairs",
        "Columns whose files tell which values they do not hold, for lookups by equality.",
        pairs=BLOOM_BY_COLUMN,
    ),
    Option("page_index", "choice", "Whether files have statistics of every page.", choices=("on", "off")),
    Option(
        "page_size",
        "size",
        "About how large a page of a column is before compression.",
        minimum=4096,
        maximum=64 * 1024**2,
    ),
    Option("row_group_rows", "integer", "Rows of a row group at the most.", minimum=1000, maximum=16 * 1024**2),
    Option(
        "target_file_size",
        "size",
        "The size at which a data file is finished. MB and MiB both mean 1024² bytes.",
        minimum=1024**2,
        maximum=50 * 1024**3,
    ),
    Option(
        "rotation_timeout",
        "duration",
        "The longest a record waits in the log before it is committed to a file, however few wait with it.",
        minimum=0.1,
        maximum=30 * 86_400,
    ),
    Option(
        "batch_size",
        "integer",
        "The rows that must wait in the log for a commit to be worth it, unless rotation_timeout passes first.",
        minimum=1,
        maximum=10_000_000,
    ),
    Option(
        "commit_interval",
        "duration",
        "The least time between two commits to the table.",
        minimum=0.01,
        maximum=86_400,
    ),
    Option(
        "on_invalid",
        "choice",
        "What happens to rows that do not fit the schema: the request is rejected, or they go to <topic>__dead.",
        choices=("reject", "dead_letter"),
    ),
    Option("dedup_key", "columns", "The columns by which repeated records are dropped; the first one is kept."),
    Option(
        "dedup_horizon",
        "duration",
        "How long a deduplication key is remembered.",
        minimum=0.001,
        maximum=365 * 86_400,
    ),
    Option(
        "evolution",
        "choice",
        "What happens to fields of records that are no columns: strict refuses them, merge adds columns.",
        choices=("strict", "merge"),
    ),
    Option("compaction", "choice", "Whether the service packs and sorts files by itself.", choices=("auto", "off")),
    Option(
        "compact_after",
        "duration",
        "How long a partition has no new files before it is cold, and sorted once and for all.",
        minimum=1,
        maximum=365 * 86_400,
    ),
    Option(
        "retention",
        "duration",
        "How long records are kept, by retention_column; 0 keeps them for ever.",
        maximum=100 * 365 * 86_400,
    ),
    Option("retention_column", "column", "The time or date by which retention counts a record's age."),
    Option(
        "retention_size",
        "size",
        "The size of the topic's files above which the oldest go; 0 keeps them all.",
        maximum=1024**5,
    ),
    Option(
        "snapshot_retention",
        "duration",
        "How long a past state can be read, unless a tag keeps it longer.",
        minimum=60,
        maximum=100 * 365 * 86_400,
    ),
    Option("min_snapshots", "integer", "Past states that are kept however old they are.", minimum=1, maximum=10_000),
    Option(
        "max_snapshots",
        "integer",
        "Past states that are kept at the most, however young they are.",
        minimum=1,
        maximum=100_000,
    ),
    Option(
        "log",
        "choice",
        "What keeps records from their acknowledgement until they are in the table; it cannot be changed later.",
        choices=("sqlite", "kafka"),
    ),
    Option("description", "text", "What the topic is for. COMMENT sets the same."),
)


def option(name: str) -> Option:
    """The option of a topic of this name, or InvalidOption with a suggestion."""
    return find_option(name, OPTIONS, "Topics")


def parse_options(values: Mapping[str, object]) -> TopicOptions:
    """Topic options from texts, numbers and lists by name; what is not named keeps its default."""
    read: dict[str, Any] = {name: option(name).read(value) for name, value in values.items()}
    options = TopicOptions(**read)
    check_level(options)
    if options.min_snapshots > options.max_snapshots:
        raise InvalidOption(
            f'option "min_snapshots" does not take "{options.min_snapshots}"',
            detail=f"It is more than max_snapshots, which is {options.max_snapshots}.",
            option="min_snapshots" if "min_snapshots" in values else "max_snapshots",
        )
    return options


def check_options(options: TopicOptions) -> TopicOptions:
    """The same options if each has a value that it takes; the way in for options built in Python."""
    return parse_options({each.name: getattr(options, each.name) for each in fields(options)})


def render_options(options: TopicOptions, *, changed_only: bool = False) -> dict[str, str]:
    """Options as texts by name, which `parse_options` reads back to equal options; optionally only the non-defaults."""
    values = ((each, getattr(options, each.name)) for each in OPTIONS)
    return {each.name: each.render(value) for each, value in values if not changed_only or value != each.default}
