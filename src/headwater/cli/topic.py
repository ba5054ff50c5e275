"""`headwater topic`: create, list, describe, alter, drop. Each builds the statement that SQL would build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from headwater.cli.answers import confirm_drop, option_pairs, say_done
from headwater.cli.screen import counted, sized
from headwater.cli.session import Json, Quiet, session_of

if TYPE_CHECKING:
    from headwater.sql.schema_files import SchemaFile
    from headwater.types import TopicDefinition

app = typer.Typer(help="Create, list, describe, alter and drop topics.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]


@app.command("create")
def create(
    context: typer.Context,
    name: Name,
    columns: Annotated[
        str | None, typer.Argument(metavar="COLUMNS", help="Columns in SQL: 'id BIGINT NOT NULL, at TIMESTAMP'.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option("--schema", metavar="FILE", help="Columns from a .json, .sql or .avsc file.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="FIELDS", help="Such as 'days(at), bucket(8, customer)'.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="KEYS", help="Such as 'customer ASC NULLS LAST, at DESC'.")
    ] = None,
    zorder: Annotated[
        str | None, typer.Option("--zorder", metavar="COLUMNS", help="Cluster along a Z-order: 'customer, sku'.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A topic option; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if there is a topic of this name.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a topic from columns in SQL or from a schema file."""
    if (columns is None) == (schema is None):
        raise typer.BadParameter("give the columns either as SQL or with --schema FILE.")
    from headwater.sql.statements import CreateTopic

    definition = define(name, columns, schema, partition_by, order_by, zorder, option or [])
    session = session_of(context)
    say_done(session, session.lake.execute(CreateTopic(definition, if_not_exists)))


def define(
    name: str,
    columns: str | None,
    file: Path | None,
    partition_by: str | None,
    order_by: str | None,
    zorder: str | None,
    options: list[str],
) -> TopicDefinition:
    """The definition that the command's words describe; flags win over what a file says."""
    from headwater.sql.definition import checked_definition
    from headwater.sql.options import render_options
    from headwater.sql.ordering import parse_clustering, parse_ordering
    from headwater.sql.partitioning import parse_partitioning
    from headwater.sql.schema_files import SchemaFile
    from headwater.sql.schema_text import parse_columns
    from headwater.types import TopicOptions

    said = _read_file(file) if file is not None else SchemaFile(parse_columns(columns or ""), (), TopicOptions())
    parts = said.partitioning if partition_by is None else parse_partitioning(partition_by)
    values: dict[str, object] = {**render_options(said.options, changed_only=True), **option_pairs(options, "--option")}
    ordering = said.ordering if order_by is None else parse_ordering(order_by)
    clustering = said.clustering if zorder is None else parse_clustering(zorder)
    return checked_definition(name, said.schema, parts, values, ordering, clustering)


def _read_file(file: Path) -> SchemaFile:
    from headwater.errors import HeadwaterError, InvalidSchema
    from headwater.sql.schema_files import SchemaKind, read_schema

    kind: Any = file.suffix.lower().removeprefix(".")
    if kind not in get_args(SchemaKind):
        raise InvalidSchema(f'schema file "{file}" is of no known kind', hint="Use a .json, .sql or .avsc file.")
    try:
        return read_schema(file.read_text(encoding="utf-8-sig"), kind)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSchema(f'schema file "{file}" cannot be read', detail=f"{error}.") from None
    except HeadwaterError as error:
        raise type(error)(f'schema file "{file}": {error.message}', detail=error.detail, hint=error.hint) from None


@app.command("list")
def list_topics(context: typer.Context, json_: Json = False, quiet: Quiet = False) -> None:
    """List the topics with their sizes."""
    from headwater.cli.formats import json_objects, write_result
    from headwater.serving.result import Result
    from headwater.sql.statements import ShowTopics

    session = session_of(context)
    result = session.lake.execute(ShowTopics())
    if session.screen.json:
        session.screen.write(json.dumps(json_objects(result), ensure_ascii=False) + "\n")
        return
    table = result.arrow()
    if not table.num_rows:
        session.screen.note("no topics yet; `headwater topic create` makes one")
        return
    if table["damage"].null_count == table.num_rows:
        table = table.drop_columns("damage")
    write_result(Result(table.schema, iter(table.to_batches())), "table", session.screen, None)


