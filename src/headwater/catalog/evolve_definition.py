"""Columns that a topic's definition names, in its options, partitioning and ordering: what uses one, and renames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from headwater.types import TopicDefinition, TopicOptions

_PAIRS = ("compression_columns", "dictionary_columns", "encoding_columns", "bloom_columns")


def followed(definition: TopicDefinition, old: str, new: str) -> TopicDefinition:
    """The definition with a column, or a field inside one, under its new name."""

    def name(path: str) -> str:
        return new + path[len(old) :] if path == old or path.startswith(f"{old}.") else path

    options = definition.options
    pairs: dict[str, Any] = {each: tuple((name(c), value) for c, value in getattr(options, each)) for each in _PAIRS}
    return replace(
        definition,
        partitioning=tuple(replace(part, column=name(part.column)) for part in definition.partitioning),
        ordering=tuple(replace(key, column=name(key.column)) for key in definition.ordering),
        clustering=tuple(map(name, definition.clustering)),
        options=replace(
            options,
            dedup_key=tuple(map(name, options.dedup_key)),
            retention_column=name(options.retention_column),
            **pairs,
        ),
    )


def users(definition: TopicDefinition, path: str) -> Iterator[str]:
    """What names the column, or a field inside it."""
    options: TopicOptions = definition.options
    named: dict[str, Iterable[str]] = {
        "the partitioning": (part.column for part in definition.partitioning),
        "the ordering": (key.column for key in definition.ordering),
        "the Z-order": definition.clustering,
        "option dedup_key": options.dedup_key,
        "option retention_column": (options.retention_column,),
        **{f"option {each}": (column for column, _ in getattr(options, each)) for each in _PAIRS},
    }
    for user, columns in named.items():
        if any(column == path or column.startswith(f"{path}.") for column in columns):
            yield user
