"""What a producer may send: media types, content codings, and how a body of each becomes blocks for the decoder."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from headwater.api.admission import Reservation
from headwater.api.bodies import BLOCK, too_large
from headwater.errors import InvalidInput, RecordsRejected, UnsupportedMediaType
from headwater.storage.decode import csv_blocks, ndjson_blocks
from headwater.topics.produce import Source

BodyFormat = Literal["ndjson", "json", "csv", "arrow"]

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"

FORMATS: Mapping[str, BodyFormat] = {
    NDJSON: "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/json": "json",
    "text/csv": "csv",
    ARROW: "arrow",
}
CODINGS: Mapping[str, str | None] = {"": None, "identity": None, "gzip": "gzip", "zstd": "zstd"}

BLOCK_BYTES = 4 * 1024**2
MAX_KEY = 255
MAX_SEQUENCE = 2**63 - 1


class Readable(Protocol):
    """A body that is read forward."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one body may have."""

    body: int
    record: int


def format_of(content_type: str) -> BodyFormat:
    """The format that a Content-Type names."""
    name = content_type.partition(";")[0].strip().lower()
    if known := FORMATS.get(name):
        return known
    raise UnsupportedMediaType(
        f'content type "{name[:64]}" is not taken' if name else "content type is missing",
        detail=f"Records come as {', '.join(FORMATS)}.",
        hint=f"Send the header Content-Type: {NDJSON}, if there is one JSON object per line.",
    )


def coding_of(content_encoding: str) -> str | None:
    """Arrow's name of the codec that a Content-Encoding names; None for none."""
    name = content_encoding.strip().lower()
    if name not in CODINGS:
        raise UnsupportedMediaType(
            f'content encoding "{name[:64]}" is not taken', detail="Bodies come as they are, or as gzip or zstd."
        )
    return CODINGS[name]


def source_of(key: str | None, producer: str | None, sequence: int | None) -> Source:
    """Who sends, by the request's headers; what identifies a retry is checked here."""
    if key is not None and (producer is not None or sequence is not None):
        raise InvalidInput(
            "request identifies itself twice",
            hint="Send Idempotency-Key, or Headwater-Producer with Headwater-Sequence.",
        )
    if (producer is None) != (sequence is None):
        raise InvalidInput(
            "request has half of a producer's identity", hint="Send Headwater-Producer and Headwater-Sequence together."
        )
    if key is not None:
        return Source("http", f"http:{key}", 0)
    return Source("http", producer, sequence or 0)


def blocks_of(
    file: io.RawIOBase, format: BodyFormat, coding: str | None, limits: Limits, reservation: Reservation
) -> Iterator[Any]:
    """The body in parts that the decoder takes, read as they are asked for."""
    plain: Readable = pa.CompressedInputStream(pa.PythonFile(file, "r"), coding) if coding else file
    if format == "arrow":
        return _batches(plain, limits, reservation)
    pieces = _pieces(plain, limits, reservation)
    match format:
        case "ndjson":
            return ndjson_blocks(pieces, BLOCK_BYTES, limits.record)
        case "csv":
            return csv_blocks(pieces, BLOCK_BYTES, limits.record)
        case "json":
            return _whole(pieces)


def _pieces(file: Readable, limits: Limits, reservation: Reservation) -> Iterator[bytes]:
    """The body in pieces of BLOCK bytes, once decompressed."""
    total = 0
    while piece := _read(file):
        total += len(piece)
        if total > limits.body:
            raise too_large(limits.body)
        reservation.cover(total)
        yield piece


def _read(file: Readable) -> bytes:
    try:
        return file.read(BLOCK)
    except (pa.ArrowException, OSError, EOFError) as broken:
        raise InvalidInput("request body cannot be decompressed", detail=f"{_line(broken)}.") from None


def _whole(pieces: Iterable[bytes]) -> Iterator[bytes]:
    if body := b"".join(pieces):
        yield body


def _batches(file: Readable, limits: Limits, reservation: Reservation) -> Iterator[pa.RecordBatch]:
    """An Arrow stream's batches, each fully validated: its buffers come from outside."""
    total = 0
    try:
        with pa.ipc.open_stream(file) as stream:
            if any(pa.types.is_union(field.type) for field in stream.schema):
                raise RecordsRejected("arrow stream has a union column")
            for batch in stream:
                total += batch.nbytes
                if total > limits.body:
                    raise too_large(limits.body)
                reservation.cover(total)
                batch.validate(full=True)
                yield batch
    except (pa.ArrowException, OSError, EOFError, MemoryError) as broken:
        raise RecordsRejected("body is not a valid Arrow stream", detail=f"{_line(broken)}.") from None


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]
