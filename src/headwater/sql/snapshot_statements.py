"""The statements about snapshots: SHOW SNAPSHOTS, tags and branches, ROLLBACK, CHERRY PICK and DIFF."""

from __future__ import annotations

import re

from headwater.errors import InvalidInput, InvalidName, InvalidStatement, StatementNotAllowed
from headwater.sql.cursor import Cursor
from headwater.sql.moments import NEWEST, AsOf, checked_version, read_as_of, read_moment, read_range, read_timestamp
from headwater.sql.statements import (
    SHOWN_SNAPSHOTS,
    CherryPick,
    CreateRef,
    DiffTopic,
    DropRef,
    Query,
    RefKind,
    RollbackTopic,
    ShowRefs,
    ShowSnapshots,
)
from headwater.sql.units import parse_duration, shown
from headwater.types import RESERVED_REF, TOPICS, VIEWS, checked_name

MAX_SNAPSHOTS = 100_000
MAX_REF = 128

_REF = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z")
_CALLS = {"topic": "topic", "mv": "view"}


def checked_ref(kind: RefKind, name: str) -> str:
    """The name of a tag or branch that a user may make or drop; InvalidName otherwise."""
    if name.lower().startswith(RESERVED_REF):
        raise InvalidName(
            f'{kind} name "{shown(name)}" is reserved',
            detail="Materialized views keep the snapshots that they stand for by tags of such names.",
        )
    if name == "main":
        raise InvalidName(
            f'{kind} name "main" is reserved', detail="It is the branch that holds the topic as it is now."
        )
    if len(name) > MAX_REF or not _REF.match(name):
        raise InvalidName(
            f'{kind} name "{shown(name)}" is not allowed',
            detail=f"Names start with a letter, go on with letters, digits, dots, dashes and underscores, and have at "
            f"most {MAX_REF} characters.",
        )
    return name


def checked_retain(value: object) -> float | None:
    """Seconds for which a tag or branch is kept; None means for ever."""
    if value is None:
        return None
    seconds = parse_duration(value)
    if not 1 <= seconds <= 10**10:
        raise InvalidInput(f'RETAIN does not take "{shown(value)}"', detail="It takes a second at the least.")
    return seconds


def changes_query(topic: str, start: AsOf, end: AsOf, where: str | None = None, limit: int | None = None) -> Query:
    """The rows that came, went or changed between two states of a topic."""
    relation = f"topic('{checked_name(topic, 'topic')}') CHANGES BETWEEN {start} AND {end}"
    # On lines of its own: a comment in the condition ends with it.
    condition = f"\nWHERE (\n{where}\n)" if where and where.strip() else ""
    return Query(f"SELECT * FROM {relation}{condition}" + (f"\nLIMIT {limit}" if limit is not None else ""))  # noqa: S608


def past_query(topic: str, at: AsOf) -> Query:
    """A topic's rows at a past state."""
    clause = f"TIMESTAMP AS OF {str(at).removeprefix('TIMESTAMP ')}" if at.timestamp else f"VERSION AS OF {at}"
    return Query(f"SELECT * FROM topic('{checked_name(topic, 'topic')}') {clause}")  # noqa: S608


# -- SHOW -------------------------------------------------------------------------------------------------------------


def read_show_snapshots(cursor: Cursor) -> ShowSnapshots:
    """SHOW SNAPSHOTS OF name [LIMIT n]."""
    word = cursor.token.value.lower()
    kind = "any"
    if cursor.ahead(1).text == "(" and word in _CALLS:
        cursor.skip(2)
        place, kind = cursor.token, _CALLS[word]
        name = cursor.checked(cursor.string("a name"), "topic or view", place)
        cursor.expect_symbol(")", "the name")
    else:
        if cursor.ahead(1).text == "." and word in (TOPICS, VIEWS):
            kind = "topic" if word == TOPICS else "view"
            cursor.skip(2)
        name = cursor.name("topic or view")
    limit = _read_limit(cursor) if cursor.accept("LIMIT") else SHOWN_SNAPSHOTS
    cursor.expect_end(known=("LIMIT",))
    return ShowSnapshots(name, limit, kind)  # type: ignore[arg-type]


def read_show_tags(cursor: Cursor) -> ShowRefs:
    return _read_show_refs(cursor, "tag")


def read_show_branches(cursor: Cursor) -> ShowRefs:
    return _read_show_refs(cursor, "branch")


def _read_show_refs(cursor: Cursor, kind: RefKind) -> ShowRefs:
    topic = read_topic(cursor)
    cursor.expect_end()
    return ShowRefs(topic, kind)


def _read_limit(cursor: Cursor) -> int:
    place = cursor.token
    number = cursor.integer("a number behind LIMIT")
    if 1 <= number <= MAX_SNAPSHOTS:
        return number
    detail = f"It takes a whole number from 1 to {MAX_SNAPSHOTS}."
    raise cursor.located(InvalidStatement(f'LIMIT does not take "{number}"', detail=detail), place)


# -- tags and branches ------------------------------------------------------------------------------------------------


def read_create_tag(cursor: Cursor, *, or_replace: bool = False) -> CreateRef:
    """CREATE [OR REPLACE] TAG [IF NOT EXISTS] name ON topic [AS OF VERSION n | TIMESTAMP '...'] [RETAIN '...']."""
    return _read_create_ref(cursor, "tag", or_replace)


def read_create_branch(cursor: Cursor, *, or_replace: bool = False) -> CreateRef:
    """The same for a branch."""
    return _read_create_ref(cursor, "branch", or_replace)


