"""Whatever people store, it cannot steer the terminal of those who look at it."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.screen import Screen
from headwater.engine import Lake
from headwater.observability.logs import FieldsFormatter
from headwater.observability.terminal import terminal_text

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\r\x9b1mover\u202etxet\x7f"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[K")


@given(st.text())
def test_nothing_but_printable_text_line_ends_and_tabs_is_left(text: str) -> None:
    cleaned = terminal_text(text)
    assert all(char in "\n\t" or char.isprintable() for char in cleaned)
    assert terminal_text(cleaned) == cleaned


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_a_screen_styles_its_own_texts_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown, screen = Terminal(), Screen()
    monkeypatch.setattr(sys, "stdout", shown)
    screen.write(screen.bold("a\x1b[8m") + "\x1b[31mb\n\ufdd01\ufdd1")
    assert shown.getvalue() == "\x1b[1ma·[8m\x1b[0m·[31mb\n·1·"
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    screen.write(EVIL)
    assert file.getvalue() == EVIL  # data for a program stays data


def test_lines_of_a_log() -> None:
    record = logging.LogRecord("headwater", logging.INFO, "x", 1, f"said {EVIL}", (), None)
    record.stream = f"a\n2026 INFO forged{EVIL}"
    line = FieldsFormatter().format(record)
    assert STEERING.search(line) is None
    assert len(line.splitlines()) == 1


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil") / "lake"
    with Lake.init(folder) as made:
        evil = EVIL.replace("'", "''")
        made.sql(f"CREATE TOPIC t (s STRING COMMENT '{evil}') COMMENT '{evil}'")
        made.topic("t").append([{"s": EVIL}])
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "describe", "t"),
        ("query", "SELECT s, length(s) AS n FROM t", "--csv"),
        ("sql", f"SELECT `{EVIL}` FROM t"),
        ("tail", "t", "--from", "earliest", "--no-follow"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_on_a_terminal(lake: Path, command: tuple[str, ...]) -> None:
    output = on_terminal("-C", str(lake), *command)
    assert "red" in output
    assert STEERING.search(OURS.sub("", output.replace("\r\n", "\n").replace("\r\x1b[K", ""))) is None, ascii(output)


def on_terminal(*arguments: str) -> str:
    """What the command shows on a terminal, stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # how a terminal tells that nobody writes to it any more
            break
        if not part:
            break
        shown += part
    process.wait(120)
    os.close(leader)
    return shown.decode()
