"""Commands about the lake as a whole: init, serve, setup, flush, version."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import __version__
from headwater.cli.screen import Screen, counted
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.topics.ingest import Ingested

LIBRARIES = ("pyspark", "pyiceberg", "pyarrow", "duckdb", "sqlglot")
STALE_RETRIES = 5


def register(app: typer.Typer) -> None:
    """Add these commands to the root command."""
    app.command("init")(init)
    app.command("serve")(serve)
    app.command("setup")(setup)
    app.command("flush")(flush)
    app.command("version")(version)


def init(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The folder; made if missing. Default: -C, else this one.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a lake in a folder."""
    session = session_of(context)
    session.refuse_url("init")
    from headwater.engine import Lake

    folder = path or session.path or Path()
    try:
        Lake.init(folder).close()
    except OSError as error:
        from headwater.errors import InvalidInput

        raise InvalidInput(f'folder "{folder}" cannot be made', detail=f"{error}.") from None
    where = folder.resolve()
    if session.screen.json:
        session.screen.write(json.dumps({"lake": str(where)}) + "\n")
    elif not session.screen.quiet:
        session.screen.write(f"lake created in {where}\n")


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option("--host", help="Address to bind to. Default: the setting host.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one. Default: the setting port."),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve the lake over HTTP, ingest what producers send and keep views fresh, until stopped."""
    session = session_of(context)
    session.refuse_url("serve")
    from headwater.api.serve import serve as serve_http
    from headwater.observability.logs import configure_logs

    lake = session.local()
    configure_logs("error" if quiet else lake.settings.log_level)

    def ready(url: str) -> None:
        # Only now: an address that is taken must not cost a JVM.
        lake.start_background()
        threading.Thread(target=_warm, args=(lake, session.screen), name="headwater-warm", daemon=True).start()
        _say_serving(session.screen, url, lake.paths.root)

    os.umask(lake.settings.umask)
    serve_http(lake, host, port, on_ready=ready)
    session.screen.note("stopped")


def _say_serving(screen: Screen, url: str, root: Path) -> None:
    if screen.json:
        screen.write(json.dumps({"url": url, "lake": str(root)}) + "\n")
    else:
        screen.write(f"serving {root} at {url}\n")
    screen.flush()


def _warm(lake: Any, screen: Screen) -> None:
    """Start Spark now, so that the first commit and the first large query do not wait for it."""
    from headwater.errors import HeadwaterError

    try:
        lake.spark  # noqa: B018
    except HeadwaterError as error:
        screen.note(f"note: Spark does not start: {error}")


def _prepare(archive: Path, screen: Screen) -> None:
    """Keep the classes that Spark loads; without them it starts as well, more slowly."""
    from headwater.engine.learning import learn
    from headwater.errors import HeadwaterError
    from headwater.spark.archive import make_archive

    screen.note("setup: starting Spark once, to have it start quickly later (about half a minute)")
    try:
        if not make_archive(archive, learn):
            screen.note("note: Spark will start more slowly: this Java does not keep classes")
    except (HeadwaterError, OSError) as error:
        screen.note(f"note: Spark will start more slowly: {error}")


def setup(
    context: typer.Context,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check Java, fetch the JVM packages, so that nothing needs the network later, and have Spark start quickly."""
    from headwater.config import default_cache
    from headwater.spark.archive import archive_file
    from headwater.spark.built import is_intact
    from headwater.spark.compiled import ensure_class_path
    from headwater.spark.java import find_java

    screen = session_of(context).screen
    java = find_java()
    files = ensure_class_path(default_cache(), lambda line: screen.note(f"setup: {line}"), java)
    archive = archive_file(default_cache(), java, files)
    if not is_intact(archive):
        _prepare(archive, screen)
    if screen.json:
        report = {
            "java": str(java.executable),
            "java_version": java.version,
            "packages": [str(file) for file in files],
            "classes": str(archive) if archive.is_file() else None,
        }
        screen.write(json.dumps(report) + "\n")
    elif not screen.quiet:
        screen.write(f"setup: Java {java.version} and {len(files)} JVM packages are in place\n")


def flush(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Default: all topics.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Commit what waits in the log to the tables now."""
    from headwater.cli.formats import json_objects, write_result

    session = session_of(context)
    result = run_flush(session, topic)
    if session.screen.json:
        session.screen.write(json.dumps(json_objects(result)) + "\n")
    elif result.arrow().num_rows:
        write_result(result, "table", session.screen, None)
    else:
        session.screen.note("nothing waits in the log")


def run_flush(session: Session, topic: str | None) -> Result:
    """Flush; when another process commits the same records first, go on with what is left."""
    from headwater.cli.work import spark_spinner
    from headwater.errors import StaleCommit
    from headwater.serving.topic_answers import flushed

    lake = session.lake
    commits: list[Ingested] = []

    def so_far() -> str:
        done = f"{counted(sum(len(each.offsets) for each in commits), 'record')} in {counted(len(commits), 'commit')}"
        return f"committing, {done} so far" if commits else "committing"

    with spark_spinner(lake, session.screen, so_far):
        for attempt in itertools.count():
            try:
                session.worker.run(lambda _: lake.flush(topic, commits.append))
                break
            except StaleCommit:
                if attempt == STALE_RETRIES:
                    raise
    return flushed(commits)


def version(context: typer.Context, json_: Json = False, quiet: Quiet = False) -> None:
    """Print the versions of Headwater and of what it stands on."""
    from importlib.metadata import version as version_of

    screen = session_of(context).screen
    versions = {"headwater": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    versions |= {name: version_of(name) for name in LIBRARIES}
    if screen.json:
        screen.write(json.dumps(versions) + "\n")
    else:
        screen.write("".join(f"{name} {number}\n" for name, number in versions.items()))


def print_version(asked: bool) -> None:
    """The callback of --version."""
    if asked:
        Screen().write(f"headwater {__version__}\n")
        raise typer.Exit
