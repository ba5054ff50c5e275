"""Tails of the lake behind a service: Arrow over one long response, taken up again where it broke."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

import httpx
import pyarrow as pa

from headwater.client.answers import error_of, problem_error
from headwater.client.bodies import ARROW
from headwater.client.run import ResponseFile
from headwater.errors import TopicNotFound, Unavailable, ViewNotFound
from headwater.serving.tail_request import TailRequest

AT, PROBLEM, END = b"headwater.at", b"headwater.problem", b"headwater.end"
"""Keys in the metadata of a schema: where a tail goes on, what ended it, and that it has ended by itself."""
READ_SECONDS = 60.0
"""The service says something every 15 s; after so long without a word it is gone."""
MAX_PAUSE = 5.0


class TailLike(Protocol):
    """A tail of a lake that is open here or behind a service."""

    @property
    def at(self) -> str: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def close(self) -> None: ...


def tail_params(
    asked: TailRequest, start: str | int | datetime, follow: bool, limit: int | None
) -> dict[str, str | int | bool]:
    """The parameters of a request that was checked; a start in words is read by the service, which has the clock."""
    given = {
        "from": start.isoformat() if isinstance(start, datetime) else str(start),
        "where": asked.where,
        "columns": ",".join(asked.columns) or None,
        "limit": limit,
        "follow": follow,
    }
    return {key: value for key, value in given.items() if value is not None}


class RemoteTail:
    """See `headwater.engine.tailing.Tail`. A connection that breaks is made again, without gap or repeat."""

    def __init__(
        self,
        client: httpx.Client,
        url: str,
        name: str,
        params: Mapping[str, str | int | bool],
        after: str | None,
        named: Callable[[], AbstractContextManager[None]],
        retry_seconds: float,
    ) -> None:
        self._client = client
        self._url = url
        self._params = dict(params)
        self._after = after
        self._named = named
        self._retry_seconds = retry_seconds
        self._left = params.get("limit")
        self._closed = False
        self._response = self._opened(name)

    @property
    def at(self) -> str:
        """The mark of what was given last: a tail with `after` this goes on behind it."""
        return self._after or ""

    def _opened(self, name: str) -> httpx.Response:
        """The first response, of the topic or else of the view that has the name."""
        self._path = f"/topics/{name}/tail"
        try:
            return self._connect()
        except TopicNotFound as no_topic:
            self._path = f"/views/{name}/tail"
            try:
                return self._connect()
            except ViewNotFound:
                raise no_topic from None

    def _connect(self) -> httpx.Response:
        headers = {"Accept": ARROW} | ({"Last-Event-ID": self._after} if self._after else {})
        timeout = httpx.Timeout(READ_SECONDS, connect=MAX_PAUSE, pool=None)
        params = self._params if self._left is None else {**self._params, "limit": self._left}
        with self._named():
            request = self._client.build_request("GET", self._path, params=params, headers=headers, timeout=timeout)
            response = self._client.send(request, stream=True)
            if response.status_code != 200:
                response.read()
                raise error_of(response, self._url)
            return response

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come, some at a time; columns that are added meanwhile are in later batches."""
        try:
            while not self._ended:
                try:
                    with self._named():
                        yield from self._received()
                    return
                except Unavailable:
                    self._connect_again()
        finally:
            self._response.close()

    def _received(self) -> Iterator[pa.RecordBatch]:
        """What one response brings; Unavailable when it ends before the tail does."""
        file = ResponseFile(self._response)
        try:
            while not self._closed:
                stream = pa.ipc.open_stream(file)
                rows, about = stream.read_all(), stream.schema.metadata or {}
                if END in about:
                    return
                if PROBLEM in about:
                    told = json.loads(about[PROBLEM])
                    raise problem_error(told, told["status"])
                self._after = about[AT].decode()
                if rows.num_rows:
                    yield from self._counted(rows)
        except (pa.ArrowException, httpx.StreamError, OSError) as cut:
            raise Unavailable(f'tail of "{self._url}" broke', detail=f"{str(cut).rstrip('.')}.") from None

    def _counted(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        metadata = {key: value for key, value in (rows.schema.metadata or {}).items() if key != AT}
        self._left = None if self._left is None else int(self._left) - rows.num_rows
        yield from rows.replace_schema_metadata(metadata or None).to_batches()

    @property
    def _ended(self) -> bool:
        return self._closed or self._client.is_closed

    def _connect_again(self) -> None:
        """Go on behind what was given last; a service that is gone for too long is an error."""
        self._response.close()
        deadline, attempt = time.monotonic() + self._retry_seconds, 0
        while not self._ended:
            try:
                self._response = self._connect()
                return
            except Unavailable:
                pause = min(MAX_PAUSE, 0.1 * 2.0**attempt) * random.uniform(0.5, 1.0)
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            attempt += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()

    def close(self) -> None:
        """End it; who waits for the next row is woken."""
        self._closed = True
        self._response.close()
