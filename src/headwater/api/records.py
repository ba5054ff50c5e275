"""What a producer may send: media types, content codings, and how a body of each becomes blocks for the decoder."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from headwater.api.admission import Reservation
from headwater.api.bodies import BLOCK, too_large
from headwater.errors import InvalidInput, UnsupportedMediaType
from headwater.storage.decode import Account, csv_blocks, json_blocks, ndjson_blocks
from headwater.storage.decode.ipc import Readable, arrow_batches
from headwater.topics.produce import Source

BodyFormat = Literal["ndjson", "json", "csv", "arrow"]
BlockFormat = Literal["ndjson", "csv", "arrow"]

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
        f'content type "{name[:64]}" is not supported' if name else "content type is missing",
        detail=f"Records come as {', '.join(FORMATS)}.",
        hint=f"Send the header Content-Type: {NDJSON}, if there is one JSON object per line.",
    )


def coding_of(content_encoding: str) -> str | None:
    """Arrow's name of the codec that a Content-Encoding names; None for none."""
    name = content_encoding.strip().lower()
    if name not in CODINGS:
        raise UnsupportedMediaType(
            f'content encoding "{name[:64]}" is not supported', detail="Bodies come as they are, or as gzip or zstd."
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


def account_of(limit: int, reservation: Reservation) -> Account:
    """Holds what a request takes, decompressed or decoded; BodyTooLarge when it is more than the limit."""

    def account(size: int) -> None:
        if size > limit:
            raise too_large(limit, "once it is decoded")
        reservation.cover(size)

    return account


def blocks_of(
    file: io.RawIOBase, format: BodyFormat, coding: str | None, max_record: int, account: Account
) -> tuple[Iterator[Any], BlockFormat]:
    """The body in parts for the decoder, read as they are asked for, and their format."""
    plain: Readable = pa.CompressedInputStream(pa.PythonFile(file, "r"), coding) if coding else file
    if format == "arrow":
        return arrow_batches(plain, account), "arrow"
    pieces = _pieces(plain, account)
    match format:
        case "ndjson":
            blocks = ndjson_blocks(pieces, BLOCK_BYTES, max_record)
            return (block for block in blocks if not block.isspace()), "ndjson"
        case "csv":
            return csv_blocks(pieces, BLOCK_BYTES, max_record), "csv"
        case "json":
            return json_blocks(pieces, BLOCK_BYTES, max_record), "ndjson"


def _pieces(file: Readable, account: Account) -> Iterator[bytes]:
    """The body in pieces of BLOCK bytes, once decompressed."""
    total = 0
    while piece := _read(file):
        total += len(piece)
        account(total)
        yield piece


def _read(file: Readable) -> bytes:
    try:
        return file.read(BLOCK)
    except (pa.ArrowException, OSError, EOFError) as broken:
        raise InvalidInput("request body cannot be decompressed", detail=f"{_line(broken)}.") from None


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]
