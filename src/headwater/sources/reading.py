"""Files and streams as chunks of whole records, each one request: memory stays flat however large the input is.

A chunk knows where it began, so that a refused row can be named by its line in the file. Cuts depend on the content
alone unless the input is a live pipe: a file is cut in the same way in every run, which a producer's retry needs.
"""

from __future__ import annotations

import csv
import io
import json
import os
import select
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from headwater.errors import BodyTooLarge, InvalidInput, RecordsRejected
from headwater.storage.decode.json_records import json_records

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["ndjson", "json", "csv", "parquet", "arrow"]
EXTENSIONS: dict[str, Kind] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")
READ = 1024 * 1024
NOT_WRITTEN = (
    "Nothing of this request was written. Correct the records, or create the topic with on_invalid=dead_letter."
)
LINGER = 0.2
"""Seconds that records of a live pipe wait for more before they are sent."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one request: in which form, how many bytes of input, and what names the record at an index."""

    block: Any
    format: Literal["ndjson", "csv", "arrow"]
    size: int
    place: Callable[[int], str]


def kind_of(name: str) -> Kind | None:
    """The format that a file's name tells, compression aside."""
    path = Path(name)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return EXTENSIONS.get(path.suffix.lower())


def open_input(name: str) -> IO[bytes]:
    """The input as bytes, decompressed where its name says that it is compressed."""
    if name == "-":
        return open(0, "rb", closefd=False)
    import pyarrow as pa

    try:
        if Path(name).suffix.lower() in COMPRESSED:
            compressed: IO[bytes] = io.BufferedReader(pa.input_stream(name, compression="detect"), READ)
            return compressed
        return Path(name).open("rb")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f'file "{name}" cannot be read', detail=f"{reason}.") from None


def read_chunks(
    source: IO[bytes], kind: Kind, target: int, max_record: int, *, live: bool, max_rows: int = 0
) -> Iterator[Chunk]:
    """The input's records in chunks of about `target` bytes and, of text, at most `max_rows` records (0: any number).

    `live` sends what is there instead of waiting for more.
    """
    match kind:
        case "ndjson":
            return _ndjson(source, target, max_record, live, max_rows)
        case "csv":
            return _csv(source, target, max_record, max_rows)
        case "json":
            return _json(source, target, max_record, max_rows)
        case "parquet":
            return _tables(_parquet_batches(source, target), target)
        case "arrow":
            return _tables(_arrow_batches(source), target)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    try:
        while piece := source.read(READ):
            yield piece
    except OSError as error:  # a disk that fails, or what is not compressed as its name says
        detail = f"{(error.strerror or str(error)).rstrip('.')}."
        raise InvalidInput("input cannot be read to its end", detail=detail) from None


# -- lines ------------------------------------------------------------------------------------------------------


def _ndjson(source: IO[bytes], target: int, max_record: int, live: bool, max_rows: int) -> Iterator[Chunk]:
    from headwater.storage.decode import ndjson_blocks

    blocks = (
        _live_lines(source.fileno(), target, max_record)
        if live
        else ndjson_blocks(_pieces(source), target, max_record, max_rows)
    )
    line = 1
    for block in blocks:
        if block.strip():
            yield Chunk(block, "ndjson", len(block), _line_of(block, line))
        line += block.count(b"\n")


def _line_of(block: bytes, first: int) -> Callable[[int], str]:
    def place(row: int) -> str:
        lines = (number for number, line in enumerate(block.split(b"\n"), first) if line.strip(b" \t\r"))
        return f"line {next((number for index, number in enumerate(lines) if index == row), first)}"

    return place


def _live_lines(source: int, target: int, max_record: int) -> Iterator[bytes]:
    """Whole lines as they come: at the target's size, or when nothing more came for a moment."""
    held = bytearray()
    while True:
        cut = held.rfind(b"\n") + 1
        if cut and (len(held) >= target or not select.select([source], [], [], LINGER)[0]):
            yield bytes(held[:cut])
            del held[:cut]
        elif not cut and len(held) > max_record:
            raise BodyTooLarge(f"record is longer than {max_record} bytes", hint="Send smaller records.")
        piece = os.read(source, READ)
        if not piece:
            break
        held += piece
    if held:
        yield bytes(held)


# -- csv --------------------------------------------------------------------------------------------------------


def _csv(source: IO[bytes], target: int, max_record: int, max_rows: int) -> Iterator[Chunk]:
    from headwater.storage.decode import csv_blocks

    before = 0  # lines of earlier chunks, without the heading that each chunk repeats
    for block in csv_blocks(_pieces(source), target, max_record, max_rows):
        yield Chunk(block, "csv", len(block), _csv_line_of(block, before))
        before += max(0, block.count(b"\n") - 1)


