"""`headwater backup`, `restore` and `relocate`: copies of a lake, and lakes that were moved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.screen import Screen, counted, sized
from headwater.cli.session import Json, Quiet, find_lake, session_of

if TYPE_CHECKING:
    from headwater.backup.relocate import Relocation


def register(app: typer.Typer) -> None:
    """Add these commands to the root command."""
    app.command("backup")(backup)
    app.command("restore")(restore)
    app.command("relocate")(relocate)


def backup(
    context: typer.Context,
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="The folder of the backup; made if missing, else brought up to date.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all of the backup again, and replace copies that are damaged.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Back the lake up into a folder, also while a service runs; a second run copies only what is new."""
    session = session_of(context)
    session.refuse_url("backup")
    screen = session.screen

    def show(numbers: Mapping[str, Any]) -> None:
        copied = numbers["copied_files"], numbers["copied_bytes"]
        screen.progress(f"{counted(copied[0], 'file')} copied, {sized(copied[1])}")

    report = session.lake.backup(destination, verify=verify, progress=show).as_dict()  # type: ignore[attr-defined]
    if screen.json:
        screen.write(json.dumps(report) + "\n")
    else:
        screen.write(
            f"backup of {report['location']} in {destination}: {counted(report['files'], 'file')}, "
            f"{sized(report['bytes'])}; {counted(report['copied_files'], 'file')} copied, "
            f"{sized(report['copied_bytes'])}\n"
        )


def restore(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The folder of the backup.")],
    place: Annotated[Path, typer.Argument(metavar="NEW_PLACE", help="The folder of the new lake: new or empty.")],
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a lake from a backup, in another folder. It has its own id, so the original can stay in use."""
    session = session_of(context)
    session.refuse_url("restore")
    from headwater.engine.copies import restore_lake

    screen = session.screen

    def show(numbers: Mapping[str, Any]) -> None:
        screen.progress(f"{numbers['restored_files']} of {counted(numbers['files'], 'file')} restored")

    _say(screen, restore_lake(source, place, progress=show), f"lake restored in {place.resolve()}")


def relocate(
    context: typer.Context,
    copy: Annotated[
        bool,
        typer.Option("--copy", help="The folder is a copy: make it a separate lake with its own id."),
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Update a lake's table locations after its folder was moved.

    Stop the service, move the folder, then run this command in it. If it is interrupted, run it again.
    """
    session = session_of(context)
    session.refuse_url("relocate")
    from headwater.engine.copies import relocate_lake

    done = relocate_lake(find_lake(session.path), copy=copy)
    if done.old == done.new and not done.tables:
        _say(session.screen, done, f"lake is already in {done.new}")
    else:
        said = (
            f"copy of {done.old} is a lake of its own in {done.new}"
            if copy
            else f"lake moved from {done.old} to {done.new}"
        )
        _say(session.screen, done, said)


def _say(screen: Screen, done: Relocation, text: str) -> None:
    if screen.json:
        screen.write(json.dumps(done.as_dict()) + "\n")
    else:
        screen.write(f"{text}: {counted(done.tables, 'table')}\n")
        for each in done.damaged:
            screen.note(f"damaged: {each.table}: {each.error}")
        if done.stopped:
            screen.note(f"stopped, because the original may still send to Kafka: {', '.join(done.stopped)}")
            screen.note("Start each with `headwater stream start NAME` once this lake is to send.")
    if done.damaged:
        screen.note("Run `headwater doctor --deep`, which names all damage and what can be repaired.")
        raise typer.Exit(1)
