"""A query that the service runs: its batches come over one connection, a cancellation goes over another."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pyarrow as pa
from ulid import ULID

from headwater.client.answers import error_of
from headwater.client.bodies import ARROW
from headwater.errors import HeadwaterError, Unavailable
from headwater.sql.statements import Explain, Query

CANCEL_SECONDS = 5.0
INFO = b"headwater.info"
"""The key in the Arrow schema's metadata under which the plan and the notices travel, as JSON."""


def query_body(statement: Query | Explain) -> dict[str, Any]:
    """The JSON of a query. The limit on rows stays here: it is about memory, and the service streams."""
    query = statement.query if isinstance(statement, Explain) else statement
    verb = "" if isinstance(statement, Query) else "EXPLAIN ANALYZE " if statement.analyze else "EXPLAIN "
    body = {"sql": verb + query.text, "engine": query.engine, "tail": query.tail, "timeout": query.timeout}
    return {key: value for key, value in body.items() if value is not None}


class RemoteRun:
    """Started once, read once; `cancel` may be called from anywhere."""

    def __init__(self, url: str, client: httpx.Client, body: Mapping[str, Any], timeout: httpx.Timeout) -> None:
        self.id = str(ULID())
        self.schema = pa.schema([])
        self.about: dict[str, Any] = {}
        self._url = url
        self._client = client
        self._request = client.build_request(
            "POST", "/query", json={**body, "id": self.id}, headers={"Accept": ARROW}, timeout=timeout
        )
        self._response: httpx.Response | None = None
        self._reader: Any = None
        self._ended = False

    def start(self) -> None:
        """Send the query and wait for its first rows; raises what the service answers instead."""
        response = self._response = self._client.send(self._request, stream=True)
        if response.status_code != 200:
            self._ended = True
            response.read()
            raise error_of(response, self._url)
        self._reader = pa.ipc.open_stream(ResponseFile(response))
        schema = self._reader.schema
        self.about = json.loads((schema.metadata or {}).get(INFO, b"{}"))
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != INFO}
        self.schema = schema.with_metadata(metadata or None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches as they come; if the service cuts the stream, its reason is raised."""
        try:
            for batch in self._reader:
                yield batch.replace_schema_metadata(self.schema.metadata)
            self._ended = True
        except (httpx.HTTPError, httpx.StreamError, pa.ArrowException, OSError) as cut:
            self._ended = True
            raise self._reason(cut) from None
        finally:
            self.close()

    def _reason(self, cut: Exception) -> HeadwaterError:
        try:
            answer = self._client.get(f"/query/{self.id}", params={"limit": 1, "wait": 2})
            if answer.status_code >= 400 and answer.status_code != 404:
                return error_of(answer, self._url)
        except httpx.HTTPError:
            pass
        return Unavailable(f'connection to "{self._url}" broke', detail=f"{str(cut).rstrip('.')}.")

    def cancel(self) -> None:
        """Stop the query on the service, also before it has answered."""
        # A client of its own: this may run in a signal handler while the other one is in use.
        with httpx.Client(timeout=CANCEL_SECONDS, trust_env=False) as client:
            for _ in range(20):
                try:
                    answer = client.delete(f"{self._url}/api/v1/query/{self.id}")
                except httpx.HTTPError:
                    return
                if answer.status_code != 404 or self._ended:
                    return
                time.sleep(0.05)  # it may not have arrived yet

    def close(self) -> None:
        """Stop reading; the service notices and stops the query."""
        if self._response is not None:
            self._response.close()


class ResponseFile(io.RawIOBase):
    """A response's body as a file that is read forward."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_raw()
        self._held = bytearray()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._held) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._held += chunk
        size = len(self._held) if size < 0 else size
        piece = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return piece
