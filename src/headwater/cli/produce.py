"""`headwater produce`: a file or a stream into a topic, request by request, each acknowledged before the next."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwater.cli.screen import Screen, counted, sized, timed
from headwater.cli.session import Json, Quiet, Session, session_of

if TYPE_CHECKING:
    from headwater.client import LakeLike
    from headwater.errors import HeadwaterError
    from headwater.sources.reading import Chunk, Kind
    from headwater.topics.produce import Ack, Source

BATCH_BYTES = "8MB"
MAX_RECORD = 16 * 1024**2
MAX_ROWS = 64 * 1024
REPORT = 0.1


def register(app: typer.Typer) -> None:
    """Add this command to the root command."""
    app.command("produce")(produce)


@dataclass(frozen=True, slots=True)
class Sent:
    """What was acknowledged so far."""

    topic: str
    requests: int = 0
    rows: int = 0
    duplicates: int = 0
    dead: int = 0
    repeated: int = 0
    bytes: int = 0
    start: int | None = None
    end: int | None = None

    def with_ack(self, ack: Ack, size: int) -> Sent:
        """The sum after one more acknowledgement."""
        return replace(
            self,
            requests=self.requests + 1,
            rows=self.rows + ack.rows,
            duplicates=self.duplicates + ack.duplicates,
            dead=self.dead + ack.dead,
            repeated=self.repeated + (ack.rows if ack.repeated else 0),
            bytes=self.bytes + size,
            start=ack.offsets.start if self.start is None else self.start,
            end=ack.offsets.end,
        )

    @property
    def said(self) -> str:
        """`1,200 records (offsets 0 to 1199)`."""
        where = f" (offsets {self.start} to {(self.end or 0) - 1})" if self.rows and self.start is not None else ""
        return counted(self.rows, "record") + where


def produce(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to append to.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to send; `-`, the default, reads stdin.")] = "-",
    format: Annotated[
        Literal["ndjson", "json", "csv", "parquet", "arrow"] | None,
        typer.Option("--format", help="Default: by the file's extension; NDJSON on stdin."),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option("--producer", metavar="ID", help="Makes a second run of the same file store nothing twice."),
    ] = None,
    batch_bytes: Annotated[
        str, typer.Option("--batch-bytes", metavar="SIZE", help="About how much one request carries.")
    ] = BATCH_BYTES,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Append records from a file or stdin to a topic."""
    from headwater.sources.reading import open_input, read_chunks
    from headwater.topics.produce import Source

    session = session_of(context)
    kind, target = _kind(file, format), _size(batch_bytes)
    lake = session.lake
    max_record = int(getattr(getattr(lake, "settings", None), "max_record_bytes", MAX_RECORD))
    with open_input(file) as stream:
        live = file == "-" and producer is None and stat.S_ISFIFO(os.fstat(0).st_mode)
        chunks = read_chunks(stream, kind, target, max_record, live=live, max_rows=MAX_ROWS)
        sending = Sending(session, topic, file, _length(file))
        sending.run(chunks, Source("cli" if file == "-" else f"cli:{Path(file).name}", producer))


def _kind(file: str, given: Kind | None) -> Kind:
    from headwater.sources.reading import EXTENSIONS, kind_of

    if given is not None:
        return given
    if file == "-":
        return "ndjson"
    if guessed := kind_of(file):
        return guessed
    raise typer.BadParameter(
        f"the format of {file!r} is not clear from its name ({', '.join(EXTENSIONS)}): add --format."
    )


def _size(text: str) -> int:
    from headwater.errors import HeadwaterError
    from headwater.sql.units import parse_size

    try:
        size = parse_size(text)
    except HeadwaterError as error:
        raise typer.BadParameter(f"--batch-bytes: {error}") from None
    if not 1024 <= size <= 1024**3:
        raise typer.BadParameter("--batch-bytes is between 1KB and 1GB.")
    return size


def _length(file: str) -> int | None:
    """The input's size if that says how far one is."""
    from headwater.sources.reading import COMPRESSED

    if file == "-" or file.endswith((*COMPRESSED, ".parquet", ".arrow", ".feather", ".ipc")):
        return None
    return Path(file).stat().st_size


