"""The SQL shell and what a terminal gets, driven through a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = "from headwater.cli.main import run; run()"
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
WHERE_IS_THE_CURSOR = b"\x1b[6n"


class Terminal:
    """A program in a terminal of 40 lines and 100 columns."""

    def __init__(self, *arguments: str, cwd: Path, **env: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
            os.chdir(cwd)
            kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
            clean = {**kept, "TERM": "xterm", "XDG_STATE_HOME": str(cwd / ".state"), **env}
            os.execve(sys.executable, [sys.executable, "-c", PROGRAM, *arguments], clean)
        self.raw = b""

    @property
    def text(self) -> str:
        """What was printed since the last `expect`, without escapes."""
        return ESCAPES.sub(b"", self.raw).decode(errors="replace").replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def expect(self, pattern: str, seconds: float = 90) -> str:
        """Read until the text matches; what was read."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern!r} never came:\n{self.text}"
            if not self._read():
                break
        text, self.raw = self.text, b""
        assert re.search(pattern, text), f"the program ended before {pattern!r}:\n{text}"
        return text

    def answer(self, pattern: str, seconds: float = 90) -> str:
        """Read until the text matches and the shell asks again: only then does it read keys as keys."""
        return self.expect(rf"{pattern}[\s\S]*headwater>", seconds)

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 0.2)[0]:
            return True
        try:
            got = os.read(self.fd, 65536)
        except OSError:
            return False
        if WHERE_IS_THE_CURSOR in got:
            os.write(self.fd, b"\x1b[1;1R")
        self.raw = (self.raw + got)[-65536:]
        return bool(got)

    def end(self, seconds: float = 90) -> int:
        """Wait for the program; its exit code, or -9 if it had to be killed."""
        deadline = time.monotonic() + seconds
        while self._read() and time.monotonic() < deadline:
            pass
        if time.monotonic() >= deadline:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import headwater

    folder = tmp_path_factory.mktemp("shell") / "lake"
    with headwater.init(folder) as made:
        made.sql("CREATE TOPIC orders (order_id BIGINT NOT NULL, customer STRING, remark STRING)")
        rows = [{"order_id": n, "customer": None if n % 2 else f"c{n}", "remark": f"{n} " * 50} for n in range(2000)]
        made.topic("orders").append(rows)
    return folder


@pytest.fixture
def shell(lake: Path) -> Iterator[Terminal]:
    terminal = Terminal("sql", cwd=lake)
    terminal.expect("headwater>")
    yield terminal
    terminal.type("\\q\r")
    assert terminal.end() == 0


def test_a_statement_over_lines_an_error_and_commands(shell: Terminal) -> None:
    shell.type("SELECT order_id, customer\r")
    shell.expect(r"\.\.\.>")
    shell.type("FROM orders ORDER BY 1 LIMIT 2;\r")
    shown = shell.answer(r"2 rows · .* · duckdb")
    assert " order_id │ customer\n──────────┼──────────\n        0 │ c0\n        1 │ NULL\n" in re.sub(
        " +\n", "\n", shown
    )
    shell.type("SHW TOPICS;\r")
    assert "^^^" in shell.answer("Did you mean SHOW")
    shell.type("\\explain on\r")
    shell.answer("explain is on")
    shell.type("SELECT max(order_id) AS m FROM orders;\r")
    shell.answer(r"engine: [a-z]+[\s\S]*1999[\s\S]*1 row")
    shell.type("\\timing\r")
    shell.answer("timing is off")
    shell.type("\\d orders\r")
    shell.answer(r"customer[\s\S]*5 rows")
    shell.type("\\nonsense\r")
    shell.answer("unknown command")
    shell.type("\\?\r")
    shell.answer("Tab completes")


def test_completion_of_topics_columns_and_keywords(shell: Terminal) -> None:
    shell.type("sel\t")
    shell.expect("select")
    shell.type(" custo\t")
    shell.expect("customer")
    shell.type(" from ord\t")
    shell.expect("orders")
    shell.type(" where order_id = 4;\r")
    shell.answer(r"c4[\s\S]*1 row")


def test_ctrl_c_stops_a_query_and_the_shell_goes_on(shell: Terminal) -> None:
    shell.type("SELECT sum(a.order_id * b.order_id % (c.order_id + 1)) AS s FROM orders a, orders b, orders c;\r")
    time.sleep(2)
    started = time.monotonic()
    shell.type("\x03")
    shell.answer("stopped")
    assert time.monotonic() - started < 40
    shell.type("SELECT count(*) AS n FROM orders;\r")
    shell.answer(r"2000[\s\S]*1 row")


def test_history_is_kept_between_sessions(lake: Path) -> None:
    first = Terminal("sql", cwd=lake)
    first.expect("headwater>")
    first.type("SELECT 12345 AS remembered;\r")
    first.answer("1 row")
    first.type("\x04")
    assert first.end() == 0
    second = Terminal("sql", cwd=lake)
    second.expect("headwater>")
    second.type("\x1b[A")
    second.expect("12345")
    second.type("\x15\x04")  # empties the line, then ends: both are read by one prompt
    assert second.end() == 0


def test_tables_on_a_terminal_fit_and_say_what_they_leave_out(lake: Path) -> None:
    terminal = Terminal("query", "SELECT order_id, remark FROM orders ORDER BY order_id", cwd=lake)
    shown = terminal.expect(r"100 rows · ")
    assert "only the first 100 rows are shown" in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "7 7 7 7" in shown
    assert "…" in shown
    assert terminal.end() == 0


def test_colours_only_where_they_are_wanted(lake: Path) -> None:
    def heading(**env: str) -> bytes:
        terminal = Terminal("query", "SELECT 1 AS one", cwd=lake, **env)
        while b"1 row" not in terminal.raw and terminal._read():
            pass
        raw = terminal.raw
        assert terminal.end() == 0
        return raw

    assert b"\x1b[1m" in heading()
    assert b"\x1b[" not in heading(NO_COLOR="1").replace(b"\x1b[K", b"")


def test_drop_asks_a_person(lake: Path) -> None:
    terminal = Terminal("topic", "drop", "orders", cwd=lake)
    terminal.expect("Drop topic")
    terminal.type("n\r")
    terminal.expect("nothing was dropped")
    assert terminal.end() == 1


def test_ctrl_c_ends_a_query_command(lake: Path) -> None:
    endless = "SELECT a.order_id FROM orders a CROSS JOIN orders b CROSS JOIN orders c"
    terminal = Terminal("query", endless, "--csv", cwd=lake)
    terminal.expect(r"\d+\n\d+\n")
    terminal.type("\x03")
    terminal.expect("cancelling")
    assert terminal.end() == 130
