"""Realistic events, deterministic: a shop's clicks and purchases, about 110 bytes of NDJSON each, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = (
    "event_id BIGINT NOT NULL, user_id BIGINT NOT NULL, region STRING, kind STRING, amount DECIMAL(12,2), ts TIMESTAMP"
)
REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south", "sa-east")
KINDS = ("view", "view", "view", "click", "click", "cart", "purchase")
START = np.datetime64("2026-01-01T00:00:00", "ms")
BLOCK = 100_000


def events(start: int, count: int, *, total: int = 10_000_000, days: int = 30) -> pa.Table:
    """Events `[start, start + count)` of a stream of `total` that spans `days`; users follow a skewed distribution."""
    random = np.random.default_rng(start)
    ids = np.arange(start, start + count)
    users = (random.pareto(1.2, count) * 2_000).astype(np.int64) % 200_000
    step_ms = days * 86_400_000 / total
    jitter = random.integers(0, 1_000, count)
    stamps = START + (ids * step_ms).astype("timedelta64[ms]") + jitter.astype("timedelta64[ms]")
    cents = np.round(random.lognormal(3.2, 1.0, count) * 100).astype(np.int64)
    return pa.table(
        {
            "event_id": ids,
            "user_id": users,
            "region": pa.array(REGIONS).take(pa.array(random.integers(0, len(REGIONS), count))),
            "kind": pa.array(KINDS).take(pa.array(random.integers(0, len(KINDS), count))),
            "amount": _decimals(cents),
            "ts": pa.array(stamps.astype("datetime64[us]")).cast(pa.timestamp("us", "UTC")),
        }
    )


def _decimals(cents: np.ndarray) -> pa.Array:
    """Whole cents as decimal(12,2): little-endian 128-bit integers."""
    words = np.column_stack([cents, np.zeros_like(cents)])
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(words.tobytes())])


def ndjson(table: pa.Table) -> bytes:
    """The events as NDJSON, built column by column."""
    stamps = pc.strftime(table["ts"].cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
    parts = (
        '{"event_id":', table["event_id"].cast(pa.string()), ',"user_id":', table["user_id"].cast(pa.string()),
        ',"region":"', table["region"], '","kind":"', table["kind"], '","amount":', table["amount"].cast(pa.string()),
        ',"ts":"', stamps, '"}\n',
    )  # fmt: skip
    lines = pc.binary_join_element_wise(*parts, "")
    data = pa.concat_arrays(lines.chunks) if isinstance(lines, pa.ChunkedArray) else lines
    return data.buffers()[2].to_pybytes()


def blocks(count: int, *, days: int = 30) -> Iterator[pa.Table]:
    """`count` events that span `days`, in blocks of BLOCK."""
    for start in range(0, count, BLOCK):
        yield events(start, min(BLOCK, count - start), total=count, days=days)


def write_ndjson(path: Path, count: int) -> int:
    """A file of the first `count` events; returns its size."""
    with path.open("wb") as file:
        for block in blocks(count):
            file.write(ndjson(block))
    return path.stat().st_size
