"""The statements about the care of tables: OPTIMIZE, MAINTAIN and SHOW MAINTENANCE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from headwater.errors import HeadwaterError, InvalidStatement
from headwater.sql.cursor import Cursor, closest
from headwater.sql.statements import SHOWN_STEPS, Maintain, MaintenanceStep, Optimize, ShowMaintenance

STEPS: tuple[MaintenanceStep, ...] = get_args(MaintenanceStep)
"""In the order in which they are run."""
MAX_STEPS = 10_000


def read_optimize(cursor: Cursor) -> Optimize:
    """OPTIMIZE [TOPIC] name [FULL] [DRY RUN]."""
    if cursor.ahead(1).kind != "end":
        cursor.accept("TOPIC")
    topic = cursor.topic()
    full = cursor.accept("FULL")
    dry_run = _read_dry_run(cursor)
    cursor.expect_end(known=("FULL", "DRY"))
    return Optimize(topic, full, dry_run)


def read_maintain(cursor: Cursor) -> Maintain:
    """MAINTAIN [[TOPIC] name | MATERIALIZED VIEW name] [ONLY step, ...] [DRY RUN]."""
    name = None
    if cursor.accept("MATERIALIZED", "VIEW"):
        name = cursor.view()
    elif cursor.accept("TOPIC") or not (_at_end(cursor) or cursor.at("ONLY")):
        name = cursor.topic()
    only = _read_steps(cursor) if cursor.accept("ONLY") else ()
    dry_run = _read_dry_run(cursor)
    cursor.expect_end(known=("ONLY", "DRY"))
    return Maintain(name, only, dry_run)


def read_show_maintenance(cursor: Cursor) -> ShowMaintenance:
    """SHOW MAINTENANCE [OF [TOPIC | MATERIALIZED VIEW] name] [LIMIT n]."""
    name = None
    if cursor.accept("OF"):
        cursor.accept("MATERIALIZED", "VIEW")
        if cursor.ahead(1).kind == "word" and cursor.ahead(1).keyword != "LIMIT":
            cursor.accept("TOPIC")
        name = cursor.topic()
    limit = _read_limit(cursor) if cursor.accept("LIMIT") else SHOWN_STEPS
    cursor.expect_end(known=("OF", "LIMIT"))
    return ShowMaintenance(name, limit)


def checked_steps(names: Sequence[str]) -> tuple[MaintenanceStep, ...]:
    """Steps by their names, in the order in which they are run; InvalidStatement for others."""
    for name in names:
        if name not in STEPS:
            raise _unknown(name)
    return tuple(step for step in STEPS if step in names)


def _read_dry_run(cursor: Cursor) -> bool:
    if not cursor.accept("DRY"):
        return False
    cursor.expect("RUN")
    return True


def _at_end(cursor: Cursor) -> bool:
    return cursor.token.kind == "end" or cursor.at("DRY", "RUN")


def _read_steps(cursor: Cursor) -> tuple[MaintenanceStep, ...]:
    names = []
    while True:
        token = cursor.token
        if token.kind != "word":
            raise cursor.unexpected("the name of a step", known=STEPS)
        name = cursor.advance().text.lower()
        if name not in STEPS:
            raise cursor.located(_unknown(name), token)
        names.append(name)
        if not cursor.accept_symbol(","):
            return checked_steps(names)


def _unknown(name: str) -> HeadwaterError:
    near = closest(name, STEPS)
    return InvalidStatement(
        f'maintenance has no step "{name}"',
        detail=f"The steps are {', '.join(STEPS)}.",
        hint=f"Did you mean {near}?" if near else None,
    )


def _read_limit(cursor: Cursor) -> int:
    place = cursor.token
    number = cursor.integer("a number behind LIMIT")
    if 1 <= number <= MAX_STEPS:
        return number
    detail = f"It takes a whole number from 1 to {MAX_STEPS}."
    raise cursor.located(InvalidStatement(f'LIMIT does not take "{number}"', detail=detail), place)
