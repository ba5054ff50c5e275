"""One run of the command line: which lake it is about, and how it answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.lean import skip_pandas
from headwater.cli.screen import Screen

if TYPE_CHECKING:
    from headwater.cli.work import Worker
    from headwater.client import LakeLike

CONFIG_FILE = "headwater.toml"


class Session:
    """The global options, and the lake once a command asks for it."""

    def __init__(self, lake: Path | None, url: str | None, screen: Screen) -> None:
        self.path = lake
        self.url = url
        self.screen = screen
        self._lake: LakeLike | None = None
        self._worker: Worker | None = None

    @property
    def lake(self) -> LakeLike:
        """The lake, opened on first use."""
        if self._lake is None:
            self._lake = self._open_remote() if self.url else self.local()
        return self._lake

    def local(self) -> Any:
        """The lake in a folder, open in this process."""
        skip_pandas()
        from headwater.engine import Lake

        return Lake.open(find_lake(self.path))

    def _open_remote(self) -> LakeLike:
        skip_pandas()
        from headwater.client import RemoteLake

        return RemoteLake(str(self.url))

    @property
    def worker(self) -> Worker:
        """The thread in which statements run, so that Ctrl-C reaches the main one."""
        if self._worker is None:
            from headwater.cli.work import Worker

            self._worker = Worker(self.screen)
        return self._worker

    def close(self) -> None:
        """Close what was opened."""
        if self._worker is not None:
            self._worker.close()
        if self._lake is not None:
            self._lake.close()

    def refuse_url(self, command: str) -> None:
        """Say that a command works on a folder only."""
        if self.url:
            raise typer.BadParameter(f"`{command}` works on a lake's folder: leave --url and HEADWATER_URL out.")


def find_lake(given: Path | None) -> Path:
    """The lake that is meant: the given one, else HEADWATER_LAKE, else this folder or the nearest one above it."""
    if given is not None:
        return given
    if named := os.environ.get("HEADWATER_LAKE"):
        return Path(named)
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / CONFIG_FILE).exists()), Path())


def session_of(context: typer.Context) -> Session:
    """The run's session, which the root command has made."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def _flag(name: str) -> Callable[[typer.Context, bool], bool]:
    def set_flag(context: typer.Context, value: bool) -> bool:
        if value and isinstance(context.obj, Session):
            setattr(context.obj.screen, name, True)
        return value

    return set_flag


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document; errors too, on stderr.", callback=_flag("json"))
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results only.", callback=_flag("quiet"))]
"""Both are taken before and after the command, because people type them in both places."""
