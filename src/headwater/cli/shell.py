"""The SQL shell: statements over several lines, history, completion, timing, plans; Ctrl-C stops a running query."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from headwater import __version__
from headwater.cli.completer import SqlCompleter
from headwater.cli.failures import debugging, report, report_bug, state_folder
from headwater.cli.screen import timed
from headwater.cli.session import Session
from headwater.cli.sql import show
from headwater.cli.work import spark_spinner
from headwater.errors import HeadwaterError, QueryCancelled

if TYPE_CHECKING:
    from headwater.serving.query import Cancel
    from headwater.sql.statements import Statement

PROMPT = "headwater> "
MORE = "      ...> "
HELP = """\
Statements end with a semicolon and may span lines: SELECT, EXPLAIN, DELETE, UPDATE, FLUSH;
CREATE, DROP, SHOW and DESCRIBE of TOPIC and MATERIALIZED VIEW;
ALTER, REFRESH, VERIFY and COMPACT of MATERIALIZED VIEW, SHOW REFRESHES.

  \\?            this help
  \\d            the topics; \\d NAME describes one
  \\dv           the materialized views; \\dv NAME describes one
  \\timing       time after each statement: on or off
  \\explain      the plan before each query: \\explain on, \\explain off
  \\q            leave; Ctrl-D too

Ctrl-C stops a running query or clears the line. Tab completes keywords, topics, views and columns.
"""


class Shell:
    """What the shell remembers between statements."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.completer = SqlCompleter(session.lake)
        self.explain = False

    def run(self, text: str) -> bool:
        """Run what was typed; False when the shell should end."""
        command = text.strip()
        if command.startswith("\\"):
            return self._command(command.rstrip(";").split())
        try:
            self._statements(text)
        except KeyboardInterrupt:
            self.session.screen.note("stopped")
        except QueryCancelled:
            self.session.screen.note("stopped")
        except HeadwaterError as error:
            report(error, self.session.screen)
        return True

    def _statements(self, text: str) -> None:
        from headwater.sql.parse import parse_script
        from headwater.sql.statements import CreateStream, CreateTopic, CreateView, DropStream, DropTopic, DropView

        for statement in parse_script(text):
            self._statement(statement)
            if isinstance(statement, CreateTopic | DropTopic | CreateView | DropView | CreateStream | DropStream):
                self.completer.forget()

    def _statement(self, statement: Statement) -> None:
        from headwater.sql.statements import Explain, Query

        started = time.perf_counter()
        lake, screen, worker = self.session.lake, self.session.screen, self.session.worker

        def work(cancel: Cancel) -> None:
            if self.explain and isinstance(statement, Query):
                show(self.session, Explain(statement), cancel)
            show(self.session, statement, cancel)

        with spark_spinner(lake, screen):
            worker.run(work)
        if screen.shows_timing and not isinstance(statement, Query):  # a query's rows come with their time
            screen.aside(timed(time.perf_counter() - started))

    def _command(self, words: list[str]) -> bool:
        screen = self.session.screen
        match words:
            case ["\\q" | "\\quit" | "\\exit"]:
                return False
            case ["\\?" | "\\h" | "\\help"]:
                screen.write(HELP)
            case ["\\timing"]:
                self._set_timing(not screen.shows_timing)
            case ["\\timing", "on" | "off" as state]:
                self._set_timing(state == "on")
            case ["\\explain"]:
                self._set_explain(not self.explain)
            case ["\\explain", "on" | "off" as state]:
                self._set_explain(state == "on")
            case ["\\d"]:
                return self.run("SHOW TOPICS;")
            case ["\\d", name]:
                return self.run(f"DESCRIBE TOPIC {name};")
            case ["\\dv"]:
                return self.run("SHOW MATERIALIZED VIEWS;")
            case ["\\dv", name]:
                return self.run(f"DESCRIBE MATERIALIZED VIEW {name};")
            case _:
                screen.note(f"unknown command {words[0]}; \\? lists them")
        screen.flush()
        return True

    def _set_timing(self, on: bool) -> None:
        self.session.screen.shows_timing = on
        self.session.screen.note(f"timing is {'on' if on else 'off'}")

    def _set_explain(self, on: bool) -> None:
        self.explain = on
        self.session.screen.note(f"explain is {'on' if on else 'off'}")


def run_shell(session: Session) -> None:
    """Read, run, print, until Ctrl-D or \\q."""
    shell = Shell(session)
    prompt = _prompt(shell)
    session.screen.aside(f"headwater {__version__} — {_where(session)} — \\? for help, \\q to leave")
    while True:
        try:
            text = prompt.prompt(PROMPT, prompt_continuation=_continuation)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if text.strip() and not shell.run(text):
                return
        except Exception as failed:  # a bug must not take the session with it
            if debugging():
                raise
            report_bug(failed, session.screen)


def _where(session: Session) -> str:
    paths = getattr(session.lake, "paths", None)
    return str(paths.root) if paths is not None else str(session.url)


def _continuation(width: int, line: int, wrapped: int) -> AnyFormattedText:
    return MORE


def _prompt(shell: Shell) -> PromptSession[str]:
    return PromptSession(
        history=_history(),
        completer=shell.completer,
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        editing_mode=EditingMode.EMACS,
        enable_open_in_editor=True,
    )


def _history() -> History:
    file = state_folder() / "history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError as error:
        sys.stderr.write(f"note: history is not kept: {error}\n")
        return InMemoryHistory()
    return FileHistory(str(file))


def is_ready(text: str) -> bool:
    """Whether Enter runs what was typed: a command of the shell, or statements up to a semicolon."""
    from headwater.sql.parse import is_complete

    return text.lstrip().startswith("\\") or is_complete(text)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    ready = Condition(lambda: is_ready(get_app().current_buffer.text))

    @keys.add("enter", filter=ready)
    def _run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return keys
