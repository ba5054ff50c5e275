"""`headwater sql`: statements of any kind, from the command line, a file or stdin; a shell when there is a person."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.query import Cancel
    from headwater.serving.result import Result
    from headwater.sql.statements import Statement


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("sql")(sql)


def sql(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Statements separated by semicolons; `-` reads stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Run the statements of a file.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run statements; without any, a shell. With --json, one array with an object for each statement."""
    if text is not None and file is not None:
        raise typer.BadParameter("give the statements either as SQL or with -f FILE.")
    session = session_of(context)
    if file is not None:
        text = read_file(file)
    elif text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if text is not None:
        run_script(session, text)
        return
    from headwater.cli.shell import run_shell

    run_shell(session)


def read_file(file: Path) -> str:
    """The text of a file, or of stdin for `-`."""
    from headwater.errors import InvalidInput

    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'file "{file}" cannot be read', detail=f"{error}.") from None


def run_script(session: Session, text: str) -> None:
    """Run all statements of a text, each finished before the next begins; none if one cannot be parsed."""
    from headwater.cli.formats import write_json_results
    from headwater.cli.work import spark_spinner
    from headwater.sql.parse import parse_script

    statements = parse_script(text)
    with spark_spinner(session.lake, session.screen):
        if session.screen.json:
            session.worker.run(lambda cancel: write_json_results(_results(session, statements, cancel), session.screen))
            return
        for place, statement in enumerate(statements):
            if place:
                session.screen.write("\n")
            session.worker.run(lambda cancel, each=statement: show(session, each, cancel))  # type: ignore[misc]


def _results(session: Session, statements: tuple[Statement, ...], cancel: Cancel) -> Iterator[Result]:
    for statement in statements:
        cancel.check()
        yield session.lake.execute(statement, cancel)


def show(session: Session, statement: Statement, cancel: Cancel) -> None:
    """Run one statement and print what it answers, as a person wants to see it."""
    from headwater.cli.formats import SHOWN_ROWS, say_written, write_result
    from headwater.serving.result import DONE
    from headwater.sql.statements import Explain, ExplainCreateView, ExplainRefresh, Query

    started = time.perf_counter()
    screen = session.screen
    result = session.lake.execute(statement, cancel)
    for notice in result.notices:
        screen.note(f"note: {notice}")
    if result.schema.equals(DONE) and not isinstance(statement, Query):
        screen.write("".join(f"{row['status']}\n" for row in result.rows()))
    elif isinstance(statement, Explain | ExplainRefresh | ExplainCreateView):
        screen.write("".join(f"{row['plan']}\n" for row in result.rows()))
    else:
        written = write_result(result, "table", screen, SHOWN_ROWS if screen.is_terminal else None)
        say_written(written, screen, result, time.perf_counter() - started)
    screen.flush()