class Sending:
    """One run of `produce`: sends, counts, shows how far it is, and says what was stored however it ends."""

    def __init__(self, session: Session, topic: str, file: str, length: int | None) -> None:
        self._lake = session.lake
        self._screen = session.screen
        self._file = "stdin" if file == "-" else file
        self._length = length
        self._sent = Sent(topic)
        self._started = time.perf_counter()
        self._shown = 0.0
        self._stop = False
        self._busy = False

    def run(self, chunks: Iterator[Chunk], source: Source) -> None:
        """Send every chunk; Ctrl-C ends after the request that is under way."""
        from headwater.errors import HeadwaterError

        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            for sequence, chunk in enumerate(chunks):
                self._send(chunk, replace(source, sequence=sequence))
                if self._stop:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            self._screen.note(f"interrupted: {self._sent.said} had been acknowledged")
            raise
        except HeadwaterError as error:
            raise self._with_stored(error) from None
        finally:
            self._screen.clear()
            signal.signal(signal.SIGINT, before)
        self._summarise()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        # While a request is under way its outcome is not known: let it end, so that what is said is exact.
        if self._stop or not self._busy:
            raise KeyboardInterrupt
        self._stop = True
        self._screen.note("stopping after the request that is under way…")

    def _send(self, chunk: Chunk, source: Source) -> None:
        from headwater.errors import RecordsRejected
        from headwater.sources.reading import located

        self._busy = True
        try:
            ack = append(self._lake, self._sent.topic, chunk, source, self._screen)
        except RecordsRejected as error:
            raise located(error, chunk, self._file) from None
        finally:
            self._busy = False
        self._sent = self._sent.with_ack(ack, chunk.size)
        self._show_progress()

    def _show_progress(self) -> None:
        now = time.perf_counter()
        if now - self._shown < REPORT:
            return
        self._shown = now
        sent, seconds = self._sent, now - self._started
        done = f" · {min(100, 100 * sent.bytes // self._length)}%" if self._length else ""
        rate = f"{sent.rows / seconds:,.0f} rows/s" if seconds else ""
        self._screen.progress(f"{sent.topic}: {counted(sent.rows, 'row')} · {sized(sent.bytes)}{done} · {rate}")

    def _with_stored(self, error: HeadwaterError) -> HeadwaterError:
        """The error, which also says what had been stored before it."""
        sent = self._sent
        if not sent.requests:
            return error
        stored = f"Before that, {sent.said} of {self._file} had been stored."
        detail = f"{error.detail}\n{stored}" if error.detail else stored
        known = {**error.data, "stored": sent.rows}
        return type(error)(error.message, detail=detail, hint=error.hint, **known)

    def _summarise(self) -> None:
        sent, seconds = self._sent, time.perf_counter() - self._started
        if self._screen.json:
            self._screen.write(json.dumps(as_document(sent, seconds)) + "\n")
            return
        if self._screen.quiet:
            return
        more = [
            f"{number:,} {what}"
            for number, what in (
                (sent.repeated, "of them stored by an earlier run"),
                (sent.duplicates, "duplicates dropped"),
                (sent.dead, "sent to the dead letters"),
            )
            if number
        ]
        rate = f"{sent.rows / seconds:,.0f} rows/s" if seconds else ""
        line = ", ".join([f'{sent.said} in topic "{sent.topic}"', *more])
        self._screen.write(f"{line} · {sized(sent.bytes)} in {timed(seconds)}, {rate}\n")


def as_document(sent: Sent, seconds: float) -> dict[str, Any]:
    """The summary as one JSON document."""
    return {
        "topic": sent.topic,
        "rows": sent.rows,
        "offsets": None if sent.start is None else [sent.start, sent.end],
        "duplicates": sent.duplicates,
        "dead": sent.dead,
        "repeated": sent.repeated,
        "requests": sent.requests,
        "bytes": sent.bytes,
        "seconds": round(seconds, 3),
    }


def append(lake: LakeLike, topic: str, chunk: Chunk, source: Source, screen: Screen) -> Ack:
    """Store one request. When a lake in this process has a full log, say so, make room, and go on."""
    from headwater.engine import Lake
    from headwater.errors import Backpressure

    if not isinstance(lake, Lake):
        return lake.append(topic, [chunk.block], chunk.format, source)
    while True:
        try:
            return lake.append(topic, [chunk.block], chunk.format, source, wait=False)
        except Backpressure as full:
            if not lake.settings.auto_flush:
                raise
            _make_room(lake, screen, full.retry_after)


def _make_room(lake: Any, screen: Screen, pause: float) -> None:
    from headwater.cli.work import spark_spinner
    from headwater.errors import StaleCommit

    if _is_drained_elsewhere(lake):
        screen.note("the log is full: waiting for the service that commits it")
        time.sleep(pause)
        return
    starts = "" if lake.spark_state == "ready" else " (starts Spark)"
    screen.note(f"the log is full: committing it to the tables{starts}")
    try:
        with spark_spinner(lake, screen):
            lake.flush()
    except StaleCommit:
        time.sleep(pause)  # another process was first, which makes room too


def _is_drained_elsewhere(lake: Any) -> bool:
    """Whether a running service holds an ingest lease."""
    import sqlite3
    from contextlib import closing

    from headwater.state.leases import Lease, is_held
    from headwater.state.sqlite import connect

    try:
        with closing(connect(lake.paths.state, lake.settings.busy_timeout, read_only=True)) as db:
            rows = db.execute("SELECT name, holder, expires_at FROM leases WHERE name LIKE 'ingest:%'").fetchall()
    except sqlite3.OperationalError:  # no service has ever run here
        return False
    return any(is_held(Lease(*row), time.time(), lake.settings.lease_ttl) for row in rows)
