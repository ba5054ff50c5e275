"""`headwater doctor`: checks of this machine and this lake, with advice and repairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.screen import counted
from headwater.cli.session import CONFIG_FILE, Json, Quiet, Session, find_lake, session_of

if TYPE_CHECKING:
    from headwater.cli.checks import Check
    from headwater.cli.screen import Screen


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file of every table: checksums, manifests, offsets, orphans.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired without data loss, after confirmation.")
    ] = False,
    start_new_log: Annotated[
        bool,
        typer.Option(
            "--start-new-log",
            help="With --repair: continue without a lost or damaged state.db; says first what is lost. The service "
            "must be stopped.",
        ),
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="TABLE",
            help="With --repair: drop this table, such as topics.orders, which cannot be read, and its records.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Run repairs without confirmation.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the environment and the lake; exit with 1 if something is broken."""
    session = session_of(context)
    options = [*(["--start-new-log"] if start_new_log else []), *(f"--drop {table}" for table in drop or ())]
    if options and not repair:
        raise typer.BadParameter(f"{options[0].split()[0]} needs --repair.")
    checks = list(_all_checks(session, deep))
    if repair and _repaired(checks, session.screen, yes, options):
        checks = list(_all_checks(session, deep))
    failed = any(check.status == "fail" for check in checks)
    if session.screen.json:
        document = {"ok": not failed, "checks": [check.as_dict() for check in checks]}
        session.screen.write(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        _print(checks, session.screen)
    raise typer.Exit(1 if failed else 0)


def _repaired(checks: Iterable[Check], screen: Screen, yes: bool, options: Collection[str]) -> bool:
    """Run the repairs that the checks offer, after confirmation; whether anything was done."""
    offered = [check.repair for check in checks if check.repair is not None]
    repairs = [each for each in offered if each.option is None]
    # Several checks may offer the repair of one option; it is done once.
    repairs += {each.option: each for each in offered if each.option in options}.values()
    for option in options:
        if option not in {each.option for each in offered}:
            raise typer.BadParameter(f"{option}: no check found anything that this would repair.")
    if not repairs:
        screen.note("nothing can be repaired without an explicit option; see the findings")
        return False
    for each in repairs:
        screen.note(f"can be repaired: {each.what}")
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter("add --yes: there is no terminal for the confirmation.")
    if not yes and not typer.confirm(f"Run {counted(len(repairs), 'repair')}?", err=True):
        return False
    for each in repairs:
        each.run()
        screen.note(f"repaired: {each.what}")
    return True


def _all_checks(session: Session, deep: bool) -> Iterable[Check]:
    from headwater.cli.checks import Check, check_environment

    folder = find_lake(session.path)
    yield from check_environment(folder)
    if session.url:
        yield _check_service(session)
    elif session.path is not None or (folder / CONFIG_FILE).exists():
        from headwater.cli.checks_lake import check_lake

        yield from check_lake(folder, deep=deep)
    else:
        yield Check("lake", "warn", "no lake here", "Name one with -C, or create one with `headwater init`.")


def _check_service(session: Session) -> Check:
    from headwater.cli.checks import Check
    from headwater.errors import HeadwaterError
    from headwater.sql.statements import ShowTopics

    try:
        topics = len(session.lake.execute(ShowTopics()).rows())
    except HeadwaterError as error:
        return Check("service", "fail", str(error), error.hint)
    return Check("service", "ok", f"{session.url} answers; it has {topics} topics")


def _print(checks: Iterable[Check], screen: Screen) -> None:
    marks = {"ok": screen.green("ok  "), "warn": screen.yellow("warn"), "fail": screen.red("FAIL")}
    for check in checks:
        if screen.quiet and check.status == "ok":
            continue
        screen.write(f"{marks[check.status]}  {check.name + ':':<22} {check.message}\n")
        if check.action and check.status != "ok":
            screen.write(f"{'':28} → {check.action}\n")
