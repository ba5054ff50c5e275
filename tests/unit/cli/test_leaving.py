"""How the process ends: quickly, but not before everything is said and done."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def ended(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that prepares something and then runs the command line."""
    text = f"import sys\n{textwrap.dedent(program)}\nfrom headwater.cli.main import run\nrun()"
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--no-such-option", 2)])
def test_exit_codes_stay(argument: str, code: int) -> None:
    assert ended("", argument).returncode == code


def test_exit_handlers_run_once_and_what_is_buffered_goes_out() -> None:
    done = ended("import atexit; atexit.register(sys.stdout.write, 'handled ' * 10_000)", "--version")
    assert (done.returncode, done.stdout.count("handled ")) == (0, 10_000)
    assert done.stdout.startswith("headwater ")


@pytest.mark.parametrize("start", ["threading.Thread(target=finish).start()", "ThreadPoolExecutor(2).submit(finish)"])
def test_another_thread_is_waited_for(start: str) -> None:
    program = f"""
        import threading, time
        from concurrent.futures import ThreadPoolExecutor
        def finish():
            while threading.main_thread().is_alive() and not leaving.wait(0.01):
                pass
            print("finished")
        leaving = threading.Event()
        import headwater.cli.main as cli
        leave = cli._leave
        cli._leave = lambda code: (leaving.set(), leave(code))
        {start}
    """
    done = ended(program, "--version")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "finished")


def test_a_daemon_is_not_and_nothing_is_taken_apart() -> None:
    """A thread that is just ending made DuckDB complain about what it still held."""
    program = """
        import threading, time
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        class Held:
            def __del__(self): print("taken apart", file=sys.stderr)
        held = Held()
    """
    done = ended(program, "--version")
    assert (done.returncode, done.stderr) == (0, "")
