"""`headwater maintain`: the care of tables, what it would do, and what it did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.screen import counted
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import Maintain, Optimize

DONE = ("table", "step", "outcome", "reason", "files", "bytes", "rows", "seconds", "error")
HISTORY = ("started_at", *DONE[:3], "trigger", *DONE[3:])


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("maintain")(maintain)


def maintain(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A topic or a materialized view; all tables if left out.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="STEPS",
            help="Some of retention, compact, expire, manifests, deletions and orphans, separated by commas.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Show what was done, and what runs now.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Lines of the history.")] = 50,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take care of tables: forget old rows, pack files, expire snapshots, merge manifests, delete what nothing needs.

    Exits with 1 if a step failed; the others are done all the same.
    """
    from headwater.sql.care_statements import checked_steps
    from headwater.sql.statements import Maintain, ShowMaintenance

    session = session_of(context)
    if history:
        _say_history(session, session.lake.execute(ShowMaintenance(name, limit)))
        return
    steps = checked_steps([step.strip() for step in only.split(",")] if only is not None else [])
    result = take_care(session, Maintain(name, steps, dry_run))
    say_steps(session, result)
    if any(step["outcome"] == "failed" for step in result.info["steps"]):
        raise typer.Exit(1)


def take_care(session: Session, statement: Maintain | Optimize) -> Result:
    """Run the statement, with word of what goes on."""
    from headwater.cli.work import spark_spinner

    lake, screen = session.lake, session.screen
    doing = ["planning"]

    def told(step: Mapping[str, Any]) -> None:
        text = f"{step['table']}: {step['step']}, {step['reason']}"
        if not screen.shows_progress and not screen.json and not doing[0].startswith(text):
            screen.note(text)
        doing[0] = f"{text}{_so_far(step['numbers'])}"

    with spark_spinner(lake, screen, lambda: doing[0]):
        return session.worker.run(lambda cancel: lake.take_care(statement, told, cancel))


def _so_far(numbers: Mapping[str, Any]) -> str:
    done, total = numbers.get("groups"), numbers.get("groups_planned")
    return f" ({done} of {total})" if done is not None and total is not None else ""


def say_steps(session: Session, result: Result) -> None:
    """Print what was done, or would be; steps that had nothing to do are only counted."""
    screen, steps = session.screen, result.info["steps"]
    if screen.json:
        _say_json(session, {"steps": steps, "notices": list(result.notices)})
        return
    for notice in result.notices:
        screen.note(f"note: {notice}")
    _say_rows(session, result, DONE, without="nothing")
    idle = sum(step["outcome"] == "nothing" for step in steps)
    if idle:
        screen.note(f"{counted(idle, 'step')} had nothing to do")


def _say_history(session: Session, result: Result) -> None:
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    waiting = result.info["pending_deletions"]
    if waiting["files"]:
        session.screen.note(f"{counted(waiting['files'], 'file')} wait to be deleted")
    if not result.info["steps"]:
        session.screen.note("nothing was done yet")
        return
    _say_rows(session, result, HISTORY)


def _say_rows(session: Session, result: Result, shown: Sequence[str], without: str | None = None) -> None:
    """Print the rows as a table, of `shown` the columns that have values."""
    import pyarrow.compute as pc

    from headwater.cli.formats import write_result
    from headwater.serving.result import Result

    table = result.arrow()
    if without is not None:
        table = table.filter(pc.not_equal(table["outcome"], without))
    if not table.num_rows:
        return
    table = table.select([name for name in shown if table[name].null_count < table.num_rows])
    write_result(Result(table.schema, iter(table.to_batches())), "table", session.screen, None)


def _say_json(session: Session, document: Any) -> None:
    session.screen.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
