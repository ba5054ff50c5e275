"""`headwater parquet`: what a topic's files are made of, what would be better, and other files into a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwater.cli.screen import counted, sized
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import ParquetStatement

app = typer.Typer(
    help="Look into a topic's files, improve them, and bring in others.", no_args_is_help=True, rich_markup_mode=None
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
STATS = ("column", "type", "compressed", "ratio", "share", "codecs", "encodings", "nulls", "distinct", "min", "max")
SCHEMA = ("column", "physical", "logical", "repetition", "field_id", "files", "others")
CONVERTED = ("file", "format", "status", "rows", "dead", "duplicates", "seconds")
"""What tables show, so that they fit a screen; --json has everything."""


@app.command("stats")
def stats(
    context: typer.Context,
    topic: Topic,
    distinct: Annotated[
        bool, typer.Option("--distinct/--no-distinct", help="Estimate how many different values there are.")
    ] = True,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show sizes, codecs, encodings and values of a topic's columns, as its committed files have them."""
    from headwater.sql.statements import ShowParquetStats

    session = session_of(context)
    result = _run(session, ShowParquetStats(topic, distinct), "reading footers")
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    _say_rows(session, result, STATS)
    session.screen.write("\n" + "".join(f"{line}\n" for line in _facts(result.info)))


def _facts(about: Mapping[str, Any]) -> list[str]:
    files, rows = about["files"], max(about["rows"], 1)
    seen = {each["distinct_rows"] for each in about["columns"] if each["distinct_rows"] is not None}
    facts = {
        "files": f"{counted(files, 'file')}, {sized(about['bytes'])}, {counted(about['row_groups'], 'row group')}",
        "rows": f"{about['rows']:,}",
        "small files": f"{about['small_files']} (below 75% of {sized(about['target_file_size'])})",
        "partitions": about["partitions"],
        "in order": f"{about['ordered_rows'] / rows:.0%} in files, {about['clustered_rows'] / rows:.0%} across files",
        "codecs": ", ".join(about["codecs"]),
        "page index": f"{about['page_index_files']} of {files}",
        "checksums": f"{about['sealed_files']} of {files} of everything, {about['checksum_files']} of pages",
        "written by": ", ".join(about["writers"]),
        "distinct": f"estimated from {counted(max(seen), 'row')}" if seen and max(seen) < about["rows"] else "",
    }
    return [f"{name + ':':<16}{fact}" for name, fact in facts.items() if fact not in (None, "")]


@app.command("schema")
def schema(context: typer.Context, topic: Topic, json_: Json = False, quiet: Quiet = False) -> None:
    """Show the Parquet types of a topic's newest file, and how its other files differ."""
    from headwater.sql.statements import ShowParquetSchema

    session = session_of(context)
    result = _run(session, ShowParquetSchema(topic), "reading footers")
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    _say_rows(session, result, SCHEMA)
    if result.info["file"] is not None:
        session.screen.write(f"\nnewest of {counted(result.info['files'], 'file')}: {result.info['file']}\n")


