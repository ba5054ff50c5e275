"""ALTER TOPIC from text to values and back; the golden file has the refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import DecimalType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from headwater.errors import HeadwaterError, InvalidName, InvalidStatement
from headwater.sql.alter import alter_of
from headwater.sql.alter_changes import (
    AddColumn,
    ChangeType,
    DropColumn,
    MoveColumn,
    Place,
    RenameColumn,
    ReorderColumns,
    SetComment,
    SetNullable,
    SetOptions,
    SetOrdering,
    SetPartitioning,
)
from headwater.sql.parse import parse
from headwater.sql.statements import AlterTopic
from headwater.types import Partition, SortKey

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(
    [
        "add",
        "column",
        "columns",
        "to",
        "type",
        "set",
        "drop",
        "first",
        "after",
        "comment",
        "not",
        "null",
        "if",
        "dry",
        "run",
    ]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
TEXTS: st.SearchStrategy[str] = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
TYPES = st.sampled_from(
    (
        IntegerType(),
        DecimalType(10, 2),
        ListType(0, StringType(), element_required=True),
        MapType(0, StringType(), 0, LongType(), value_required=False),
        StructType(NestedField(0, "a", IntegerType(), required=True, doc="it's"), NestedField(0, "b", StringType())),
    )
)
PLACES = st.just(Place("first")) | st.builds(Place, st.sampled_from(("after", "before")), NAMES)
OPTIONS = st.dictionaries(
    st.sampled_from(["description", "retention", "batch_size", "dedup_key", "compression_level"]), st.none(), min_size=1
).map(
    lambda chosen: {
        name: {
            "description": "it's; DROP",
            "retention": "7 days",
            "batch_size": "5",
            "dedup_key": "a, b",
            "compression_level": "default",
        }[name]
        for name in chosen
    }
)
CHANGES = st.one_of(
    st.builds(AddColumn, PATHS, TYPES, st.none() | TEXTS, st.none() | PLACES, st.booleans()),
    st.builds(RenameColumn, PATHS, NAMES),
    st.builds(DropColumn, PATHS, st.booleans()),
    st.builds(ChangeType, PATHS, TYPES),
    st.builds(SetNullable, PATHS, st.booleans()),
    st.builds(SetComment, PATHS, TEXTS),
    st.builds(MoveColumn, PATHS, PLACES),
    st.builds(ReorderColumns, st.lists(NAMES, min_size=1, max_size=4, unique=True).map(tuple)),
    st.builds(SetOptions, OPTIONS),
    st.builds(
        SetPartitioning, st.lists(st.builds(Partition, st.just("bucket"), NAMES, st.just(8)), max_size=2).map(tuple)
    ),
    st.builds(SetOrdering, st.lists(st.builds(SortKey, NAMES, st.booleans(), st.booleans()), max_size=2).map(tuple)),
    st.builds(SetOrdering, st.just(()), st.lists(NAMES, max_size=3).map(tuple)),
)


@given(st.lists(CHANGES, min_size=1, max_size=4).map(tuple), st.booleans())
def test_changes_are_text_that_parses_back(changes: tuple[object, ...], dry_run: bool) -> None:
    text = ", ".join(map(str, changes))
    statement = AlterTopic("t", changes, dry_run)  # type: ignore[arg-type]
    assert parse(f"ALTER TOPIC t {text}{' DRY RUN' if dry_run else ''}") == statement
    assert alter_of("t", [text], dry_run=dry_run) == statement
    assert alter_of("t", map(str, changes), dry_run=dry_run) == statement


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    for prefix in ("", "ADD COLUMN ", "ALTER COLUMN a ", "SET ", "SET ("):
        try:
            alter_of("t", [prefix + text])
        except HeadwaterError:
            continue


def test_a_comment_in_one_text_does_not_swallow_the_next() -> None:
    found = alter_of("t", ["DROP COLUMN a -- it is not needed", "DROP COLUMN b"])
    assert found.changes == (DropColumn(("a",)), DropColumn(("b",)))
    assert [origin.text[origin.start : origin.end] for origin in found.origins] == ["DROP COLUMN a", "DROP COLUMN b"]


@pytest.mark.parametrize(
    "texts", [[], [""], ["DROP COLUMN a", ""], ["DROP COLUMN a; DROP TOPIC t"], ["DROP COLUMN a,"]]
)
def test_nothing_and_more_than_changes_are_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidStatement):
        alter_of("t", texts)


def test_the_topics_name_is_checked() -> None:
    with pytest.raises(InvalidName):
        alter_of("t ADD", ["DROP COLUMN a"])
