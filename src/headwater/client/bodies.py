"""What a producer hands over, as one request body that can be sent again."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.topics.produce import Format

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that can be sent several times."""

    headers: dict[str, str]
    chunks: Callable[[], Iterator[bytes]]


def body_of(blocks: Iterable[Any], format: Format) -> RequestBody:
    """The blocks of one request as one body in a format that the service takes."""
    match format:
        case "ndjson":
            return _bytes_body(NDJSON, [_ended_line(block) for block in blocks])
        case "csv":
            return _bytes_body("text/csv", list(_one_header([_ended_line(block) for block in blocks])))
        case "json":
            return _bytes_body("application/json", list(_one_array(list(blocks))))
        case "rows":
            return _bytes_body(NDJSON, [_lines(rows) for rows in blocks])
        case "pandas":
            return _arrow_body([pa.Table.from_pandas(frame, preserve_index=False) for frame in blocks])
        case "arrow" | "parquet":
            return _arrow_body(list(blocks))


def _bytes_body(media_type: str, blocks: Sequence[bytes]) -> RequestBody:
    length = str(sum(len(block) for block in blocks))
    return RequestBody({"Content-Type": media_type, "Content-Length": length}, lambda: iter(blocks))


def _ended_line(block: bytes) -> bytes:
    return block if not block or block.endswith(b"\n") else block + b"\n"


def _one_header(blocks: Sequence[bytes]) -> Iterator[bytes]:
    """CSV blocks as one body: each begins with the header, which is kept once."""
    header = blocks[0][: blocks[0].find(b"\n") + 1] if blocks else b""
    for place, block in enumerate(blocks):
        yield block if place == 0 else block.removeprefix(header)


def _one_array(blocks: Sequence[bytes]) -> Iterator[bytes]:
    """JSON documents, each an array or an object, as one array; a single one as it is."""
    if len(blocks) == 1:
        yield blocks[0]
        return
    separator = b"["
    for block in (block.strip() for block in blocks):
        inner = block[1:-1].strip() if block.startswith(b"[") and block.endswith(b"]") else block
        if inner:
            yield separator + inner
            separator = b","
    yield b"]" if separator == b"," else b"[]"


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False, default=_plain).encode() + b"\n" for row in rows)


def _plain(value: Any) -> Any:
    """A Python value in the text that the decoder takes for its type."""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    raise InvalidInput(f'value of type "{type(value).__name__}" cannot be sent as JSON')


def _arrow_body(tables: Sequence[pa.Table | pa.RecordBatch]) -> RequestBody:
    """Tables of one schema as an Arrow stream, made while it is sent."""

    def chunks() -> Iterator[bytes]:
        if not tables:
            return
        sink = _Chunks()
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), tables[0].schema) as writer:
            for table in tables:
                for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
                    writer.write_batch(batch)
                    yield sink.taken()
        yield sink.taken()

    return RequestBody({"Content-Type": ARROW}, chunks)


class _Chunks(io.RawIOBase):
    """A file that hands over what was written since the last time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._held.append(piece)
        return len(piece)

    def taken(self) -> bytes:
        held, self._held = self._held, []
        return b"".join(held)
