"""`headwater snapshots`: a topic's past, and the way back. Each command builds the statement that SQL would build."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.answers import say_done
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import RefKind, Statement

app = typer.Typer(
    help="List snapshots, name them, read what changed between them, and go back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_AT = "A snapshot's id, a tag or branch, or a time such as '2026-01-01 10:05:00' (UTC)."
SHOWN = ("snapshot", "at", "made_by", "rows_added", "rows_removed", "rows", "files", "current", "on_main", "refs")
"""What a table of snapshots shows of them, so that it fits a screen; --json has everything."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
RefName = Annotated[str, typer.Argument(metavar="NAME", help="The name: letters, digits, dots, dashes, underscores.")]
At = Annotated[str | None, typer.Option("--at", metavar="AT", help=f"{_AT} Default: the newest snapshot.")]
Retain = Annotated[
    str | None, typer.Option("--retain", metavar="DURATION", help="Keep it for so long: '30 days'. Default: for ever.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Move it if there is one of this name.")]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Do nothing if there is none.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and do nothing.")]
From = Annotated[str, typer.Argument(metavar="FROM", help=_AT)]
To = Annotated[str, typer.Argument(metavar="TO", help=_AT)]


@app.command("list")
def list_snapshots(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a topic or a materialized view.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Snapshots at the most.")] = 100,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the snapshots of a topic or a view, the newest first. Tells what made each, and what stands for it."""
    from headwater.sql.statements import ShowSnapshots

    session = session_of(context)
    result = session.lake.execute(ShowSnapshots(name, limit))
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    _say_table(session, result, "no snapshots yet; `headwater flush` commits what waits in the log", SHOWN)
    for gap in result.info["gaps"]:
        session.screen.note(f"offsets [{gap['from']}, {gap['to']}) are gone since {gap['at']}: {gap['why']}")


@app.command("refs")
def refs(context: typer.Context, topic: Topic, json_: Json = False, quiet: Quiet = False) -> None:
    """List the tags and branches of a topic. Those of views say which snapshots views stand for."""
    from headwater.sql.statements import ShowRefs

    session = session_of(context)
    result = session.lake.execute(ShowRefs(topic))
    if session.screen.json:
        _say_json(session, dict(result.info))
    else:
        _say_table(session, result, "no tags or branches yet; `headwater snapshots tag` makes one")


@app.command("tag")
def tag(
    context: typer.Context,
    topic: Topic,
    name: RefName,
    at: At = None,
    retain: Retain = None,
    replace: Replace = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Name a snapshot, which then does not expire."""
    _create(session_of(context), "tag", topic, name, at, retain, replace)


@app.command("untag")
def untag(
    context: typer.Context,
    topic: Topic,
    name: RefName,
    if_exists: IfExists = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove a tag."""
    _drop(session_of(context), "tag", topic, name, if_exists)


@app.command("branch")
def branch(
    context: typer.Context,
    topic: Topic,
    name: RefName,
    at: At = None,
    retain: Retain = None,
    replace: Replace = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Begin a branch at a snapshot, for other engines to write to."""
    _create(session_of(context), "branch", topic, name, at, retain, replace)


@app.command("unbranch")
def unbranch(
    context: typer.Context,
    topic: Topic,
    name: RefName,
    if_exists: IfExists = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove a branch."""
    _drop(session_of(context), "branch", topic, name, if_exists)


@app.command("rollback")
def rollback(
    context: typer.Context,
    topic: Topic,
    to: To,
    dry_run: DryRun = False,
    base: Annotated[
        int | None, typer.Option("--base", metavar="ID", help="Refuse unless this is still the topic's snapshot.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a topic what it was. Shows what that does and asks, and does exactly what it has shown."""
    from headwater.sql.moments import moment_of
    from headwater.sql.statements import RollbackTopic

    session, target = session_of(context), moment_of(to)
    if not (dry_run or yes):
        base = _confirm(session, session.lake.execute(RollbackTopic(topic, target, base, True)), topic)
    result = session.lake.execute(RollbackTopic(topic, target, base, dry_run))
    _say_plan(session, result, "rollback")


def _confirm(session: Session, planned: Result, topic: str) -> int:
    """Show the plan and ask; the snapshot that it was made for."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(f'rolling "{topic}" back takes rows away: add --yes, as nobody can be asked here.')
    for row in planned.rows():
        session.screen.note(row["plan"])
    if not typer.confirm(f'Roll topic "{topic}" back?', err=True):
        session.screen.note("nothing was changed")
        raise typer.Exit(1)
    return int(planned.info["rollback"]["from"])


@app.command("cherry-pick")
def cherry_pick(
    context: typer.Context,
    topic: Topic,
    snapshot: Annotated[int, typer.Argument(metavar="SNAPSHOT", help="The snapshot's id.", min=0)],
    dry_run: DryRun = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Apply what a snapshot did that is not part of the topic any more."""
    from headwater.sql.moments import checked_version
    from headwater.sql.statements import CherryPick

    session = session_of(context)
    result = session.lake.execute(CherryPick(topic, checked_version(str(snapshot)), dry_run))
    _say_plan(session, result, "cherry_pick")


@app.command("changes")
def changes(
    context: typer.Context,
    topic: Topic,
    start: From,
    end: To,
    where: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="A condition in SQL: \"_change = 'deleted'\".")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Rows at the most.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the rows that were inserted, deleted or updated between two states of a topic."""
    from headwater.cli.query import run_query
    from headwater.sql.moments import moment_of
    from headwater.sql.snapshot_statements import changes_query

    session = session_of(context)
    query = changes_query(topic, moment_of(start), moment_of(end), where)
    run_query(session, query, "json" if session.screen.json else "table", limit, None)


@app.command("diff")
def diff(context: typer.Context, topic: Topic, start: From, end: To, json_: Json = False, quiet: Quiet = False) -> None:
    """Tell how two states of a topic differ, in numbers: rows, files, columns, partitioning and ordering."""
    from headwater.sql.moments import moment_of
    from headwater.sql.statements import DiffTopic

    session = session_of(context)
    about = _run(session, DiffTopic(topic, moment_of(start), moment_of(end))).info["diff"]
    if session.screen.json:
        _say_json(session, dict(about))
        return
    told = {name: ", ".join(value) if isinstance(value, list) else value for name, value in about.items()}
    lines = (f"{name.replace('_', ' ') + ':':<16}{value}\n" for name, value in told.items() if value not in (None, ""))
    session.screen.write("".join(lines))


# -- what they share --------------------------------------------------------------------------------------------------


def _create(
    session: Session, kind: RefKind, topic: str, name: str, at: str | None, retain: str | None, replace: bool
) -> None:
    from headwater.sql.moments import NEWEST, moment_of
    from headwater.sql.snapshot_statements import checked_ref, checked_retain
    from headwater.sql.statements import CreateRef

    state = moment_of(at) if at is not None else NEWEST
    made = CreateRef(kind, checked_ref(kind, name), topic, state, checked_retain(retain), replace)
    say_done(session, session.lake.execute(made))


def _drop(session: Session, kind: RefKind, topic: str, name: str, if_exists: bool) -> None:
    from headwater.sql.snapshot_statements import checked_ref
    from headwater.sql.statements import DropRef

    say_done(session, session.lake.execute(DropRef(kind, checked_ref(kind, name), topic, if_exists)))


def _run(session: Session, statement: Statement) -> Result:
    """Run what may need Spark, saying so meanwhile."""
    from headwater.cli.work import spark_spinner

    with spark_spinner(session.lake, session.screen, lambda: None):
        return session.worker.run(lambda cancel: session.lake.execute(statement, cancel))


def _say_plan(session: Session, result: Result, key: str) -> None:
    if session.screen.json:
        _say_json(session, dict(result.info[key]))
    else:
        session.screen.write("".join(f"{row['plan']}\n" for row in result.rows()))


def _say_table(session: Session, result: Result, empty: str, shown: tuple[str, ...] = ()) -> None:
    from headwater.cli.formats import write_result
    from headwater.serving.result import Result

    table = result.arrow()
    if not table.num_rows:
        session.screen.note(empty)
        return
    table = table.select(list(shown)) if shown else table
    write_result(Result(table.schema, iter(table.to_batches())), "table", session.screen, None)


def _say_json(session: Session, document: Any) -> None:
    session.screen.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
