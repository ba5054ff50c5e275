"""A tail's rows as server-sent events, as NDJSON, or as Arrow."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headwater.api.records import ARROW, NDJSON
from headwater.api.tails import Encoder
from headwater.serving.tailing import Page
from headwater.storage.encode import to_json_lines

EVENTS = "text/event-stream"
RETRY = 1000
"""Milliseconds after which a browser asks again when the connection ended."""

AT, PROBLEM, END = b"headwater.at", b"headwater.problem", b"headwater.end"
"""Keys in the metadata of a schema: where a tail goes on, what ended it, and that it has ended by itself."""


class Events:
    """Server-sent events. Every event has an id; an event without data moves it on and is not seen by pages."""

    media_type = EVENTS

    def begin(self, at: str) -> bytes:
        return f"retry: {RETRY}\nid: {at}\n\n".encode()

    def rows(self, page: Page) -> bytes:
        lines = to_json_lines(page.rows).splitlines()
        return b"".join(
            b"id: %s\nevent: row\ndata: %s\n\n" % (page.mark_of(place).encode(), line)
            for place, line in enumerate(lines)
        )

    def alive(self, at: str) -> bytes:
        return f": alive\nid: {at}\n\n".encode()

    def fail(self, problem: dict[str, Any]) -> bytes:
        return b"event: problem\ndata: " + _json(problem) + b"\n\n"

    def end(self) -> bytes:
        return b"event: end\ndata: {}\n\n"


class Lines:
    """NDJSON: an object per row; a problem is the last line. An empty line says that the tail lives."""

    media_type = NDJSON

    def begin(self, at: str) -> bytes:
        return b""

    def rows(self, page: Page) -> bytes:
        return to_json_lines(page.rows)

    def alive(self, at: str) -> bytes:
        return b"\n"

    def fail(self, problem: dict[str, Any]) -> bytes:
        return _json({"problem": problem}) + b"\n"

    def end(self) -> bytes:
        return b""


class ArrowPages:
    """Arrow IPC streams one after the other, each with the columns of its own page: a topic may get others."""

    media_type = ARROW

    def begin(self, at: str) -> bytes:
        return self.alive(at)

    def rows(self, page: Page) -> bytes:
        return _stream(page.rows, {AT: page.at.encode()})

    def alive(self, at: str) -> bytes:
        return _stream(_NO_ROWS, {AT: at.encode()})

    def fail(self, problem: dict[str, Any]) -> bytes:
        return _stream(_NO_ROWS, {PROBLEM: _json(problem)})

    def end(self) -> bytes:
        return _stream(_NO_ROWS, {END: b"1"})


FORMS: dict[str, type[Encoder]] = {EVENTS: Events, NDJSON: Lines, ARROW: ArrowPages}

_NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


def _stream(rows: pa.RecordBatch, about: dict[bytes, bytes]) -> bytes:
    schema = rows.schema.with_metadata({**(rows.schema.metadata or {}), **about})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        if rows.num_rows:
            stream.write_batch(rows.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
