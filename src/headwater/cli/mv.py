"""`headwater mv`: materialized views. Each command builds the statement that SQL would build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwater.cli.answers import confirm_drop, option_pairs, say_done
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import Statement

app = typer.Typer(
    help="Create, refresh, query and look after materialized views.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The view's name.")]
Full = Annotated[bool, typer.Option("--full", help="Recompute it, whatever a refresh would do by itself.")]
LISTED = ("view", "mode", "method", "status", "rows", "lag_rows", "last_refresh", "description", "error")
REFRESHED = ("view", "method", "rows_read", "rows_written", "seconds", "reason")
HISTORY = ("started_at", "view", "outcome", "trigger", *REFRESHED[1:], "verified", "error")
"""What a table of refreshes shows of them, so that it fits a screen; --json has everything."""

Sample = Annotated[
    int | None,
    typer.Option("--sample", metavar="N", min=1, max=1_000_000, help="Compare about N groups. Default: all."),
]


@app.command("create")
def create(
    context: typer.Context,
    name: Name,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="Spark SQL over topics and views; `-` reads it from stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="The query of a file.")] = None,
    refresh: Annotated[
        Literal["immediate", "periodic", "manual", "on_query", "continuous"] | None,
        typer.Option("--refresh", help="When it is refreshed. Default: periodic."),
    ] = None,
    method: Annotated[
        Literal["auto", "incremental", "full"] | None,
        typer.Option("--method", help="How it is refreshed. Default: auto."),
    ] = None,
    interval: Annotated[
        str | None, typer.Option("--interval", metavar="DURATION", help="Between two refreshes: '10 s', '5 minutes'.")
    ] = None,
    max_staleness: Annotated[
        str | None,
        typer.Option("--max-staleness", metavar="DURATION", help="How far behind a view on_query may answer."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A view option; may be repeated.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a view of this name.")] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if there is a view of this name.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print how the view would be kept, and make nothing.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a materialized view and compute it."""
    if (query is None) == (file is None):
        raise typer.BadParameter("give the query either as SQL or with -f FILE.")
    if replace and if_not_exists:
        raise typer.BadParameter("choose one of --replace and --if-not-exists.")
    from headwater.cli.sql import read_file
    from headwater.sql.statements import CreateView, ExplainCreateView
    from headwater.sql.view_definition import checked_view

    text = read_file(file or Path("-")) if file is not None or query == "-" else str(query)
    given = {"refresh": " ".join(filter(None, (refresh, method))), "interval": interval, "max_staleness": max_staleness}
    options = {**option_pairs(option or [], "--option"), **{key: value for key, value in given.items() if value}}
    definition = checked_view(name, text, options)
    session = session_of(context)
    if explain:
        _say_plan(session, _run(session, ExplainCreateView(definition)))
        return
    say_done(session, _run(session, CreateView(definition, replace, if_not_exists), "computing the view"))


@app.command("list")
def list_views(context: typer.Context, json_: Json = False, quiet: Quiet = False) -> None:
    """List the materialized views. Tells how each is refreshed, and how far it is behind."""
    from headwater.sql.statements import ShowViews

    session = session_of(context)
    _say_rows(session, session.lake.execute(ShowViews()), "no views yet; `headwater mv create` makes one", LISTED)


@app.command("describe")
def describe(context: typer.Context, name: Name, json_: Json = False, quiet: Quiet = False) -> None:
    """Show a view's columns, query, sources, lag and options."""
    from headwater.cli.formats import write_result
    from headwater.cli.view_text import facts
    from headwater.sql.statements import DescribeView

    session = session_of(context)
    result = session.lake.execute(DescribeView(name))
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    write_result(result, "table", session.screen, None)
    session.screen.write("\n" + "".join(f"{line}\n" for line in facts(result.info)))


