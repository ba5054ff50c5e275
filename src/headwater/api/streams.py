"""A query's result on its way from the thread that runs it to the response that sends it, never held whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import TimeoutError as StalledError
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from headwater.api.problems import problem, unexpected_error
from headwater.api.spool import slices
from headwater.errors import HeadwaterError, QueryCancelled, ResultTooLarge
from headwater.serving.result import Result
from headwater.storage.encode import to_json_lines

T = TypeVar("T")

PIECE = 1024**2
AHEAD = 4
STALL_SECONDS = 60.0
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
INFO = b"headwater.info"
"""The key in an Arrow schema's metadata under which the plan and the notices travel, as JSON."""


class Outbound:
    """Pieces of a body: put by one worker thread, taken on the event loop by one response."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | HeadwaterError | None] = asyncio.Queue(AHEAD)
        self._closed = False

    def put(self, item: bytes | HeadwaterError | None) -> None:
        """Hand over a piece, an error, or None as the end; QueryCancelled when nobody reads any more."""
        if self._closed:
            raise QueryCancelled("query was cancelled")
        handed = asyncio.run_coroutine_threadsafe(self._queue.put(item), self._loop)
        try:
            handed.result(STALL_SECONDS)
        except StalledError:
            handed.cancel()
            raise QueryCancelled(
                "query was cancelled", detail=f"Its client read nothing for {STALL_SECONDS:g} s."
            ) from None

    async def take(self) -> bytes | None:
        """The next piece, None at the end; raises the worker's error."""
        item = await self._queue.get()
        if isinstance(item, HeadwaterError):
            raise item
        return item

    def stop(self, error: HeadwaterError) -> None:
        """Drop what waits: the reader gets `error` next, and a worker that waits for room goes on and finds out."""
        self._closed = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._replace, error)

    def _replace(self, error: HeadwaterError) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(error)


class Encoder(Protocol):
    def begin(self, result: Result) -> bytes: ...

    def encode(self, batch: pa.RecordBatch) -> bytes: ...

    def end(self) -> bytes: ...


class NdjsonEncoder:
    """One JSON object per row."""

    def begin(self, result: Result) -> bytes:
        return b""

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return to_json_lines(batch)

    def end(self) -> bytes:
        return b""


class ArrowEncoder:
    """An Arrow IPC stream, message by message."""

    def begin(self, result: Result) -> bytes:
        info = json.dumps({"info": dict(result.info), "notices": list(result.notices)}, default=str)
        metadata = {**(result.schema.metadata or {}), INFO: info.encode()}
        return bytes(result.schema.with_metadata(metadata).serialize())

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return bytes(batch.serialize())

    def end(self) -> bytes:
        return ARROW_END


class Streamed:
    """A sink for a query's batches that encodes them into an Outbound."""

    def __init__(self, outbound: Outbound, encoder: Encoder, max_rows: int | None) -> None:
        self._outbound = outbound
        self._encoder = encoder
        self._max_rows = max_rows
        self._rows = 0
        self._held = bytearray()

    def open(self, result: Result) -> None:
        self._held += self._encoder.begin(result)

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode and hand over rows; ResultTooLarge above the limit, if there is one."""
        self._rows += batch.num_rows
        if self._max_rows is not None and self._rows > self._max_rows:
            raise ResultTooLarge(f"result has more than {self._max_rows} rows", hint="Add a LIMIT, or raise max_rows.")
        for part in slices(batch):
            self._held += self._encoder.encode(part)
            self._hand_over(PIECE)

    def _hand_over(self, at_least: int) -> None:
        if len(self._held) >= max(1, at_least):
            held, self._held = self._held, bytearray()
            for start in range(0, len(held), PIECE):
                self._outbound.put(bytes(held[start : start + PIECE]))

    def finish(self) -> None:
        self._held += self._encoder.end()
        self._hand_over(1)
        self._outbound.put(None)

    def fail(self, error: HeadwaterError) -> None:
        self._outbound.put(error)

    def stop(self, error: HeadwaterError) -> None:
        self._outbound.stop(error)

    def close(self) -> None:
        pass


async def pieces(first: bytes | None, outbound: Outbound) -> AsyncIterator[bytes]:
    """The body from its first piece on."""
    while first is not None:
        yield first
        first = await outbound.take()


async def told_while(work: Callable[[Callable[[T], None]], Awaitable[object]]) -> AsyncIterator[T]:
    """What the work tells from its thread, as it tells it; raises the work's error at the end.

    The work goes on when nobody listens any more.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[T | None] = asyncio.Queue()

    def tell(item: T | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            loop.call_soon_threadsafe(told.put_nowait, item)

    def ended(done: asyncio.Future[object]) -> None:
        if not done.cancelled():
            done.exception()  # seen, also when nobody listens
        told.put_nowait(None)

    working = asyncio.ensure_future(work(tell))
    working.add_done_callback(ended)
    while (item := await told.get()) is not None:
        yield item
    await working


async def told_lines(first: dict[str, Any], others: AsyncIterator[dict[str, Any]], what: str) -> AsyncIterator[bytes]:
    """Work that takes long, told as NDJSON; an error after the first line becomes the last one."""
    try:
        yield _line(first)
        async for line in others:
            yield _line(line)
    except Exception as failed:
        told = failed if isinstance(failed, HeadwaterError) else unexpected_error(failed, what)
        yield _line({"problem": problem(told)})


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode() + b"\n"