def _read_create_ref(cursor: Cursor, kind: RefKind, or_replace: bool) -> CreateRef:
    place = cursor.token
    if_not_exists = cursor.at("IF", "NOT")
    if if_not_exists:
        cursor.expect("IF", "NOT", "EXISTS")
    if if_not_exists and or_replace:
        raise cursor.located(InvalidStatement("OR REPLACE and IF NOT EXISTS contradict each other"), place)
    name = _read_ref(cursor, kind)
    cursor.expect("ON")
    topic = read_topic(cursor)
    at = _read_state(cursor)
    place = cursor.token
    retain = None
    if cursor.accept("RETAIN"):
        place = cursor.token
        with cursor.locating(place):
            retain = checked_retain(cursor.string("a duration such as '30 days'"))
    cursor.expect_end(known=("AS", "RETAIN"))
    return CreateRef(kind, name, topic, at, retain, or_replace, if_not_exists)


def _read_state(cursor: Cursor) -> AsOf:
    """`AS OF VERSION n`, `AS OF TIMESTAMP '...'`, or the same in the order that queries have; nothing is the newest."""
    if (found := read_as_of(cursor)) is not None:
        return found
    if not cursor.accept("AS"):
        return NEWEST
    cursor.expect("OF")
    if not (cursor.at("VERSION") or cursor.at("TIMESTAMP") or cursor.at("TAG") or cursor.at("BRANCH")):
        raise cursor.unexpected("VERSION and an id, TIMESTAMP and a time, or TAG and a name")
    return read_moment(cursor, "AS OF")


def read_drop_tag(cursor: Cursor) -> DropRef:
    """DROP TAG [IF EXISTS] name ON topic."""
    return _read_drop_ref(cursor, "tag")


def read_drop_branch(cursor: Cursor) -> DropRef:
    """DROP BRANCH [IF EXISTS] name ON topic."""
    return _read_drop_ref(cursor, "branch")


def _read_drop_ref(cursor: Cursor, kind: RefKind) -> DropRef:
    if_exists = cursor.at("IF", "EXISTS")
    if if_exists:
        cursor.expect("IF", "EXISTS")
    name = _read_ref(cursor, kind)
    cursor.expect("ON")
    topic = read_topic(cursor)
    cursor.expect_end()
    return DropRef(kind, name, topic, if_exists)


def _read_ref(cursor: Cursor, kind: RefKind) -> str:
    """A name, bare or in quotes, which one with dots or dashes needs."""
    token = cursor.token
    if token.kind not in ("word", "quoted", "string"):
        raise cursor.unexpected(f"a {kind} name")
    cursor.advance()
    with cursor.locating(token):
        return checked_ref(kind, token.value)


# -- what changes a topic ---------------------------------------------------------------------------------------------


def read_rollback(cursor: Cursor) -> RollbackTopic:
    """ROLLBACK TOPIC name [FROM VERSION n] TO VERSION n | TIMESTAMP '...' | TAG 'name' [DRY RUN]."""
    topic = read_topic(cursor)
    base = None
    if cursor.accept("FROM"):
        cursor.expect("VERSION")
        base = _read_id(cursor)
    cursor.expect("TO")
    if cursor.accept("TIMESTAMP"):
        to = AsOf(timestamp=read_timestamp(cursor, "TO TIMESTAMP"))
    elif cursor.at("VERSION") or cursor.at("TAG") or cursor.at("BRANCH"):
        to = read_moment(cursor, "TO")
    else:
        raise cursor.unexpected("VERSION and an id, TIMESTAMP and a time, or TAG and a name")
    return RollbackTopic(topic, to, base, _read_dry_run(cursor))


def read_cherry_pick(cursor: Cursor) -> CherryPick:
    """CHERRY PICK VERSION n INTO topic [DRY RUN]."""
    version = _read_id(cursor)
    cursor.expect("INTO")
    topic = read_topic(cursor)
    return CherryPick(topic, version, _read_dry_run(cursor))


def read_diff(cursor: Cursor) -> DiffTopic:
    """DIFF TOPIC name BETWEEN a AND b."""
    topic = read_topic(cursor)
    cursor.expect("BETWEEN")
    start, end = read_range(cursor, "BETWEEN")
    cursor.expect_end()
    return DiffTopic(topic, start, end)


def read_topic(cursor: Cursor) -> str:
    """`orders`, `topics.orders` or `topic('orders')`; a view's snapshots follow those of the topics that it reads."""
    word, following = cursor.token.value.lower(), cursor.ahead(1).text
    if (word == VIEWS and following == ".") or (word == "mv" and following == "("):
        raise cursor.located(
            StatementNotAllowed("a materialized view follows the topics that it reads", hint="Name one of those.")
        )
    if word != "topic" or following != "(":
        return cursor.topic()
    cursor.skip(2)
    place = cursor.token
    name = cursor.string("a topic name")
    cursor.expect_symbol(")", "the topic name")
    return cursor.checked(name, "topic", place)


def _read_id(cursor: Cursor) -> int:
    token = cursor.token
    if token.kind != "number" or not (token.text.isascii() and token.text.isdigit()):
        raise cursor.unexpected("the id of a snapshot")
    with cursor.locating(token):
        return checked_version(cursor.advance().text)


def _read_dry_run(cursor: Cursor) -> bool:
    dry = cursor.accept("DRY")
    if dry:
        cursor.expect("RUN")
    cursor.expect_end(known=("DRY",))
    return dry
