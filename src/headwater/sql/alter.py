"""ALTER TOPIC behind its first two words: changes separated by commas, made together or not at all.

Whether the topic has the columns is checked by whoever plans the change (`catalog/evolve.py`), not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.types import NestedField

from headwater.errors import HeadwaterError, InvalidSchema
from headwater.sql.alter_changes import (
    AddColumn,
    ChangeType,
    DropColumn,
    MoveColumn,
    Origin,
    Path,
    Place,
    RenameColumn,
    ReorderColumns,
    SetComment,
    SetNullable,
    SetOptions,
    SetOrdering,
    SetPartitioning,
    TopicChange,
)
from headwater.sql.cursor import Cursor
from headwater.sql.option_clause import OptionClause
from headwater.sql.options import option
from headwater.sql.ordering import read_clustering, read_ordering
from headwater.sql.partitioning import read_partitioning
from headwater.sql.schema_rules import checked_schema
from headwater.sql.schema_text import UNASSIGNED, read_type
from headwater.sql.statements import AlterTopic, ShowSchemas
from headwater.sql.tokens import Token
from headwater.types import SYSTEM_COLUMNS, checked_name

CONTEXT = "ALTER TOPIC"
_CHANGES = ("ADD", "RENAME", "ALTER", "DROP", "REORDER", "SET")
_OF_COLUMN = "TYPE, SET NOT NULL, DROP NOT NULL, COMMENT, FIRST, AFTER or BEFORE"
_AFTER_SET = 'PARTITIONED BY, UNPARTITIONED, ORDERED BY, CLUSTERED BY, UNORDERED or "(" and options'
_NULLABLE = "Rows that are there have no value for it, and topics have no default values."


def read_alter(cursor: Cursor) -> AlterTopic:
    """ALTER TOPIC name change, change, ... [DRY RUN]."""
    cursor.context = CONTEXT
    name = cursor.topic()
    changes, origins = _read_all(cursor)
    dry_run = cursor.accept("DRY")
    if dry_run:
        cursor.expect("RUN")
    elif cursor.token.kind != "end":
        raise cursor.unexpected('"," and another change, DRY RUN, or the end', known=("DRY RUN",))
    cursor.expect_end()
    return AlterTopic(name, changes, dry_run, origins)


def alter_of(name: str, texts: Iterable[str], *, dry_run: bool = False) -> AlterTopic:
    """The statement that makes the changes of these texts, each of which holds one or several."""
    found: list[TopicChange] = []
    origins: list[Origin] = []
    for text in texts:
        # Each by itself: a comment in one must not swallow the next.
        cursor = Cursor(text, context=CONTEXT)
        changes, places = _read_all(cursor)
        cursor.expect_end()
        found += changes
        origins += places
    if not found:
        raise Cursor("", context=CONTEXT).unexpected(_one_of(_CHANGES))
    return AlterTopic(checked_name(name, "topic"), tuple(found), dry_run, tuple(origins))


def read_show_schemas(cursor: Cursor) -> ShowSchemas:
    """SHOW SCHEMAS OF [TOPIC] name."""
    if cursor.ahead(1).kind != "end":
        cursor.accept("TOPIC")
    name = cursor.topic()
    cursor.expect_end()
    return ShowSchemas(name)


def _read_all(cursor: Cursor) -> tuple[tuple[TopicChange, ...], tuple[Origin, ...]]:
    changes: list[TopicChange] = []
    origins: list[Origin] = []
    while True:
        start, first = cursor.token.start, cursor.place
        for change in _read_change(cursor):
            changes.append(change)
            origins.append(Origin(cursor.text, start, cursor.tokens[max(first, cursor.place - 1)].end))
        if not cursor.accept_symbol(","):
            return tuple(changes), tuple(origins)


def _read_change(cursor: Cursor) -> Iterator[TopicChange]:
    match cursor.token.keyword:
        case "ADD":
            cursor.advance()
            yield from _read_add(cursor)
        case "RENAME":
            cursor.expect("RENAME", "COLUMN")
            path = _read_path(cursor)
            cursor.expect("TO")
            yield RenameColumn(path, cursor.name("column"))
        case "ALTER":
            cursor.expect("ALTER", "COLUMN")
            yield _read_of_column(cursor, _read_path(cursor))
        case "DROP":
            cursor.expect("DROP", "COLUMN")
            if_exists = cursor.at("IF", "EXISTS")
            if if_exists:
                cursor.expect("IF", "EXISTS")
            yield DropColumn(_read_path(cursor), if_exists)
        case "REORDER":
            cursor.expect("REORDER", "COLUMNS")
            yield ReorderColumns(_read_names(cursor))
        case "SET":
            cursor.advance()
            yield _read_set(cursor)
        case word:
            hint = f"Write SET {word} BY (...)." if word in ("PARTITIONED", "ORDERED", "CLUSTERED") else None
            raise cursor.unexpected(_one_of(_CHANGES), hint=hint, known=_CHANGES)


def _read_add(cursor: Cursor) -> Iterator[AddColumn]:
    if not cursor.accept("COLUMNS"):
        cursor.expect("COLUMN")
        if_not_exists = cursor.at("IF", "NOT", "EXISTS")
        if if_not_exists:
            cursor.expect("IF", "NOT", "EXISTS")
        yield _read_added(cursor, if_not_exists=if_not_exists)
        return
    cursor.expect_symbol("(", "ADD COLUMNS")
    while True:
        yield _read_added(cursor, if_not_exists=False)
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")", "the columns")


def _read_added(cursor: Cursor, *, if_not_exists: bool) -> AddColumn:
    start = cursor.token
    path = _read_path(cursor)
    of = read_type(cursor)
    comment: str | None = None
    place: Place | None = None
    while True:
        if cursor.at("NOT"):
            raise cursor.located(
                InvalidSchema(
                    f'column "{".".join(path)}" cannot be added as NOT NULL',
                    detail=_NULLABLE,
                    hint="Add it, fill it with UPDATE, then use ALTER COLUMN ... SET NOT NULL.",
                )
            )
        if comment is None and cursor.accept("COMMENT"):
            comment = cursor.string("a comment")
        elif place is None and (found := _read_place(cursor)) is not None:
            place = found
        elif cursor.at("DEFAULT"):
            raise cursor.unexpected("COMMENT or a place", hint="Topics have no default values.")
        elif not cursor.accept("NULL"):
            break
    with cursor.locating(start):  # what CREATE refuses
        checked_schema([NestedField(UNASSIGNED, path[-1], of, required=False, doc=comment)])
    return AddColumn(path, of, comment, place, if_not_exists)


def _read_place(cursor: Cursor) -> Place | None:
    if cursor.accept("FIRST"):
        return Place("first")
    if cursor.accept("AFTER"):
        return Place("after", _read_step(cursor))
    return Place("before", _read_step(cursor)) if cursor.accept("BEFORE") else None


def _read_of_column(cursor: Cursor, path: Path) -> TopicChange:
    if cursor.accept("TYPE"):
        return ChangeType(path, read_type(cursor))
    if cursor.accept("COMMENT"):
        return SetComment(path, cursor.string("a comment"))
    if (place := _read_place(cursor)) is not None:
        return MoveColumn(path, place)
    nullable = cursor.at("DROP")
    if not nullable and not cursor.at("SET"):
        raise cursor.unexpected(_OF_COLUMN, known=("TYPE", "SET", "DROP", "COMMENT", "FIRST", "AFTER", "BEFORE"))
    cursor.advance()
    if cursor.at("DATA"):
        raise cursor.unexpected("NOT NULL", hint="Write ALTER COLUMN name TYPE BIGINT.")
    cursor.expect("NOT", "NULL")
    return SetNullable(path, nullable)


def _read_set(cursor: Cursor) -> TopicChange:
    if cursor.at_symbol("("):
        return SetOptions(_read_options(cursor))
    for word, none in (("UNPARTITIONED", SetPartitioning(())), ("UNORDERED", SetOrdering())):
        if cursor.accept(word):
            return none
    if cursor.accept("PARTITIONED"):
        _open(cursor, "PARTITIONED BY")
        parts = read_partitioning(cursor)
        cursor.expect_symbol(")", "the partition fields")
        return SetPartitioning(parts)
    if cursor.accept("ORDERED"):
        _open(cursor, "ORDERED BY")
        keys = read_ordering(cursor)
        cursor.expect_symbol(")", "the columns")
        return SetOrdering(keys)
    if cursor.accept("CLUSTERED"):
        cursor.expect("BY", "ZORDER")
        cursor.expect_symbol("(", "CLUSTERED BY ZORDER")
        columns = read_clustering(cursor)
        cursor.expect_symbol(")", "the columns")
        return SetOrdering(zorder=columns)
    raise cursor.unexpected(_AFTER_SET, known=("PARTITIONED", "UNPARTITIONED", "ORDERED", "CLUSTERED", "UNORDERED"))


def _open(cursor: Cursor, words: str) -> None:
    cursor.expect("BY")
    cursor.expect_symbol("(", words)


def _read_options(cursor: Cursor) -> dict[str, str]:
    clause = OptionClause(option)
    clause.read(cursor, "SET")
    if not clause.values:
        raise cursor.unexpected("at least one option in SET (...)")
    return {name: option(name).render(option(name).read(value)) for name, value in clause.values.items()}


def _read_names(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect_symbol("(", "REORDER COLUMNS")
    names = [_read_step(cursor)]
    while cursor.accept_symbol(","):
        token = cursor.token
        name = _read_step(cursor)
        if name in names:
            raise cursor.located(InvalidSchema(f'column "{name}" is named twice'), token)
        names.append(name)
    cursor.expect_symbol(")", "the columns")
    return tuple(names)


def _read_path(cursor: Cursor) -> Path:
    """A column's name, and those of fields inside it, with dots between them."""
    path = [_read_step(cursor)]
    while cursor.accept_symbol("."):
        path.append(_read_step(cursor))
    return tuple(path)


def _read_step(cursor: Cursor) -> str:
    if cursor.token.value in SYSTEM_COLUMNS and cursor.token.kind in ("word", "quoted"):
        raise _system(cursor, cursor.token)
    return cursor.name("column")


def _system(cursor: Cursor, token: Token) -> HeadwaterError:
    return cursor.located(
        InvalidSchema(
            f'system column "{token.value}" cannot be altered',
            detail="It says where and when a record was acknowledged, and stays behind the topic's own columns.",
        ),
        token,
    )


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
