"""Every option that a topic's `WITH (...)` takes, as one table: what parses, is checked, rendered and documented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

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
    return options


def check_options(options: TopicOptions) -> TopicOptions:
    """The same options if each has a value that it takes; the way in for options built in Python."""
    return parse_options({each.name: getattr(options, each.name) for each in fields(options)})


def render_options(options: TopicOptions, *, changed_only: bool = False) -> dict[str, str]:
    """Options as texts by name, which `parse_options` reads back to equal options; optionally only the non-defaults."""
    values = ((each, getattr(options, each.name)) for each in OPTIONS)
    return {each.name: each.render(value) for each, value in values if not changed_only or value != each.default}
