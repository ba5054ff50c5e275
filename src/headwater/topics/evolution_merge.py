"""`evolution = 'merge'`: fields that records have and the topic has not become columns, before the records are stored.

A request adds what it needs in one ALTER, or is refused. Several producers may need the same: whoever comes second
finds the column there, and its values must fit it. Types of columns that exist are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyiceberg.types import IcebergType

from headwater.catalog.evolve_fields import children, paths
from headwater.catalog.topics import Topic
from headwater.errors import InvalidInput, InvalidName, RecordsRejected
from headwater.sql.alter_changes import AddColumn, Path, dotted
from headwater.storage.decode.infer import Unknown, find_unknown
from headwater.storage.decode.outcome import Unfit
from headwater.types import checked_name

MAX_NEW = 100
"""Columns that one request may add; those inside new ones count too."""
MAX_FIELDS = 1000
"""Fields that a topic may have in all for records to add more."""


def additions(topic: Topic, blocks: Iterable[Any], format: str) -> tuple[AddColumn, ...]:
    """The columns that the topic lacks for these records; RecordsRejected if some cannot become columns.

    Where unfit records become dead letters, only what can become columns is returned.
    """
    found = Unknown()
    for block in blocks:
        find_unknown(topic.columns, block, format, found)
    added = []
    for path, kind in found.kinds.items():
        try:
            of = kind.type()
            if of is not None:
                _check_names(path, of)
                added.append(AddColumn(path, of, if_not_exists=True))
        except (Unfit, InvalidName) as wrong:
            if topic.definition.options.on_invalid == "reject":
                raise _refused(topic, path, wrong) from None
    _check_limits(topic, added)
    return tuple(added)


def _check_names(path: Path, of: IcebergType) -> None:
    checked_name(path[-1], "column")
    for inside, field in paths(children(of)):
        if inside[-1] not in ("element", "key", "value"):
            checked_name(field.name, "column")


def _check_limits(topic: Topic, added: list[AddColumn]) -> None:
    new = sum(1 + len(list(paths(children(each.type)))) for each in added)
    total = len(topic.columns.field_ids) + new
    if added and (new > MAX_NEW or total > MAX_FIELDS):
        raise RecordsRejected(
            f'topic "{topic.name}" cannot take {new} new fields',
            detail=f"One request adds at most {MAX_NEW}, and records add some while there are at most {MAX_FIELDS} in "
            f"all; there would be {total}.",
            hint="Nothing was written. Use a MAP column for names that are data, or ALTER TOPIC to add columns.",
        )


def _refused(topic: Topic, path: Path, wrong: Unfit | InvalidName) -> RecordsRejected:
    reason = wrong.reason if isinstance(wrong, Unfit) else wrong.message
    hint = wrong.hint if isinstance(wrong, InvalidName) else "Add the column with the type that you want: ALTER TOPIC."
    return RecordsRejected(
        f'field "{dotted(path)[:128]}" cannot become a column of topic "{topic.name}"',
        detail=f"{reason[:1].upper()}{reason[1:]}. Nothing was written.",
        hint=hint,
    )


def not_added(topic: Topic, why: InvalidInput) -> RecordsRejected:
    """The error for records whose new fields the topic cannot have."""
    return RecordsRejected(
        f'topic "{topic.name}" cannot take the new fields of these records',
        detail=f"{why.message[:1].upper()}{why.message[1:]}. Nothing was written.",
        hint=why.hint,
    )
