"""`headwater stream`: streams, and the continuous views and connectors that run. Each command builds a statement."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.answers import confirm_drop, option_pairs, say_done
from headwater.cli.screen import sized, timed
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import RestartStream, StartStream, StopStream

app = typer.Typer(
    help="Create streams; start, stop and watch continuous views and connectors.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]
Job = Annotated[str, typer.Argument(metavar="NAME", help="A continuous view, or a stream with a connector.")]
STATUS = (
    *("name", "kind", "state", "input_rows_per_s", "processed_rows_per_s", "watermark", "lag_rows"),
    *("state_rows", "state_bytes", "late_rows", "restarts", "waits_for", "last_error"),
)
"""What a table shows of a status, so that it fits a screen; --json has everything."""
WATCH_SECONDS = 1.0


@app.command("create")
def create(
    context: typer.Context,
    name: Name,
    columns: Annotated[
        str | None,
        typer.Argument(metavar="COLUMNS", help="Columns in SQL: 'id BIGINT, at TIMESTAMP'. Default: the topic's."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="The topic that it is a view of; made if there is none. Default: NAME."),
    ] = None,
    timestamp_field: Annotated[
        str | None, typer.Option("--timestamp-field", metavar="COLUMN", help="The event time. Default: _timestamp.")
    ] = None,
    out_of_orderness: Annotated[
        str | None,
        typer.Option("--max-out-of-orderness", metavar="DURATION", help="How late an event may be: '10 seconds'."),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="FIELDS", help="Of the topic, if it is made: 'days(at)'.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the stream or its topic; may be repeated."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a stream of this name.")] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if there is a stream of this name.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a stream: a view of a topic with an event time and a watermark."""
    if replace and if_not_exists:
        raise typer.BadParameter("choose one of --replace and --if-not-exists.")
    from headwater.sql.partitioning import parse_partitioning
    from headwater.sql.schema_text import parse_columns
    from headwater.sql.statements import CreateStream
    from headwater.sql.stream_definition import checked_stream
    from headwater.sql.stream_options import split_options

    flags = {"topic": topic, "timestamp_field": timestamp_field, "max_out_of_orderness": out_of_orderness}
    given = {**option_pairs(option or [], "--option"), **{key: value for key, value in flags.items() if value}}
    values, of_topic = split_options(given)
    parts = parse_partitioning(partition_by) if partition_by is not None else ()
    schema = parse_columns(columns) if columns is not None else None
    definition = checked_stream(name, schema, values, parts, of_topic)
    session = session_of(context)
    say_done(session, session.lake.execute(CreateStream(definition, if_not_exists, replace)))


@app.command("list")
def list_streams(context: typer.Context, json_: Json = False, quiet: Quiet = False) -> None:
    """List the streams."""
    from headwater.sql.statements import ShowStreams

    session = session_of(context)
    _say_rows(session, session.lake.execute(ShowStreams()), "no streams yet; `headwater stream create` makes one")


@app.command("describe")
def describe(context: typer.Context, name: Name, json_: Json = False, quiet: Quiet = False) -> None:
    """Show a stream's columns, topic, event time and options."""
    from headwater.cli.formats import write_result
    from headwater.sql.statements import DescribeStream

    session = session_of(context)
    result = session.lake.execute(DescribeStream(name))
    about = result.info
    if session.screen.json:
        _say_json(session, dict(about))
        return
    write_result(result, "table", session.screen, None)
    options = ", ".join(f"{key} = {value}" for key, value in about["options"].items() if value != "")
    facts = {"topic": about["topic"], "event time": about["event_time"], "options": options}
    session.screen.write("\n" + "".join(f"{key + ':':<16}{value}\n" for key, value in facts.items() if value))


@app.command("alter")
def alter(
    context: typer.Context,
    name: Name,
    options: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="The options to change.")],
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change options of a stream. Those that are not named stay as they are."""
    from headwater.sql.statements import AlterStream

    session = session_of(context)
    say_done(session, session.lake.execute(AlterStream(name, option_pairs(options, "alter"))))


@app.command("drop")
def drop(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if there is no such stream.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forget a stream; its topic and the records stay."""
    from headwater.sql.statements import DropStream

    session = session_of(context)
    if not yes:
        confirm_drop(session.screen, "stream", name, "options")
    say_done(session, session.lake.execute(DropStream(name, if_exists)))


