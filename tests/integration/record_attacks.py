"""One record of millions of tiny values, decoded in a process whose memory is limited. Run by test_memory.py.

Each way into a topic refuses it, and says why; a record with one long text, which takes what its text takes, is let in.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, MapType, NestedField, StringType

from headwater.storage.decode import Decoded, RecordDecoder, json_blocks

ROOM = 192 * 1024**2
"""Address space beyond what the process has; the text has 16 MB, and is there several times."""
PIECE = 1024**2

FLAT = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
MAPPED = Schema(NestedField(1, "id", LongType()), NestedField(2, "map", MapType(3, StringType(), 4, StringType())))


def cut(body: bytes) -> bytes:
    pieces = (body[at : at + PIECE] for at in range(0, len(body), PIECE))
    return b"\n".join(json_blocks(pieces, 4 * PIECE, 16 * PIECE))


def verdict(decoded: Decoded) -> str:
    return decoded.rejects[0].reason if decoded.rejects else f"{decoded.table.num_rows} row"


def main() -> None:
    heavy = b'{"x":[' + b"{}," * 5_000_000 + b"{}]}"
    sound = b'{"id":1,"text":"' + b"x" * 15_000_000 + b'"}'
    flat, mapped, tolerant = RecordDecoder(FLAT), RecordDecoder(MAPPED), RecordDecoder(FLAT, tolerant=True)
    ways: dict[str, Callable[[], str]] = {
        "cut": lambda: verdict(flat.ndjson(cut(b"[" + heavy + b"]"))),
        "ndjson": lambda: verdict(flat.ndjson(heavy)),
        "json": lambda: verdict(flat.json(heavy)),
        "tolerant": lambda: verdict(tolerant.ndjson(heavy)),
        "beside a map": lambda: verdict(mapped.ndjson(heavy)),
        "sound": lambda: verdict(flat.ndjson(cut(b"[" + sound + b"]"))),
    }
    flat.ndjson(b'{"id":1}\n{"id":"x"}'), mapped.ndjson(b'{"id":1}')  # so that all modules and threads are there
    flat.ndjson(b'{"id":1}\n' * 200_000)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout.write(json.dumps({name: way() for name, way in ways.items()}))


if __name__ == "__main__":
    main()