@app.command("compact")
def compact(
    context: typer.Context,
    topic: Topic,
    full: Annotated[bool, typer.Option("--full", help="Rewrite every file, as the topic is defined now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack and sort a topic's files where that pays. Exits with 1 if that fails."""
    from headwater.cli.maintain import say_steps, take_care
    from headwater.sql.statements import Optimize

    session = session_of(context)
    result = take_care(session, Optimize(topic, full, dry_run))
    say_steps(session, result)
    if any(step["outcome"] == "failed" for step in result.info["steps"]):
        raise typer.Exit(1)


@app.command("convert")
def convert(
    context: typer.Context,
    topic: Topic,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Files, or folders of files.")],
    format: Annotated[
        Literal["ndjson", "json", "csv", "parquet", "orc", "avro"] | None,
        typer.Option("--format", help="Default: by each file's extension."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the files, and store nothing.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring existing files into a topic. Each is checked first, stored whole or not at all, and only once."""
    from headwater.cli.work import spark_spinner

    session = session_of(context)
    session.refuse_url("parquet convert")
    lake: Any = session.lake
    doing = ["reading"]

    def told(step: Mapping[str, Any]) -> None:
        where = f"{Path(step['file']).name} ({step['number']} of {step['files']})"
        doing[0] = f"{step['doing']} {where}, {counted(step['rows'], 'row')}"

    with spark_spinner(lake, session.screen, lambda: doing[0]):
        done = session.worker.run(lambda _: lake.convert(topic, files, format=format, dry_run=dry_run, progress=told))
    _say_converted(session, topic, done)


def _say_converted(session: Session, topic: str, done: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    from headwater.serving.result import Result

    if session.screen.json:
        _say_json(session, {"topic": topic, "files": done})
        return
    rows = pa.Table.from_pylist([{name: each[name] for name in CONVERTED} for each in done])
    _say_rows(session, Result(rows.schema, iter(rows.to_batches())), CONVERTED)


@app.command("recommend")
def recommend(
    context: typer.Context,
    topic: Topic,
    apply: Annotated[bool, typer.Option("--apply", help="Alter the topic by all of them.")] = False,
    sample_rows: Annotated[
        int, typer.Option("--sample-rows", metavar="N", min=1_000, max=10_000_000, help="Rows to try them on.")
    ] = 100_000,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recommend codecs, encodings, orders, partitions and bloom filters, each tried on a sample of the topic's rows."""
    from headwater.sql.parquet_statements import recommend_of

    session = session_of(context)
    statement = recommend_of(topic, apply=apply, sample_rows=sample_rows)
    result = _run(session, statement, "trying on a sample")
    if session.screen.json:
        _say_json(session, dict(result.info))
        return
    for place, each in enumerate(result.info["recommendations"]):
        session.screen.write("".join(f"{line}\n" for line in [*([""] if place else []), *_advice(each)]))
    if not result.info["recommendations"]:
        session.screen.write("nothing to recommend\n")
    for notice in result.notices:
        session.screen.note(f"note: {notice}")


def _advice(of: Mapping[str, Any]) -> list[str]:
    effects = [*_of_bytes(of), *_of_reads(of), *_of_times(of)]
    return [
        f"{of['kind'].replace('_', ' ')} {', '.join(of['columns'])}: {of['current']} → {of['proposed']}",
        f"  effect: {'; '.join(effects)}",
        f"  why: {of['why']} (confidence: {of['confidence']})",
        f"  {of['statement']}",
    ]


def _of_bytes(of: Mapping[str, Any]) -> list[str]:
    before, after = of["bytes_before"], of["bytes_after"]
    if before is None or after is None:
        return []
    return [f"{sized(before)} → {sized(after)} of the sample ({(after - before) / max(before, 1):+.0%})"]


def _of_reads(of: Mapping[str, Any]) -> list[str]:
    if of["read_before"] is None or of["read_after"] is None:
        return []
    return [f"queries read {of['read_before']:.0%} → {of['read_after']:.0%} of the rows"]


def _of_times(of: Mapping[str, Any]) -> list[str]:
    if of["write_seconds_before"] is None:
        return []
    times = [of[f"{what}_seconds_{when}"] * 1000 for what in ("write", "read") for when in ("before", "after")]
    return ["writing {:.1f} → {:.1f} ms, reading {:.1f} → {:.1f} ms".format(*times)]


# -- what they print ------------------------------------------------------------------------------------------------


def _run(session: Session, statement: ParquetStatement, doing: str) -> Result:
    from headwater.cli.work import spark_spinner

    with spark_spinner(session.lake, session.screen, lambda: doing):
        return session.worker.run(lambda cancel: session.lake.execute(statement, cancel))


def _say_rows(session: Session, result: Result, shown: tuple[str, ...]) -> None:
    """Print rows as a table, of `shown` the columns that have values."""
    from headwater.cli.formats import write_result
    from headwater.serving.result import Result

    table = result.arrow()
    if not table.num_rows:
        session.screen.note("no committed files yet; `headwater flush` commits what waits in the log")
        return
    table = table.select([name for name in shown if table[name].null_count < table.num_rows])
    write_result(Result(table.schema, iter(table.to_batches())), "table", session.screen, None)


def _say_json(session: Session, document: Any) -> None:
    session.screen.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")