@app.command("start")
def start(context: typer.Context, name: Job, json_: Json = False, quiet: Quiet = False) -> None:
    """Run a continuous view or a connector from now on, in the service."""
    from headwater.sql.statements import StartStream

    _run(session_of(context), StartStream(name))


@app.command("stop")
def stop(context: typer.Context, name: Job, json_: Json = False, quiet: Quiet = False) -> None:
    """Finish what is under way, and do not run it again until it is started."""
    from headwater.sql.statements import StopStream

    _run(session_of(context), StopStream(name))


@app.command("restart")
def restart(context: typer.Context, name: Job, json_: Json = False, quiet: Quiet = False) -> None:
    """Stop and start. One that failed and waits does not wait any longer."""
    from headwater.sql.statements import RestartStream

    _run(session_of(context), RestartStream(name))


@app.command("status")
def status(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them, with all details.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how continuous views and connectors run: state, rates, watermark, lag, state, late rows, last error."""
    session = session_of(context)
    try:
        while True:
            _say_status(session, name, watch)
            if not watch:
                return
            session.screen.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        if not watch:
            raise


# -- what they print ------------------------------------------------------------------------------------------------


def _run(session: Session, statement: StartStream | StopStream | RestartStream) -> None:
    result = session.worker.run(lambda cancel: session.lake.execute(statement, cancel))
    found = result.info["streams"][0]
    if session.screen.json:
        _say_json(session, found)
        return
    if not session.screen.quiet:
        session.screen.write(f"{found['name']}: {found['state']}\n")
    if found["state"] == "idle":
        session.screen.note("note: no service runs; it starts with `headwater serve`")


def _say_status(session: Session, name: str | None, watch: bool) -> None:
    from headwater.sql.statements import ShowStreamStatus

    result = session.lake.execute(ShowStreamStatus(name))
    screen = session.screen
    if screen.json:
        found = result.info["streams"]
        _say_json(session, found if name is None else found[0])
        return
    if watch and screen.is_terminal:
        screen.home()
    if name is None:
        _say_rows(session, result, "no continuous views or connectors yet", STATUS)
    else:
        screen.write("".join(f"{line}\n" for line in status_lines(result.rows()[0] | _query_of(result))))


def _query_of(result: Result) -> dict[str, Any]:
    return {"query": result.info["streams"][0].get("query")}


def status_lines(about: Mapping[str, Any]) -> list[str]:
    """Everything that is known of a job as lines, each a name and a fact."""
    forms: dict[str, Callable[[Any], str]] = {
        "query": lambda text: " ".join(text.split()),
        "sources": ", ".join,
        "state_bytes": sized,
        "batch_seconds": timed,
        "input_rows_per_s": "{:,.0f}".format,
        "processed_rows_per_s": "{:,.0f}".format,
    }
    known = {name: value for name, value in about.items() if value is not None and value != []}
    shown = {name: forms.get(name, _shown)(value) for name, value in known.items()}
    return [f"{name.replace('_', ' ') + ':':<24}{value}" for name, value in shown.items()]


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if hasattr(value, "tzinfo") else str(value)


def _say_rows(session: Session, result: Result, empty: str, shown: tuple[str, ...] = ()) -> None:
    """Print rows; as a table, of `shown` the columns that have values."""
    from headwater.cli.formats import json_objects, write_result
    from headwater.serving.result import Result

    if session.screen.json:
        _say_json(session, json_objects(result))
        return
    table = result.arrow()
    if not table.num_rows:
        session.screen.note(empty)
        return
    names = [name for name in shown or table.column_names if table[name].null_count < table.num_rows]
    table = table.select(names)
    write_result(Result(table.schema, iter(table.to_batches())), "table", session.screen, None)


def _say_json(session: Session, document: Any) -> None:
    session.screen.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
