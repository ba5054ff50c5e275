"""A request's body on its way from the event loop to the thread that decodes it, in bounded memory.

The loop fills blocks; a worker thread takes them as a file. At most AHEAD blocks wait between the two. What the worker
reads does not depend on how the network cut the body, because a retried request must decode to the same batches.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from queue import SimpleQueue

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from headwater.api.admission import Reservation
from headwater.errors import BodyTooLarge, HeadwaterError

BLOCK = 1024**2
AHEAD = 2
DRAIN_BYTES = 64 * 1024**2
DRAIN_SECONDS = 5.0


def too_large(limit: int, when: str = "as it is sent") -> BodyTooLarge:
    """The error for a body above the setting max_body_bytes."""
    return BodyTooLarge(
        "request body is too large",
        detail=f"It has more than {limit} bytes {when}. Nothing was written.",
        hint="Send it in several requests, or raise the setting max_body_bytes.",
    )


class Inbound:
    """Filled by `pump` on the event loop, read by one worker thread through a BodyFile."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(AHEAD)
        self._blocks: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self.ready = asyncio.Event()
        """Set when the first block or the end is here: a slow client does not hold a thread before that."""
        self.ended = False
        """Whether the whole body has been received."""
        self._left = False

    async def pump(self, reservation: Reservation) -> None:
        """Receive until the body ends or fails, which reaches the reader; then wait for the client to leave."""
        try:
            await self._pump(reservation)
            self._blocks.put(None)
            self.ready.set()
            await self._next()
        except ClientDisconnect as gone:
            self._left = True
            self._blocks.put(gone)
        except HeadwaterError as failed:
            self._blocks.put(failed)
        finally:
            self.ready.set()

    def check(self) -> None:
        """ClientDisconnect if nobody waits for the response any more."""
        if self._left:
            raise ClientDisconnect

    async def _pump(self, reservation: Reservation) -> None:
        held: list[bytes] = []
        size = total = 0
        while not self.ended:
            chunk = await self._next()
            total += len(chunk)
            if total > self._limit:
                raise too_large(self._limit)
            reservation.cover(total)
            held.append(chunk)
            size += len(chunk)
            if size >= BLOCK or self.ended:
                await self._put(b"".join(held))
                held, size = [], 0

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.ended = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def _put(self, block: bytes) -> None:
        await self._room.acquire()
        self._blocks.put(block)
        self.ready.set()

    def take(self) -> bytes:
        """The next block, for the worker thread; empty at the end."""
        self.check()
        block = self._blocks.get()
        if isinstance(block, Exception):
            self._blocks.put(block)
            raise block
        if block is None:
            self._blocks.put(None)
            return b""
        self._loop.call_soon_threadsafe(self._room.release)
        return block or self.take()

    def abort(self) -> None:
        """Let the reader fail instead of waiting for a body that nobody receives any more."""
        self._blocks.put(ClientDisconnect())

    async def drain(self) -> None:
        """Receive and forget a moderate rest, so that the client gets to read its response; only after `pump` ended."""
        with suppress(asyncio.TimeoutError, ClientDisconnect):
            await asyncio.wait_for(self._discard(), DRAIN_SECONDS)

    async def _discard(self) -> None:
        total = 0
        while not self.ended and total <= DRAIN_BYTES:
            total += len(await self._next())


class BodyFile(io.RawIOBase):
    """A body as a file that can be read forward; `read(n)` gives n bytes unless the body ends."""

    def __init__(self, body: Inbound) -> None:
        self._body = body
        self._held = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end; the rest if `size` is negative."""
        parts: list[bytes] = []
        wanted = size if size >= 0 else None
        while wanted is None or wanted > 0:
            if self._at == len(self._held):
                self._held, self._at = self._body.take(), 0
                if not self._held:
                    break
            end = len(self._held) if wanted is None else min(len(self._held), self._at + wanted)
            parts.append(self._held[self._at : end])
            wanted = None if wanted is None else wanted - (end - self._at)
            self._at = end
        return parts[0] if len(parts) == 1 else b"".join(parts)