def _csv_line_of(block: bytes, before: int) -> Callable[[int], str]:
    def place(row: int) -> str:
        reader = csv.reader(io.StringIO(block.decode("utf-8-sig", "replace"), newline=""))
        index, start = -2, 1
        for cells in reader:
            index += 1 if cells else 0
            if index == row:
                break
            start = reader.line_num + 1
        return f"line {start + before}"

    return place


# -- one json array ---------------------------------------------------------------------------------------------


def _json(source: IO[bytes], target: int, max_record: int, max_rows: int) -> Iterator[Chunk]:
    held: list[str] = []
    size = first = 0
    for record in json_records(_pieces(source), max_record):
        held.append(record)
        size += len(record) + 1
        if size >= target or len(held) == max_rows:
            yield _json_chunk(held, first)
            first, held, size = first + len(held), [], 0
    if held:
        yield _json_chunk(held, first)


def _json_chunk(records: list[str], first: int) -> Chunk:
    block = "\n".join(records).encode("utf-8", "surrogatepass")
    return Chunk(block, "ndjson", len(block), lambda row: f"record {first + row + 1}")


# -- columns ----------------------------------------------------------------------------------------------------


def _tables(batches: Iterator[pa.RecordBatch], target: int) -> Iterator[Chunk]:
    """Small batches put together and large ones cut, to requests of about the target's size."""
    import pyarrow as pa

    held: list[Any] = []
    size = rows = first = 0
    for batch in batches:
        for piece in _cut(batch, target):
            held.append(piece)
            size, rows = size + piece.nbytes, rows + piece.num_rows
            if size >= target:
                yield _table_chunk(pa.Table.from_batches(held), size, first)
                first, held, size, rows = first + rows, [], 0, 0
    if held:
        yield _table_chunk(pa.Table.from_batches(held), size, first)


def _table_chunk(table: pa.Table, size: int, first: int) -> Chunk:
    return Chunk(table, "arrow", size, lambda row: f"row {first + row + 1}")


def _cut(batch: pa.RecordBatch, target: int) -> Iterator[pa.RecordBatch]:
    rows = max(1, int(batch.num_rows * target / max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _parquet_batches(source: IO[bytes], target: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(_seekable(source), pre_buffer=False)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        total = sum(group.total_byte_size for group in groups)
        rows = max(1, int(file.metadata.num_rows * target / max(total, 1)))
        yield from file.iter_batches(batch_size=min(rows, 1024 * 1024))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable("Parquet", error) from None


def _arrow_batches(source: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow IPC file or stream; what it is shows in its first bytes."""
    import pyarrow as pa

    from headwater.storage.decode.ipc import arrow_batches
    from headwater.storage.decode.sizes import ignore_size

    try:
        buffered: Any = source if hasattr(source, "peek") else io.BufferedReader(source)
        if buffered.peek(6)[:6] == b"ARROW1":
            file = pa.ipc.open_file(_seekable(buffered))
            yield from (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            yield from arrow_batches(buffered, ignore_size)  # which notices that a stream was cut
    except RecordsRejected as rejected:
        raise RecordsRejected("input is not Arrow", detail=rejected.detail, hint=rejected.hint) from None
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _unreadable("Arrow", error) from None


def _seekable(source: IO[bytes]) -> IO[bytes]:
    """The input, by way of a temporary file if it is a pipe: these formats are read from their end."""
    if source.seekable():
        return source
    spooled = tempfile.TemporaryFile()  # noqa: SIM115
    for piece in _pieces(source):
        spooled.write(piece)
    spooled.seek(0)
    return spooled


def _unreadable(kind: str, error: Exception) -> RecordsRejected:
    return RecordsRejected(f"input is not {kind}", detail=f"{str(error).splitlines()[0].rstrip('.')}.")


def located(error: RecordsRejected, chunk: Chunk, file: str, hint: str = NOT_WRITTEN) -> RecordsRejected:
    """The rejection with rows named by their place in the file."""
    rejects = [{**reject, "place": chunk.place(int(reject["row"]))} for reject in error.data.get("rejects", ())]
    if not rejects:
        return RecordsRejected(f"{file}: {error.message}", detail=error.detail, hint=error.hint, **error.data)
    lines = [
        f"{reject['place']}{', field ' + json.dumps(reject['field'], ensure_ascii=False) if reject['field'] else ''}: "
        f"{reject['reason']}"
        for reject in rejects
    ]
    more = int(error.data.get("rejected", len(rejects))) - len(rejects)
    if more > 0:
        lines.append(f"and {more:,} more in this request.")
    data = {**error.data, "file": file, "rejects": rejects}
    return RecordsRejected(f"{file}: {error.message}", detail="\n".join(lines), hint=hint, **data)
