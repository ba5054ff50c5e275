"""Existing files on their way into a topic: which are meant, of which format, and as what chunks they are sent.

A file is cut in the same way in every run, so that a run that was killed can be repeated: text by its bytes, columns by
a number of rows that the first run chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa

from headwater.errors import HeadwaterError, InvalidInput
from headwater.sources.reading import COMPRESSED, Chunk, open_input, read_chunks

FileFormat = Literal["ndjson", "json", "csv", "parquet", "orc", "avro"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
TEXT = ("ndjson", "json", "csv")
EXTENSIONS: dict[str, FileFormat] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
}
CHUNK_BYTES = 8 * 1024**2
"""About how much one request to the log carries. Part of how text is cut: another number would cut it elsewhere."""
MAX_CHUNK_ROWS = 128 * 1024


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to bring in; `id` tells this state of it from any other."""

    path: Path
    format: FileFormat
    bytes: int
    id: str

    @property
    def is_text(self) -> bool:
        return self.format in TEXT


def plan_files(paths: Iterable[str | Path], format: FileFormat | None = None) -> tuple[SourceFile, ...]:
    """The files that are meant, those of folders in the order of their names; InvalidInput if one cannot be."""
    found = [_source(file, format) for path in paths for file in _expanded(Path(path), format)]
    if not found:
        raise InvalidInput("no files were named", hint="Name files or folders.")
    return tuple({each.path: each for each in found}.values())


def _expanded(path: Path, format: FileFormat | None) -> list[Path]:
    if not path.is_dir():
        return [path]
    # As Spark and its kin do: a name that begins with _ or . is no data.
    files = sorted(each for each in path.rglob("*") if each.is_file() and not _hidden(each.relative_to(path)))
    data = [each for each in files if format is not None or format_of(each) is not None]
    if not data:
        wanted = "files" if format is not None else f"files ({', '.join(EXTENSIONS)})"
        raise InvalidInput(f'folder "{path}" has no data {wanted}', hint="Name the files, and add --format.")
    return data


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def format_of(path: Path) -> FileFormat | None:
    """The format that a file's name tells; only text is ever compressed as a whole."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        inner = EXTENSIONS.get(path.with_suffix("").suffix.lower())
        return inner if inner in TEXT else None
    return EXTENSIONS.get(suffix)


def _source(path: Path, given: FileFormat | None) -> SourceFile:
    try:
        state = path.stat()
        path.open("rb").close()
    except OSError as error:
        raise InvalidInput(f'file "{path}" cannot be read', detail=f"{error.strerror or error}.") from None
    format = given or format_of(path)
    if format is not None and format not in FORMATS:
        raise InvalidInput(f'format "{format}" is not known', hint=f"Use one of {', '.join(FORMATS)}.")
    if format is None:
        raise InvalidInput(
            f'format of file "{path}" is not clear from its name',
            detail=f"Known names end in {', '.join(EXTENSIONS)}.",
            hint=f"Say it: --format {'|'.join(FORMATS)}.",
        )
    whole = path.resolve()
    id = sha256(f"{whole}\0{format}\0{state.st_size}\0{state.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return SourceFile(path, format, state.st_size, id.hexdigest()[:32])


def text_chunks(file: SourceFile, max_record: int, max_rows: int) -> Iterator[Chunk]:
    """A text file as requests; an error that names the file if it cannot be cut into them."""
    with open_input(str(file.path)) as stream:
        try:
            yield from read_chunks(
                stream,
                file.format,  # type: ignore[arg-type]
                CHUNK_BYTES,
                max_record,
                live=False,
                max_rows=max_rows,
            )
        except HeadwaterError as error:
            message = f"{file.path}: {error.message}"
            raise type(error)(message, detail=error.detail, hint=error.hint, **error.data) from None


def rows_per_chunk(parts: Sequence[Path]) -> int:
    """How many rows a request carries, from what the rows of a spooled file take on average."""
    rows: int = sum(batch.num_rows for batch in _batches(parts))
    size = sum(part.stat().st_size for part in parts)
    return max(1, min(MAX_CHUNK_ROWS, CHUNK_BYTES * max(rows, 1) // max(size, 1)))


def table_chunks(parts: Sequence[Path], rows: int) -> Iterator[Chunk]:
    """The rows of a spooled file as requests of so many rows each, the last one of what is left."""
    held: list[pa.RecordBatch] = []
    waiting = first = 0
    for batch in _batches(parts):
        start = 0
        while waiting + batch.num_rows - start >= rows:
            held.append(batch.slice(start, rows - waiting))
            start += rows - waiting
            yield _chunk(held, first)
            first, held, waiting = first + rows, [], 0
        if start < batch.num_rows:
            held.append(batch.slice(start))
            waiting += batch.num_rows - start
    if held:
        yield _chunk(held, first)


def _chunk(batches: Sequence[pa.RecordBatch], first: int) -> Chunk:
    table = pa.Table.from_batches(batches)
    return Chunk(table, "arrow", table.nbytes, lambda row: f"row {first + row + 1}")


def _batches(parts: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pa.OSFile(str(part)) as source, pa.ipc.open_stream(source) as batches:
            yield from batches
