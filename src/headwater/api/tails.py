"""Tails of the service: so many at once, each a response that ends when its client goes or the service stops.

No tail has a thread of its own. Between two looks a tail is an idle task on the event loop, woken by appends of this
process; a look runs in a small pool. The next page is read when the last one has gone out, so that a slow client makes
its tail wait and nothing piles up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headwater.api.problems import problem, unexpected_error
from headwater.engine.tailing import LOOK, Tailing
from headwater.errors import Backpressure, HeadwaterError, Unavailable
from headwater.serving.tail_request import TailRequest
from headwater.serving.tailing import Followed, Page

HEARTBEAT = 15.0
"""Seconds without rows after which a client is told that its tail lives."""
THREADS = 8
SLICE = 1000

T = TypeVar("T")


class Encoder(Protocol):
    """The form of a tail's body."""

    media_type: str

    def begin(self, at: str) -> bytes: ...

    def rows(self, page: Page) -> bytes: ...

    def alive(self, at: str) -> bytes: ...

    def fail(self, problem: dict[str, object]) -> bytes: ...

    def end(self) -> bytes: ...


class Tails:
    """The tails that run, and the threads in which they look."""

    def __init__(self, tailing: Tailing, limit: int, stopping: Callable[[], bool]) -> None:
        self._tailing = tailing
        self._limit = limit
        self._stopping = stopping
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headwater-tail")
        self.running = 0

    async def open(self, asked: TailRequest, encoder: Encoder, *, follow: bool, limit: int | None) -> StreamingResponse:
        """The response of a new tail; Backpressure when there are too many."""
        if self.running >= self._limit:
            raise Backpressure(
                "too many tails run",
                detail=f"The setting max_tails lets {self._limit} run at once.",
                hint="End one of them, or try again after Retry-After.",
                retry_after=5,
            )
        self.running += 1
        try:
            followed = await self._look(lambda: self._tailing.follow(asked))
        except BaseException:
            self.running -= 1
            raise
        body = self._body(followed, asked.name, encoder, follow=follow, limit=limit)
        return _TailResponse(body, encoder.media_type, lambda: self._ended(followed))

    def _ended(self, followed: Followed) -> None:
        self.running -= 1
        with suppress(RuntimeError):  # the pool is shut down with the service
            self._pool.submit(followed.close)

    async def _look(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def _body(
        self, followed: Followed, name: str, encoder: Encoder, *, follow: bool, limit: int | None
    ) -> AsyncIterator[bytes]:
        """The tail's bytes. An error after the first ones can only be told in the body."""
        try:
            yield encoder.begin(followed.at)
            async for page in self._pages(followed, name, follow):
                if page is None:
                    yield encoder.alive(followed.at)
                    continue
                page = page.first(limit)
                for start in range(0, page.rows.num_rows, SLICE):
                    yield encoder.rows(page.slice(start, SLICE))
                limit = None if limit is None else limit - page.rows.num_rows
                if limit == 0:
                    break
            if not (follow and self._stopping()):
                yield encoder.end()
        except Exception as failed:
            told = failed if isinstance(failed, HeadwaterError) else unexpected_error(failed, "tail")
            yield encoder.fail(problem(told))

    async def _pages(self, followed: Followed, name: str, follow: bool) -> AsyncIterator[Page | None]:
        """Pages with rows as they come; None when there was nothing to tell for a while."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        told = loop.time()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(woken.set)

        with self._tailing.news.listening(name, wake):
            while not self._stopping():
                woken.clear()  # before the look: what is appended from here on is looked for again
                page = await self._look(followed.poll)
                silent = page is None or not page.rows.num_rows
                if not silent or loop.time() - told >= HEARTBEAT:
                    yield None if silent else page
                    told = loop.time()
                if page is None:
                    if not follow:
                        return
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), LOOK)
        if not follow:
            raise Unavailable("the service is stopping", hint="Try again.")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _TailResponse(StreamingResponse):
    """A stream whose end is told however it ends, also when its body was never begun."""

    def __init__(self, body: AsyncIterator[bytes], media_type: str, ended: Callable[[], None]) -> None:
        super().__init__(body, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
