"""Bodies between the event loop and a worker thread."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from headwater.api.admission import Budget
from headwater.api.bodies import BLOCK, BodyFile, Inbound
from headwater.api.records import Limits, account_of, blocks_of, coding_of, format_of, source_of
from headwater.errors import Backpressure, BodyTooLarge, InvalidInput, RecordsRejected, UnsupportedMediaType
from headwater.storage.decode.ipc import arrow_batches

LIMITS = Limits(body=64 * 1024**2, record=1024**2)


def received(chunks: Sequence[bytes], limit: int = LIMITS.body, budget: Budget | None = None) -> bytes:
    """What a worker reads in odd pieces of a body that arrives as `chunks`; a missing end is a disconnect."""

    async def run() -> bytes:
        messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks if chunk is not None]
        last = {"type": "http.disconnect"} if chunks and chunks[-1] is None else {"type": "http.request", "body": b""}
        feed = iter([*messages, last])

        async def receive() -> Any:
            await asyncio.sleep(0)
            if (message := next(feed, None)) is None:
                await asyncio.Event().wait()  # the client stays until it has its answer
            return message

        body = Inbound(receive, limit)
        with (budget or Budget(LIMITS.body)).reserve(0) as reservation:
            pump = asyncio.create_task(body.pump(reservation))
            try:
                return await asyncio.to_thread(_read_oddly, BodyFile(body))
            finally:
                pump.cancel()

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
        account = account_of(limits.body, reservation)
        return list(blocks_of(io.BytesIO(data), format, coding, limits.record, account)[0])  # type: ignore[arg-type]


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


def test_a_client_that_left_is_noticed_after_its_body_has_arrived() -> None:
    async def run() -> None:
        left = asyncio.Event()
        feed = iter([{"type": "http.request", "body": b"x" * 3 * BLOCK}])

        async def receive() -> Any:
            if (message := next(feed, None)) is not None:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        body = Inbound(receive, LIMITS.body)
        with Budget(LIMITS.body).reserve(0) as reservation:
            pump = asyncio.create_task(body.pump(reservation))
            await body.ready.wait()
            file = BodyFile(body)
            assert await asyncio.to_thread(file.read, 10) == b"x" * 10
            body.check()
            left.set()
            await pump
            with pytest.raises(ClientDisconnect):
                body.check()
            with pytest.raises(ClientDisconnect):
                await asyncio.to_thread(file.read)

    asyncio.run(run())


def test_an_arrow_stream_without_its_end_marker_is_refused() -> None:
    data = arrow_stream(pa.table({"id": [1, 2]}))
    for cut in (8, 4, 1):
        with pytest.raises(RecordsRejected, match="not a valid Arrow stream") as refused:
            blocks(data[:-cut], "arrow")
        assert refused.value.detail == "It ends before its end marker."
    with pytest.raises(RecordsRejected) as refused:
        blocks(data + data, "arrow")
    assert refused.value.detail == "There is more after its end marker."


def test_streams_of_every_writer_are_read() -> None:
    table = pa.table(
        {
            "id": range(3000),
            "name": pa.array(["a", None, "b"] * 1000).dictionary_encode(),
            "view": pa.array(["a text that is not inlined"] * 3000, pa.string_view()),
        }
    )
    for codec in (None, "lz4", "zstd"):
        for legacy in (False, True):
            options = pa.ipc.IpcWriteOptions(compression=codec, use_legacy_format=legacy, emit_dictionary_deltas=True)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                for start in range(0, 3000, 700):
                    writer.write_table(table.slice(start, 700))
            assert pa.Table.from_batches(blocks(bytes(sink.getvalue()), "arrow")).equals(table)


def test_sizes_are_checked_before_anything_is_decompressed() -> None:
    sink = pa.BufferOutputStream()
    zeros = pa.table({"id": pa.array([0] * 10).take(pa.array([0] * 4_000_000))})
    with pa.ipc.new_stream(sink, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(zeros)
    data = bytes(sink.getvalue())
    assert len(data) < 100_000
    before = pa.total_allocated_bytes()
    peaks = []

    def account(size: int) -> None:
        peaks.append(pa.total_allocated_bytes() - before)
        if size > 16 * 1024**2:
            raise BodyTooLarge("too large")

    with pytest.raises(BodyTooLarge):
        list(arrow_batches(io.BytesIO(data), account))
    assert max(peaks) < 1024**2


@given(st.binary(max_size=60), st.integers(0, 600), st.integers(0, 40))
@example(b"\xff" * 8, 0, 8)
def test_any_damage_to_an_arrow_stream_is_a_rejection_or_other_rows(noise: bytes, at: int, length: int) -> None:
    data = arrow_stream(pa.table({"id": [1, 2, 3], "name": ["a", "b", None]}))
    damaged = data[:at] + noise + data[at + length :]
    with suppress(RecordsRejected, BodyTooLarge):
        blocks(damaged, "arrow")


def test_blank_lines_and_an_empty_body_are_alike() -> None:
    for nothing in (b"", b"\n", b" \r\n\t\n" * 3000):
        assert blocks(nothing, "ndjson") == []
        assert blocks(nothing, "json") == []
        assert blocks(gzip.compress(nothing), "ndjson", "gzip") == []


def test_a_json_array_becomes_lines() -> None:
    records = [b'{"id": %d, "text": "a\\n,]}"}' % number for number in range(100_000)]
    found = blocks(b" [" + b" ,\n".join(records) + b"]\n", "json")
    assert len(found) > 1
    assert b"\n".join(found).split(b"\n") == records
    assert blocks(b'{"id":\n1}', "json") == [b'{"id": 1}']
    assert blocks(b"[]", "json") == [b""]
    for broken in (b"[1", b'[{"id": 1}', b"[] x", b'"a"', b"[\xff]"):
        with pytest.raises(RecordsRejected, match="not a JSON array"):
            blocks(broken, "json")


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
