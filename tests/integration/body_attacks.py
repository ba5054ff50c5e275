"""Small bodies that would become large, sent to a service whose memory is limited. Run by test_memory.py.

Each is refused, and the service answers the next request. The limit is the process's own: what goes beyond it fails.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

import headwater
from headwater.api.serve import Service

ROOM = 1024 * 1024**2
"""Address space beyond what the service has when it is ready; most of what it maps, it never touches."""
NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"

WIDE = ", ".join(f"c{n} BIGINT" for n in range(200))
NESTED = ", ".join(f"f{n}: BIGINT" for n in range(200))
TOPICS = {
    "wide": f"({WIDE})",
    "text": "(v STRING, w STRING)",
    "nested": f"(v ARRAY<STRUCT<{NESTED}>>)",
    "mapped": f"({WIDE}, v MAP<STRING, STRUCT<{NESTED}>>, w ARRAY<STRUCT<{NESTED}>>)",
    "deep": "(l ARRAY<STRING>, ll ARRAY<ARRAY<STRING>>, m MAP<STRING, STRING>, s STRUCT<v: ARRAY<STRING>>, "
    "ls ARRAY<STRUCT<v: STRING>>, n ARRAY<STRUCT<b: INT>>)",
    "dead": "(id BIGINT NOT NULL) WITH (on_invalid = 'dead_letter')",
}


def arrow(table: pa.Table, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def repeated(value: str, times: int) -> pa.Table:
    return pa.table({"v": pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int8)), pa.array([value]))})


def viewed(value: str, times: int) -> pa.Table:
    _, view, data = pa.array([value], pa.string_view()).buffers()
    views = pa.py_buffer(np.tile(np.frombuffer(view, np.uint8), times))
    return pa.table({"v": pa.Array.from_buffers(pa.string_view(), times, [None, views, data])})


def nothing(times: int) -> pa.Array:
    return pa.Array.from_buffers(pa.null(), times, [None])


def lists(element: pa.Array, count: int) -> pa.Table:
    return pa.table({"v": pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), element)})


def deep() -> Iterator[tuple[str, pa.Array]]:
    """One record whose lists hold one long text, or one bad value, very often: by the column that it belongs to."""
    for times in (100_000, 3_000_000):
        whole = pa.array([0, times], pa.int32())
        texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int8)), pa.array(["y" * 2000]))
        one = pa.ListArray.from_arrays(whole, texts)
        yield "l", one
        yield "l", pa.ListArray.from_arrays(whole, viewed("y" * 2000, times).column("v").chunk(0))
        yield "ll", pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), one)
        yield "m", pa.MapArray.from_arrays(whole, texts, texts)
        yield "s", pa.StructArray.from_arrays([one], ["v"])
        yield "ls", pa.ListArray.from_arrays(whole, pa.StructArray.from_arrays([texts], ["v"]))
        wrong = pa.array(np.full(times, 2**40))
        yield "n", pa.ListArray.from_arrays(whole, pa.StructArray.from_arrays([wrong], ["b"]))


def attacks() -> Iterator[tuple[str, str, str, bytes, bool]]:
    """Topic, name, media type, body, whether the body is compressed."""
    yield "wide", "empty objects", NDJSON, b"{}\n" * 6_000_000, True
    yield "wide", "an array of empty objects", "application/json", b"[" + b"{}," * 6_000_000 + b"{}]", True
    yield "wide", "one cell in each row", "text/csv", b"c0\n" + b"1\n" * 8_000_000, True
    yield "wide", "nothing, 2^31 times", ARROW, arrow(pa.table({"c0": nothing(2**31 - 1)})), False
    yield "wide", "zeros", ARROW, arrow(pa.table({"c0": np.zeros(40_000_000, np.int64)}), "zstd"), False
    yield "text", "a dictionary of one text", ARROW, arrow(repeated("x" * 5000, 2_000_000), "zstd"), False
    yield "text", "views of one text", ARROW, arrow(viewed("x" * 5000, 2_000_000), "zstd"), False
    yield "nested", "a list of empty objects", NDJSON, b'{"v":[' + b"{}," * 5_000_000 + b"{}]}\n", True
    yield "nested", "lists of empty objects", NDJSON, (b'{"v":[' + b"{}," * 500 + b"{}]}\n") * 10_000, True
    yield "nested", "a list in a cell", "text/csv", b'v\n"[' + b"{}," * 5_000_000 + b'{}]"\n', True
    yield "nested", "a list of nothing", ARROW, arrow(lists(nothing(2**31 - 1), 2**31 - 1)), False
    empty = pa.Array.from_buffers(pa.struct([]), 2**31 - 1, [None])
    yield "nested", "a list of structs without fields", ARROW, arrow(lists(empty, 2**31 - 1)), False
    yield "mapped", "a list beside a map", NDJSON, b'{"w":[' + b"{}," * 5_000_000 + b"{}]}\n", True
    yield "mapped", "empty objects with a map", NDJSON, b"{}\n" * 20_000_000, True
    yield "dead", "lines that are no records", NDJSON, b"x\n" * 20_000_000, True
    yield "dead", "rows of too many cells", "text/csv", b"id\n" + b"1,1\n" * 10_000_000, True
    for number, (column, values) in enumerate(deep()):
        yield "deep", f"{column} {number}", ARROW, arrow(pa.table({column: values}), "zstd"), False
    whole = arrow(pa.table({"c0": range(999)}))
    size = (999 * 8).to_bytes(8, "little")  # of the body of the only batch
    assert size in whole
    yield "wide", "a declared length", ARROW, whole.replace(size, b"\0" * 6 + b"\1\0"), False


def main(folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 * 1024**3,) * 2)  # for the making of bodies
    bodies = [
        (topic, name, media_type, gzip.compress(body, 6) if compressed else body, compressed)
        for topic, name, media_type, body, compressed in attacks()
    ]
    found = {}
    with headwater.init(Path(folder) / "lake", max_body_bytes=64 * 1024**2) as lake:
        for topic, columns in TOPICS.items():
            lake.sql(f"CREATE TOPIC {topic} {columns}")
        service = Service(lake, port=0)
        with httpx.Client(base_url=service.start(), timeout=300, trust_env=False) as http:
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, 6 * 1024**3))
            for topic, name, media_type, body, compressed in bodies:
                headers = {"Content-Type": media_type, **({"Content-Encoding": "gzip"} if compressed else {})}
                answer = http.post(f"/api/v1/topics/{topic}/records", content=body, headers=headers)
                found[name] = [answer.status_code, answer.json().get("code", ""), len(body)]
                good = b'{"id": 1}\n' if topic == "dead" else b"{}\n"
                after = http.post(f"/api/v1/topics/{topic}/records", content=good, headers={"Content-Type": NDJSON})
                assert after.status_code == 200, (name, after.text)
        service.stop()
    peak = int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
    sys.stdout.write(json.dumps({"answers": found, "peak_mb": peak // 1024}))


if __name__ == "__main__":
    main(sys.argv[1])
