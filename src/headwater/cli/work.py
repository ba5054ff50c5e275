"""Running a statement while the main thread stays free for Ctrl-C, and saying so when Spark starts meanwhile."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.cli.failures import INTERRUPTED
from headwater.cli.screen import Screen

if TYPE_CHECKING:
    from headwater.serving.query import Cancel

T = TypeVar("T")

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TICK = 0.1


class Worker:
    """One thread for all statements of a run: the log keeps a connection for each thread that reads it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headwater-cli")

    def run(self, work: Callable[[Cancel], T]) -> T:
        """Do the work; Ctrl-C cancels it, a second one ends the process."""
        from headwater.serving.query import Cancel

        cancel = Cancel()
        future = self._pool.submit(work, cancel)
        try:
            wait([future])
        except KeyboardInterrupt:
            self._screen.note("cancelling…")
            cancel()
            self._last_chance(future)
            raise
        return future.result()

    def _last_chance(self, future: Future[Any]) -> None:
        try:
            wait([future])
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)  # a thread that does not listen cannot be ended in any other way

    def close(self) -> None:
        self._pool.shutdown()


@contextmanager
def spark_spinner(lake: object, screen: Screen, otherwise: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Show `starting Spark…` for as long as that lasts, if it happens inside; nothing without a terminal.

    While Spark does not start, `otherwise` says what is to be shown.
    """
    if not screen.shows_progress:
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(
        target=_spin, args=(lake, otherwise, screen, done), name="headwater-spinner", daemon=True
    )
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(lake: object, otherwise: Callable[[], str | None], screen: Screen, done: threading.Event) -> None:
    shown, since = None, 0.0
    for frame in itertools.cycle(SPINNER):
        if done.wait(TICK):
            break
        text = "starting Spark" if getattr(lake, "spark_state", None) == "starting" else otherwise()
        if text != shown:
            shown, since = text, time.perf_counter()
            screen.clear()
        if text is not None:
            screen.progress(f"{frame} {text}… {time.perf_counter() - since:.0f} s")
    if shown is not None:
        screen.clear()
