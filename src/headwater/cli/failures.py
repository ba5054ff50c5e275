"""The one place where an error becomes what a person, or a program with --json, sees of it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from headwater.cli.screen import Screen
from headwater.errors import HeadwaterError, system_error

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

_RESERVED = frozenset({"type", "title", "status", "detail", "code", "hint"})


def debugging() -> bool:
    """Whether stack traces are wanted."""
    return os.environ.get("HEADWATER_DEBUG", "") not in ("", "0")


def state_folder() -> Path:
    """Where the shell's history and the log of unexpected errors are kept."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "headwater"


def as_problem(error: HeadwaterError) -> dict[str, Any]:
    """The error as the problem document that the HTTP API would send."""
    members = {
        "type": f"urn:headwater:error:{error.code}",
        "title": error.message,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "hint": error.hint,
        **{key: value for key, value in error.data.items() if key not in _RESERVED},
    }
    return {key: value for key, value in members.items() if value is not None}


def as_text(error: HeadwaterError, screen: Screen) -> str:
    """The error as lines for a person."""
    lines = [f"{screen.red('error')}: {error.message}"]
    lines += [f"  {line}" for line in (error.detail or "").splitlines()]
    lines += [f"  {screen.bold('hint', sys.stderr)}: {line}" for line in (error.hint or "").splitlines()]
    return "\n".join(lines) + "\n"


def report(error: HeadwaterError, screen: Screen) -> int:
    """Show an expected error on stderr; the exit code."""
    if screen.json:
        text = json.dumps(as_problem(error), ensure_ascii=False, default=str) + "\n"
    else:
        text = as_text(error, screen)
    screen.complain(text)
    if debugging():
        traceback.print_exception(error)
    return FAILED


def report_usage(message: str, usage: str, screen: Screen) -> int:
    """Show that the command itself was wrong; the exit code."""
    if screen.json:
        problem = {
            "type": "urn:headwater:error:usage",
            "title": message.rstrip("."),
            "status": 400,
            "code": "usage",
            "hint": usage.strip(),
        }
        screen.complain(json.dumps(problem, ensure_ascii=False) + "\n")
    else:
        screen.complain(f"{usage}{screen.red('error')}: {message}\n")
    return WRONG_USAGE


def report_bug(failed: BaseException, screen: Screen) -> int:
    """Show that something happened which nobody expected, and keep its stack trace; the exit code."""
    if debugging():
        traceback.print_exception(failed)
        return FAILED
    if (known := system_error(failed)) is not None:
        return report(known, screen)
    log = _remember(failed)
    kept = f"The details are in {log}." if log else "Set HEADWATER_DEBUG=1 to see the details."
    bug = HeadwaterError(
        f"unexpected {type(failed).__name__}: {failed}",
        detail=f"This is a bug in headwater. {kept}",
        hint="Please report it together with the command that you ran.",
    )
    return report(bug, screen)


def _remember(failed: BaseException) -> Path | None:
    log = state_folder() / "errors.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.touch(mode=0o600)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as lines:
            lines.write(f"-- {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {sys.argv}\n")
            lines.writelines(traceback.format_exception(failed))
    except OSError:
        return None
    return log
