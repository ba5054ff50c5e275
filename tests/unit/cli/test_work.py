"""The line that tells a person at a terminal that work goes on."""

from __future__ import annotations

import io
import sys
import threading
from typing import Literal

import pytest

from headwater.cli.screen import ERASE, Screen
from headwater.cli.work import spark_spinner


class Terminal(io.StringIO):
    """What stderr is when a person looks at it; can be asked to wait until something was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.changed:
            self.changed.notify_all()
            return super().write(text)

    def shows(self, text: str) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: text in self.getvalue(), 10)


class Engine:
    spark_state: Literal["not started", "starting", "ready"] = "not started"


def stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in the place of stderr; not a fixture, since pytest puts its own there before a test begins."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_it_shows_that_spark_starts_and_then_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch)
    lake, done = Engine(), ["committing"]
    with spark_spinner(lake, Screen(), lambda: done[-1]):
        assert terminal.shows("committing… 0 s")
        lake.spark_state = "starting"
        assert terminal.shows("starting Spark… 0 s")
        lake.spark_state = "ready"
        done.append("committing, 10 records in 1 commit so far")
        assert terminal.shows("10 records in 1 commit so far… 0 s")
    assert terminal.getvalue().endswith(ERASE)


def test_it_shows_nothing_when_there_is_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch)
    with spark_spinner(Engine(), Screen()):
        threading.Event().wait(0.3)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("screen", [Screen(quiet=True), Screen(json=True)], ids=["quiet", "json"])
def test_it_shows_nothing_to_a_program(monkeypatch: pytest.MonkeyPatch, screen: Screen) -> None:
    terminal = stderr(monkeypatch)
    with spark_spinner(Engine(), screen, lambda: "committing"):
        threading.Event().wait(0.3)
    assert terminal.getvalue() == ""
