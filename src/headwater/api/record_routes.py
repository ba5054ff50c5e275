"""POST /api/v1/topics/{topic}/records: a body streams into the decoder and is acknowledged once it is on disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.requests import ClientDisconnect

from headwater.api import described
from headwater.api.admission import Reservation
from headwater.api.bodies import BodyFile, Inbound, too_large
from headwater.api.models import Acknowledged
from headwater.api.records import (
    ARROW,
    FORMATS,
    MAX_KEY,
    MAX_SEQUENCE,
    NDJSON,
    BodyFormat,
    account_of,
    blocks_of,
    coding_of,
    format_of,
    source_of,
)
from headwater.api.state import Shared, State
from headwater.api.topic_routes import TopicPath
from headwater.errors import Backpressure, HeadwaterError, InvalidInput
from headwater.topics.produce import Ack, Source

router = APIRouter(prefix="/api/v1", tags=["records"])

_LINE = '{"order_id": 1, "customer": "ada", "total": "9.90", "placed_at": "2024-05-01T10:00:00"}'
_CONTENT: dict[str, Any] = {
    **{name: described.text(_LINE + "\n") for name, format in FORMATS.items() if format == "ndjson"},
    "application/json": {
        "schema": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]},
    },
    "text/csv": described.text("order_id,customer\n1,ada\n"),
    ARROW: described.binary(),
}
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_KEY,
        description="Identifies this very request: a retry with the same key and records is stored once.",
    ),
]
Producer = Annotated[
    str | None,
    Header(
        alias="Headwater-Producer",
        min_length=1,
        max_length=MAX_KEY,
        description="With Headwater-Sequence, another way to identify a request: a producer and its running number.",
    ),
]
Sequence = Annotated[int | None, Header(alias="Headwater-Sequence", ge=0, le=MAX_SEQUENCE)]


@router.post(
    "/topics/{topic}/records",
    operation_id="append_records",
    response_model=Acknowledged,
    responses=described.problems(404, 409, 413, 415, 422, 429),
    openapi_extra=described.body(
        f"Records; {NDJSON} and {ARROW} are the fast formats. Content-Encoding may be gzip or zstd.",
        _CONTENT,
    ),
)
async def append_records(
    shared: Shared,
    request: Request,
    topic: TopicPath,
    idempotency_key: Key = None,
    headwater_producer: Producer = None,
    headwater_sequence: Sequence = None,
) -> dict[str, Any]:
    """Store all records of the body or none; the answer means that they are on disk."""
    body = Inbound(request.receive, shared.limits.body)
    try:
        sent = Sent(
            topic,
            format_of(request.headers.get("content-type", "")),
            coding_of(request.headers.get("content-encoding", "")),
            source_of(idempotency_key, headwater_producer, headwater_sequence),
        )
        with _reserved(shared, _length(request)) as reservation:
            return _acknowledged(await _append(shared, sent, body, reservation))
    except HeadwaterError:
        # Not for a client that asked before sending: it has not begun, and need not.
        if not body.ended and "expect" not in request.headers:
            await body.drain()
        raise


@dataclass(frozen=True, slots=True)
class Sent:
    """What a request says about its body."""

    topic: str
    format: BodyFormat
    coding: str | None
    source: Source


def _length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _reserved(shared: State, length: int) -> Reservation:
    """Room for the whole body if its length is known; refused before a byte of it is read."""
    if length > shared.limits.body:
        raise too_large(shared.limits.body)
    try:
        return shared.budget.reserve(length)
    except Backpressure:
        shared.lake.metrics.backpressure.inc()
        raise


async def _append(shared: State, sent: Sent, body: Inbound, reservation: Reservation) -> Ack:
    pump = asyncio.create_task(body.pump(reservation))
    try:
        await body.ready.wait()
        hold = account_of(shared.limits.body, reservation)

        def account(size: int) -> None:
            body.check()  # a client that left does not wait for an acknowledgement: decoding ends
            hold(size)

        blocks, format = blocks_of(BodyFile(body), sent.format, sent.coding, shared.limits.record, account)
        return await shared.call(
            shared.lake.append, sent.topic, blocks, format, sent.source, wait=False, account=account
        )
    except ClientDisconnect:
        raise InvalidInput("request ended before its body did", detail="Nothing was written.") from None
    finally:
        body.abort()
        pump.cancel()
        await asyncio.wait([pump])


def _acknowledged(ack: Ack) -> dict[str, Any]:
    return {
        "topic": ack.topic,
        "offsets": [ack.offsets.start, ack.offsets.end],
        "rows": ack.rows,
        "duplicates": ack.duplicates,
        "dead": ack.dead,
        "repeated": ack.repeated,
    }
