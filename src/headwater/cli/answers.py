"""What several groups of commands say and ask in the same way."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from headwater.cli.screen import Screen
from headwater.cli.session import Session

if TYPE_CHECKING:
    from headwater.serving.result import Result


def say_done(session: Session, result: Result) -> None:
    """Print what a statement that gives no rows of its own answered."""
    status = str(result.rows()[0]["status"])
    if session.screen.json:
        document = {"status": status, "notices": list(result.notices)}
        session.screen.write(json.dumps(document, ensure_ascii=False) + "\n")
        return
    for notice in result.notices:
        session.screen.note(f"note: {notice}")
    if not session.screen.quiet:
        session.screen.write(status + "\n")


def option_pairs(options: list[str], flag: str) -> dict[str, object]:
    """KEY=VALUE words by key."""
    pairs: dict[str, object] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{flag} takes KEY=VALUE, not {option!r}.")
        pairs[key.strip()] = value.strip()
    return pairs


def confirm_drop(screen: Screen, kind: str, name: str, loss: str) -> None:
    """Ask before something is dropped; without a person, --yes is needed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(f'dropping "{name}" deletes its {loss}: add --yes, as nobody can be asked here.')
    if not typer.confirm(f'Drop {kind} "{name}" and all of its {loss}?', err=True):
        screen.note("nothing was dropped")
        raise typer.Exit(1)
