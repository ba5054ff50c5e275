"""The `headwater` command: global options, the commands, and the one handler for everything that goes wrong."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli import (
    backup,
    doctor,
    lake,
    maintain,
    mv,
    parquet,
    produce,
    query,
    snapshots,
    sql,
    stream,
    tail,
    topic,
)
from headwater.cli.failures import INTERRUPTED, WRONG_USAGE, debugging, report, report_bug, report_usage
from headwater.cli.screen import Screen
from headwater.cli.session import Session
from headwater.errors import HeadwaterError, HeadwaterWarning

# Importing makes a great many objects and no garbage. With Python's 700, a start would look through them again and
# again, for a tenth of its time.
_YOUNG_OBJECTS = 50_000

app = typer.Typer(
    name="headwater",
    help="An Iceberg lake that behaves like a streaming platform.",
    epilog="Documentation: docs/reference/cli.md",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    lake: Annotated[
        Path | None,
        typer.Option(
            "-C",
            "--lake",
            metavar="PATH",
            help="The lake's folder. Default: HEADWATER_LAKE, else the current folder or the nearest one above it "
            "that holds a headwater.toml.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Talk to a running service instead of opening the folder. Default: HEADWATER_URL.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document; errors too, on stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results only.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=lake.print_version)
    ] = False,
) -> None:
    """An Iceberg lake that behaves like a streaming platform."""
    chosen = url or (os.environ.get("HEADWATER_URL") if lake is None else None) or None
    session = Session(lake, chosen, Screen(quiet=quiet, json=json))
    context.obj = session
    context.call_on_close(session.close)


lake.register(app)
app.add_typer(topic.app, name="topic")
app.add_typer(mv.app, name="mv")
app.add_typer(stream.app, name="stream")
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(parquet.app, name="parquet")
produce.register(app)
query.register(app)
tail.register(app)
sql.register(app)
maintain.register(app)
doctor.register(app)
backup.register(app)


def run() -> None:
    """The entry point: run the command in `sys.argv` and exit with 0 (done), 1 (an error) or 2 (wrong usage)."""
    gc.set_threshold(_YOUNG_OBJECTS)
    code = main(sys.argv[1:])
    _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process at once: taking the interpreter apart object by object is a tenth of a short command's time.

    As usual, threads that are no daemons are waited for, exit handlers run, and what was written goes out.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):  # whoever reads our output is gone; the usual way out says so
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    screen = Screen(json="--json" in arguments)
    _choose_warnings(screen)
    try:
        code: Any = app(arguments, prog_name="headwater", standalone_mode=False)
        screen.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.TyperException as wrong:
        return _usage(wrong, screen)
    except HeadwaterError as error:
        return report(error, screen)
    except Exception as failed:
        return report_bug(failed, screen)
    return code if isinstance(code, int) else 0


def _usage(wrong: typer.TyperException, screen: Screen) -> int:
    context = getattr(wrong, "ctx", None)
    if type(wrong).__name__ == "NoArgsIsHelpError" and not screen.json:  # its message is the help, not a mistake
        sys.stderr.write(f"{wrong.format_message()}\n")
        return WRONG_USAGE
    usage = ""
    if context is not None:
        usage = f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n"
    return report_usage(wrong.format_message(), usage, screen)


def _choose_warnings(screen: Screen) -> None:
    """Headwater's own warnings become notes; those of libraries are for developers."""
    if debugging():
        return
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", HeadwaterWarning)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        screen.note(f"note: {message}")

    warnings.showwarning = show
