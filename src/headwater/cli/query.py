"""`headwater query`: one reading statement, answered as a table, CSV, JSON, NDJSON or an Arrow file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.cli.formats import Form
    from headwater.serving.query import Cancel
    from headwater.sql.statements import Explain, Query


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("query")(query)


def query(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="SQL", help="A query in Spark SQL; `-` reads it from stdin.")],
    engine: Annotated[
        Literal["auto", "duckdb", "spark"], typer.Option("--engine", help="Where it runs; auto chooses.")
    ] = "auto",
    no_tail: Annotated[
        bool, typer.Option("--no-tail", help="Read committed data only, without the log's tail.")
    ] = False,
    max_rows: Annotated[
        int | None,
        typer.Option(
            "--max-rows", min=0, help="Rows to print; 0 prints all. Default: 100 in a table on a terminal, else all."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds after which the query is stopped. Default: the setting query_timeout."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a heading.")] = False,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Print one JSON object per line.")] = False,
    arrow: Annotated[
        Path | None,
        typer.Option("--arrow", metavar="FILE", help="Write an Arrow IPC file; `-` prints an Arrow stream."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan instead of running the query.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a query. With --json, one array with an object for each row."""
    session = session_of(context)
    if sum((csv, ndjson, arrow is not None, session.screen.json)) > 1:
        raise typer.BadParameter("choose one of --csv, --json, --ndjson and --arrow.")
    if timeout is not None and timeout <= 0:
        raise typer.BadParameter("--timeout takes a number of seconds above 0.")
    statement = _statement(_text(text), engine, no_tail, timeout)
    if explain:
        _explain(session, statement)
        return
    form: Form = "csv" if csv else "ndjson" if ndjson else "arrow" if arrow else "table"
    run_query(session, statement, "json" if session.screen.json else form, max_rows, arrow)


def _text(given: str) -> str:
    if given != "-":
        return given
    import sys

    return sys.stdin.read()


def _statement(
    text: str, engine: Literal["auto", "duckdb", "spark"], no_tail: bool, timeout: float | None
) -> Query | Explain:
    """The statement with the command's options; anything that does not read is refused with the right command."""
    from dataclasses import replace

    from headwater.errors import StatementNotAllowed
    from headwater.sql.parse import parse
    from headwater.sql.statements import Explain, Query

    statement = parse(text)
    if isinstance(statement, Explain):
        return replace(statement, query=replace(statement.query, engine=engine, timeout=timeout))
    if not isinstance(statement, Query):
        raise StatementNotAllowed("`headwater query` only reads", hint="`headwater sql` runs statements of every kind.")
    tail = statement.tail and not no_tail
    return replace(statement, engine=engine, timeout=timeout, tail=tail)


def _explain(session: Session, statement: Query | Explain) -> None:
    from headwater.sql.statements import Explain, Query

    asked = Explain(statement) if isinstance(statement, Query) else statement
    result = session.lake.execute(asked)
    if session.screen.json:
        session.screen.write(json.dumps(result.info.get("plan"), ensure_ascii=False, default=str) + "\n")
        return
    session.screen.write("".join(f"{row['plan']}\n" for row in result.rows()))


def run_query(
    session: Session, statement: Query | Explain, form: Form, max_rows: int | None, file: Path | None
) -> None:
    """Run a query and print its rows in one form."""
    from headwater.cli.formats import SHOWN_ROWS, say_written, write_result
    from headwater.cli.work import spark_spinner
    from headwater.sql.statements import Explain

    if isinstance(statement, Explain):
        _explain(session, statement)
        return
    screen, lake = session.screen, session.lake
    limit = SHOWN_ROWS if max_rows is None and form == "table" and screen.is_terminal else max_rows or None

    def work(cancel: Cancel) -> None:
        started = time.perf_counter()
        result = lake.execute(statement, cancel)
        written = write_result(result, form, screen, limit, file)
        to = file if form == "arrow" and str(file) != "-" else None
        say_written(written, screen, result, time.perf_counter() - started, to)

    with spark_spinner(lake, screen):
        session.worker.run(work)
