"""Every option that a materialized view's `WITH (...)` takes, as one table, and what their values mean together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headwater.errors import InvalidOption
from headwater.sql.kafka_texts import CLIENT_SETTINGS, TARGET
from headwater.sql.option_table import Option, check_level, find_option
from headwater.sql.options import option
from headwater.types import ViewOptions

_YEAR = 365 * 86_400

_ROWS = (
    Option(
        "refresh",
        "refresh",
        "When the view is refreshed, and how: a mode, a method, or both. immediate: on every commit to its sources. "
        "periodic: every interval. manual: by REFRESH only. on_query: before a query, if it is staler than "
        "max_staleness. continuous: by a stream. incremental never recomputes and is an error where that cannot be; "
        "full always recomputes; auto chooses.",
    ),
    Option(
        "interval",
        "duration",
        "The time between two refreshes of a periodic view. Set alone, it makes the view periodic.",
        minimum=0.1,
        maximum=_YEAR,
    ),
    Option(
        "max_staleness",
        "duration",
        "How far behind its sources an on_query view may answer without being refreshed first.",
        maximum=_YEAR,
    ),
    Option(
        "compact",
        "choice",
        "Whether states that refreshes appended are folded in the background.",
        choices=("auto", "off"),
    ),
    Option(
        "verify_every",
        "integer",
        "After how many refreshes the view is compared with its query; 0 is never.",
        maximum=1_000_000,
    ),
    Option(
        "verify_sample",
        "integer",
        "How many groups of the view such a comparison takes.",
        minimum=1,
        maximum=1_000_000,
    ),
    replace(option("compression"), doc="The codec of the view's Parquet files."),
    option("compression_level"),
    option("target_file_size"),
    Option(
        "emit",
        "choice",
        "When a continuous view shows a window: changes as they come, or each window once, when it is closed. "
        "EMIT CHANGES and EMIT ON WINDOW CLOSE set the same.",
        choices=("changes", "close"),
    ),
    Option("into_topic", "topic", "The topic that takes the results of a continuous view. INTO TOPIC sets the same."),
    Option(
        "into_kafka",
        "text",
        "The Kafka topic that takes the results of a continuous view. INTO KAFKA sets the same.",
        pattern=TARGET,
        example="a connection and a Kafka topic: 'connection/topic'",
    ),
    Option(
        "kafka_options",
        "pairs",
        "Settings that tune the Kafka client that sends the results. Addresses, files and credentials are those of the "
        "connection.",
        pairs=CLIENT_SETTINGS,
    ),
    Option(
        "late",
        "choice",
        "What a continuous view does with rows that come behind the watermark, beside counting them: drop, keep them "
        "in <view>__late, or correct windows that are closed.",
        choices=("drop", "keep", "correct"),
    ),
    Option(
        "trigger",
        "duration",
        "The least time between two micro-batches of a continuous view.",
        maximum=86_400,
    ),
    Option("description", "text", "What the view is for. COMMENT sets the same."),
)
CONTINUOUS = ("emit", "into_topic", "into_kafka", "kafka_options", "late", "trigger")
"""Options of continuous views only."""

VIEW_OPTIONS: tuple[Option, ...] = tuple(replace(each, of=ViewOptions) for each in _ROWS)


def view_option(name: str) -> Option:
    """The option of a view of this name, or InvalidOption with a suggestion."""
    return find_option(name, VIEW_OPTIONS, "Materialized views")


def parse_view_options(values: Mapping[str, object]) -> ViewOptions:
    """View options from texts, numbers and lists by name; what is not named keeps its default."""
    return change_view_options(ViewOptions(), values)


def change_view_options(options: ViewOptions, values: Mapping[str, object]) -> ViewOptions:
    """The options with those changed that `values` names; of `refresh`, only the mode or the method that it names."""
    read: dict[str, Any] = {name: view_option(name).read(value) for name, value in values.items()}
    mode, method = read.pop("refresh", (None, None))
    if mode is None and "interval" in read:
        mode = "periodic"
    if "compression" in read:  # a level is one of its codec
        read.setdefault("compression_level", None)
    changed = replace(options, **read, mode=mode or options.mode, method=method or options.method)
    check_level(changed)
    _check_continuous(changed, values)
    return changed


def _check_continuous(options: ViewOptions, values: Mapping[str, object]) -> None:
    """Refuse what only a stream can do where none keeps the view, and two places for the results."""
    if options.into_topic and options.into_kafka:
        raise InvalidOption(
            'options "into_topic" and "into_kafka" contradict each other',
            detail="The results go to one place.",
            option="into_kafka" if "into_kafka" in values else "into_topic",
        )
    if options.kafka_options and not options.into_kafka:
        raise InvalidOption(
            'option "kafka_options" has no effect without "into_kafka"',
            detail="It sets up the client that sends the results to Kafka.",
            hint="Add INTO KAFKA 'connection/topic', or leave the option out.",
            option="kafka_options" if "kafka_options" in values else "into_kafka",
        )
    used = [name for name in CONTINUOUS if getattr(options, name) != view_option(name).default]
    if options.mode == "continuous" or not used:
        return
    name = next((each for each in used if each in values), used[0])
    raise only_continuous(f'option "{name}"', options, name if name in values else "refresh")


def only_continuous(what: str, options: ViewOptions, option: str) -> InvalidOption:
    """The error for what a view has that is not continuous."""
    hint = "Add refresh = 'continuous' to WITH (...), or leave it out."
    detail = f"The view is refreshed in the mode '{options.mode}'; windows close and results go on in a stream only."
    return InvalidOption(f"{what} is for continuous views", detail=detail, hint=hint, option=option)


def check_view_options(options: ViewOptions) -> ViewOptions:
    """The same options if each has a value that it takes; the way in for options built in Python."""
    return parse_view_options({each.name: getattr(options, each.name) for each in VIEW_OPTIONS})


def render_view_options(options: ViewOptions, *, changed_only: bool = False) -> dict[str, str]:
    """Options as texts by name, which `parse_view_options` reads back to equal options; optionally the non-defaults."""
    values = ((each, getattr(options, each.name)) for each in VIEW_OPTIONS)
    return {each.name: each.render(value) for each, value in values if not changed_only or value != each.default}


def view_notices(options: ViewOptions) -> tuple[str, ...]:
    """What the creator of a view must know although its options are taken, as whole sentences."""
    return tuple(_notices(options))


def _notices(options: ViewOptions) -> Iterator[str]:
    default = ViewOptions()
    if options.mode != "periodic" and options.interval != default.interval:
        yield f"interval has no effect with refresh = '{options.mode}'."
    if options.mode != "on_query" and options.max_staleness != default.max_staleness:
        yield f"max_staleness has no effect with refresh = '{options.mode}'."
    if not options.verify_every and options.verify_sample != default.verify_sample:
        yield "verify_sample has no effect without verify_every."