@app.command("describe")
def describe(context: typer.Context, name: Name, json_: Json = False, quiet: Quiet = False) -> None:
    """Show a topic's columns, options, position and size."""
    from headwater.cli.formats import write_result
    from headwater.sql.statements import DescribeTopic

    session = session_of(context)
    result = session.lake.execute(DescribeTopic(name))
    if session.screen.json:
        session.screen.write(json.dumps(dict(result.info), ensure_ascii=False, default=str) + "\n")
        return
    write_result(result, "table", session.screen, None)
    session.screen.write("\n" + "".join(f"{line}\n" for line in _facts(result.info)))


def _facts(about: Any) -> list[str]:
    facts = {
        "description": about.get("description"),
        "records": f"{about['records']:,} ({about['tail']:,} of them in the log)",
        "offsets": f"committed up to {about['committed_offset']}, next {about['next_offset']}",
        "files": f"{counted(about['files'], 'file')}, {sized(about['bytes'])}",
        "partitioned by": ", ".join(about["partitioned_by"]),
        "ordered by": ", ".join(about["ordered_by"]),
        "clustered by": ", ".join(about["clustered_by"]),
        "options": ", ".join(f"{name} = {value}" for name, value in _set_options(about["options"])),
        "snapshot": about["snapshot"],
        "location": about["location"],
    }
    return [f"{name + ':':<16}{fact}" for name, fact in facts.items() if fact not in (None, "")]


def _set_options(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those that are not at their defaults."""
    from headwater.sql.options import render_options
    from headwater.types import TopicOptions

    defaults = render_options(TopicOptions())
    return [(name, value) for name, value in options.items() if value != defaults.get(name) and name != "description"]


@app.command("alter")
def alter(
    context: typer.Context,
    name: Name,
    changes: Annotated[
        list[str],
        typer.Argument(metavar="CHANGE...", help="Such as 'ADD COLUMN note STRING', 'RENAME COLUMN a TO b'."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change a topic's columns, options, partitioning or ordering: all changes are made, or none."""
    from headwater.cli.work import spark_spinner
    from headwater.sql.alter import alter_of

    session = session_of(context)
    statement = alter_of(name, changes, dry_run=dry_run)
    with spark_spinner(session.lake, session.screen, lambda: "checking the topic's rows"):
        result = session.worker.run(lambda cancel: session.lake.execute(statement, cancel))
    if session.screen.json:
        session.screen.write(json.dumps(dict(result.info), ensure_ascii=False, default=str) + "\n")
        return
    for notice in result.notices:
        session.screen.note(f"note: {notice}")
    if not session.screen.quiet:
        would = "would be done: " if dry_run else ""
        session.screen.write("".join(f"{would}{row['effect']}\n" for row in result.rows()))


@app.command("schemas")
def schemas(context: typer.Context, name: Name, json_: Json = False, quiet: Quiet = False) -> None:
    """Show the columns that a topic has had, and what changed when."""
    from headwater.cli.formats import json_objects
    from headwater.sql.statements import ShowSchemas

    session = session_of(context)
    result = session.lake.execute(ShowSchemas(name))
    if session.screen.json:
        session.screen.write(json.dumps(json_objects(result), ensure_ascii=False) + "\n")
        return
    for row in result.rows():
        session.screen.write("".join(f"{line}\n" for line in _schema_lines(row)))


def _schema_lines(row: Any) -> list[str]:
    since = f", since {row['since']}" if row["since"] else ""
    snapshot = f", snapshot {row['snapshot']}" if row["snapshot"] is not None else ""
    head = f"schema {row['schema']}{' (current)' if row['current'] else ''}{since}{snapshot}"
    return [head, f"  {row['columns']}", *(f"  * {change}" for change in row["changes"])]


@app.command("drop")
def drop(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if there is no such topic.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Drop a topic with all of its records."""
    from headwater.sql.statements import DropTopic

    session = session_of(context)
    if not yes:
        confirm_drop(session.screen, "topic", name, "records")
    say_done(session, session.lake.execute(DropTopic(name, if_exists)))
