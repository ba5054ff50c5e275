"""`headwater tail`: the rows of a topic, or the changes of a view, as they come, until Ctrl-C."""

from __future__ import annotations

import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.screen import Screen, counted
from headwater.cli.session import Json, Quiet, session_of

if TYPE_CHECKING:
    import pyarrow as pa


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("tail")(tail)


def tail(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topic or a materialized view.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="START",
            help="earliest, latest, an offset (of a view: a snapshot), a time, or a duration such as '10 min' ago.",
        ),
    ] = "latest",
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="A condition; rows that do not meet it are left out.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="Columns, separated by commas. Default: all.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="End after N rows.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for what comes, or end when everything was shown.")
    ] = True,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show records as they are acknowledged, in the order of offsets. With --json, one JSON object per line.

    Of a view, the rows that each refresh changes: `+` new, `-` gone, `~` a group as it is now. Ctrl-C ends it.
    """
    from headwater.cli.work import spark_spinner

    session = session_of(context)
    screen, shown = session.screen, 0
    rows = _printer(screen)
    try:
        with spark_spinner(session.lake, screen):
            found = session.lake.tail(
                name, start, where=where, columns=columns.split(",") if columns else (), follow=follow, limit=limit
            )
            _end_with_reader()
            for batch in found.batches():
                rows(batch)
                shown += batch.num_rows
    except KeyboardInterrupt:
        screen.clear()
    screen.aside(counted(shown, "row"))


def _end_with_reader() -> None:
    """End when whoever reads our output is gone, also while there is nothing to write: as Ctrl-C would."""
    if sys.stdout.isatty():
        return
    try:
        hangs_up = select.poll()
        hangs_up.register(sys.stdout.fileno(), 0)  # an error is told unasked; a file never has one
    except (OSError, ValueError):
        return

    def wait() -> None:
        events = hangs_up.poll()
        if any(event & select.POLLERR for _, event in events):
            signal.raise_signal(signal.SIGINT)

    threading.Thread(target=wait, name="headwater-reader", daemon=True).start()


def _printer(screen: Screen) -> Any:
    if not screen.json:
        return LiveTable(screen).print

    def lines(batch: pa.RecordBatch) -> None:
        from headwater.storage.encode import to_json_lines

        screen.write_bytes(to_json_lines(batch))

    return lines


class LiveTable:
    """A table that grows: its columns are as wide as what was seen so far, and named again when they change."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._names: list[str] | None = None
        self._widths: dict[str, int] = {}

    def print(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        from headwater.cli.formats import columns_of
        from headwater.cli.table import Layout, lay_out, render

        screen = self._screen
        columns = columns_of(pa.Table.from_batches([batch]))
        layout = lay_out(columns, screen.width if screen.is_terminal else None)
        names = [column.name for column in layout.columns]
        if names != self._names:
            self._widths = {}
        wide = tuple(max(width, self._widths.get(name, 0)) for name, width in zip(names, layout.widths, strict=True))
        lines = render(Layout(layout.columns, wide, layout.left_out), screen.dim, screen.bold)
        self._widths = dict(zip(names, wide, strict=True))
        screen.write("\n".join(lines if names != self._names else lines[2:]) + "\n")
        screen.flush()
        self._names = names