@app.command("refresh")
def refresh(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The view's name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All views.")] = False,
    full: Full = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare it with its query afterwards.")] = False,
    sample: Sample = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring a view, and the views that it reads, up to date. Exits with 1 if --verify finds a difference."""
    if (name is None) != every:
        raise typer.BadParameter("name a view, or give --all.")
    from headwater.cli.refreshing import refresh_all, refresh_one
    from headwater.sql.statements import RefreshView, Verify

    session = session_of(context)
    asked = Verify(sample) if verify or sample is not None else None
    run = refresh_all if name is None else refresh_one
    done = run(session, RefreshView(name or "", full, asked))
    if session.screen.json:
        _say_json(session, dict(done.result.info))
    else:
        _say_rows(session, done.result, "no views yet; `headwater mv create` makes one", REFRESHED)
    if done.error is not None:
        raise done.error
    if done.differs:
        raise typer.Exit(1)


@app.command("drop")
def drop(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if there is no such view.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Drop a view with its files; what it was made of stays."""
    from headwater.sql.statements import DropView

    session = session_of(context)
    if not yes:
        confirm_drop(session.screen, "materialized view", name, "rows")
    say_done(session, session.lake.execute(DropView(name, if_exists)))


@app.command("query")
def query_view(
    context: typer.Context,
    name: Name,
    where: Annotated[
        str | None, typer.Argument(metavar="WHERE", help="A condition in SQL, with or without the word WHERE.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Read it as if it were refreshed now.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Rows at the most.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a heading.")] = False,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Print one JSON object per line.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print a view's rows. With --json, one array with an object for each row."""
    from headwater.cli.query import run_query
    from headwater.sql.view_query import view_query

    session = session_of(context)
    if sum((csv, ndjson, session.screen.json)) > 1:
        raise typer.BadParameter("choose one of --csv, --json and --ndjson.")
    form: Any = "csv" if csv else "ndjson" if ndjson else "json" if session.screen.json else "table"
    run_query(session, view_query(name, where, fresh=fresh, limit=limit), form, limit or None, None)


@app.command("explain")
def explain(context: typer.Context, name: Name, full: Full = False, json_: Json = False, quiet: Quiet = False) -> None:
    """Print what the next refresh of a view would do, and why."""
    from headwater.sql.statements import ExplainRefresh

    session = session_of(context)
    _say_plan(session, session.lake.execute(ExplainRefresh(name, full)))


@app.command("verify")
def verify(
    context: typer.Context, name: Name, sample: Sample = None, json_: Json = False, quiet: Quiet = False
) -> None:
    """Compare a view with its query. Over the snapshots that the view stands for; exits with 1 if they differ."""
    from headwater.sql.statements import VerifyView

    session = session_of(context)
    result = _run(session, VerifyView(name, sample), "comparing the view with its query")
    outcome = result.info["verified"]
    if session.screen.json:
        _say_json(session, outcome)
    else:
        session.screen.write("".join(f"{notice}\n" for notice in result.notices))
    if not outcome["equal"]:
        raise typer.Exit(1)


@app.command("history")
def history(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The view's name. Default: all views.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Refreshes at the most.")] = 20,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the latest refreshes, the newest first."""
    from headwater.sql.statements import ShowRefreshes

    session = session_of(context)
    _say_rows(session, session.lake.execute(ShowRefreshes(name, limit)), "no refreshes yet", HISTORY)


@app.command("alter")
def alter(
    context: typer.Context,
    name: Name,
    options: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="The options to change.")],
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change options of a view. Those that are not named stay as they are."""
    from headwater.sql.statements import AlterView

    session = session_of(context)
    say_done(session, session.lake.execute(AlterView(name, option_pairs(options, "alter"))))


@app.command("compact")
def compact(context: typer.Context, name: Name, json_: Json = False, quiet: Quiet = False) -> None:
    """Fold what refreshes appended to a view. Reading it is quicker then."""
    from headwater.sql.statements import CompactView

    session = session_of(context)
    _say_rows(session, _run(session, CompactView(name), "compacting the view"), "")


# -- what they print ------------------------------------------------------------------------------------------------


def _run(session: Session, statement: Statement, doing: str | None = None) -> Result:
    """Run what needs Spark, saying so meanwhile."""
    from headwater.cli.work import spark_spinner

    with spark_spinner(session.lake, session.screen, lambda: doing):
        return session.worker.run(lambda cancel: session.lake.execute(statement, cancel))


def _say_rows(session: Session, result: Result, empty: str, shown: tuple[str, ...] = ()) -> None:
    """Print rows; as a table, of `shown` the columns that have values."""
    from headwater.cli.formats import json_objects, write_result
    from headwater.serving.result import Result

    screen = session.screen
    if screen.json:
        _say_json(session, json_objects(result))
        return
    for notice in result.notices:
        screen.note(f"note: {notice}")
    table = result.arrow()
    if not table.num_rows:
        screen.note(empty)
        return
    if shown:
        table = table.select([name for name in shown if table[name].null_count < table.num_rows])
    write_result(Result(table.schema, iter(table.to_batches())), "table", screen, None)


def _say_plan(session: Session, result: Result) -> None:
    if session.screen.json:
        _say_json(session, result.info["plan"])
        return
    for notice in result.notices:
        session.screen.note(f"note: {notice}")
    session.screen.write("".join(f"{row['plan']}\n" for row in result.rows()))


def _say_json(session: Session, document: Any) -> None:
    session.screen.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
