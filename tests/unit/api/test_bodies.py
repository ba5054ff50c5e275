"""Bodies between the event loop and a worker thread."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from starlette.requests import ClientDisconnect

from headwater.api.admission import Budget
from headwater.api.bodies import BLOCK, BodyFile, Inbound
from headwater.api.records import Limits, blocks_of, coding_of, format_of, source_of
from headwater.errors import Backpressure, BodyTooLarge, InvalidInput, RecordsRejected, UnsupportedMediaType

LIMITS = Limits(body=64 * 1024**2, record=1024**2)


def received(chunks: Sequence[bytes], limit: int = LIMITS.body, budget: Budget | None = None) -> bytes:
    """What a worker reads in odd pieces of a body that arrives as `chunks`; a missing end is a disconnect."""

    async def run() -> bytes:
        messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks if chunk is not None]
        last = {"type": "http.disconnect"} if chunks and chunks[-1] is None else {"type": "http.request", "body": b""}
        feed = iter([*messages, last])

        async def receive() -> Any:
            await asyncio.sleep(0)
            return next(feed)

        body = Inbound(receive, limit)
        with (budget or Budget(LIMITS.body)).reserve(0) as reservation:
            pump = asyncio.create_task(body.pump(reservation))
            read = await asyncio.to_thread(_read_oddly, BodyFile(body))
            await pump
            return read

    return asyncio.run(run())


def _read_oddly(file: BodyFile) -> bytes:
    parts, size = [], 1
    while piece := file.read(size):
        parts.append(piece)
        size = size * 3 + 1
    return b"".join(parts)


@pytest.mark.parametrize("chunk", [1000, 65_536, BLOCK, 3 * BLOCK + 1])
def test_a_body_arrives_whole_however_it_is_cut(chunk: int) -> None:
    whole = bytes(range(256)) * (20 * 1024)  # 5 MB: more blocks than may wait
    cut = [whole[start : start + chunk] for start in range(0, len(whole), chunk)]
    assert received(cut) == whole


def test_an_empty_body_is_empty() -> None:
    assert received([]) == b""
    assert received([b"", b"a", b""]) == b"a"


def test_a_broken_connection_reaches_the_reader() -> None:
    with pytest.raises(ClientDisconnect):
        received([b"x" * BLOCK, None])  # type: ignore[list-item]


def test_limits_reach_the_reader() -> None:
    with pytest.raises(BodyTooLarge):
        received([b"x" * 100, b"x"], limit=100)
    budget = Budget(100)
    with budget.reserve(60), pytest.raises(Backpressure):
        received([b"x" * 40, b"x"], budget=budget)


def blocks(data: bytes, format: Any, coding: str | None = None, limits: Limits = LIMITS) -> list[Any]:
    with Budget(1024**3).reserve(0) as reservation:
        return list(blocks_of(io.BytesIO(data), format, coding, limits, reservation))  # type: ignore[arg-type]


def test_compressed_bodies_are_cut_like_plain_ones() -> None:
    lines = b"".join(b'{"id": %d}\n' % number for number in range(600_000))
    plain = blocks(lines, "ndjson")
    assert len(plain) > 1
    assert blocks(gzip.compress(lines, 1), "ndjson", "gzip") == plain
    assert blocks(bytes(pa.compress(lines, "zstd", asbytes=True)), "ndjson", "zstd") == plain


@pytest.mark.parametrize("data", [b"not gzip", gzip.compress(b"x" * 10_000)[:-20]], ids=["other", "cut"])
def test_what_cannot_be_decompressed_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        blocks(data, "ndjson", "gzip")


def test_a_small_body_that_becomes_large_is_refused() -> None:
    bomb = gzip.compress(b"\n" * 8 * 1024**2)
    with pytest.raises(BodyTooLarge):
        blocks(bomb, "ndjson", "gzip", Limits(body=4 * 1024**2, record=1024))


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_arrow_streams_come_as_batches_and_damaged_ones_are_rejected() -> None:
    table = pa.table({"id": list(range(1000)), "name": ["ä"] * 1000})
    data = arrow_stream(table)
    assert pa.Table.from_batches(blocks(data, "arrow")) == table
    for broken in (b"nonsense", b"", data[: len(data) // 2], data.replace("ä".encode(), b"\xff\xff")):
        with pytest.raises(RecordsRejected, match="not a valid Arrow stream"):
            blocks(broken, "arrow")
    with pytest.raises(BodyTooLarge):
        blocks(data, "arrow", limits=Limits(body=4096, record=1024))


def test_media_types_and_codings() -> None:
    assert format_of("application/x-ndjson; charset=utf-8") == "ndjson"
    assert format_of("Text/CSV") == "csv"
    assert coding_of("") is None
    assert coding_of("GZIP") == "gzip"
    with pytest.raises(UnsupportedMediaType, match="missing"):
        format_of("")
    with pytest.raises(UnsupportedMediaType, match='"text/plain"'):
        format_of("text/plain")
    with pytest.raises(UnsupportedMediaType):
        coding_of("br")


def test_who_sends() -> None:
    assert source_of(None, None, None).producer is None
    assert source_of("k", None, None).producer == "http:k"
    named = source_of(None, "p", 7)
    assert (named.producer, named.sequence) == ("p", 7)
    for twice in (("k", "p", 1), ("k", None, 1), (None, "p", None), (None, None, 1)):
        with pytest.raises(InvalidInput):
            source_of(*twice)
