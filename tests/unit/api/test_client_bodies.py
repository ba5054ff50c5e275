"""What the client sends: the blocks of one request as one body, which can be sent again."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest

from headwater.client.bodies import body_of
from headwater.errors import InvalidInput


def sent(blocks: list[Any], format: Any) -> bytes:
    body = body_of(iter(blocks), format)
    first, again = b"".join(body.chunks()), b"".join(body.chunks())
    assert first == again
    assert body.headers.get("Content-Length", str(len(first))) == str(len(first))
    return first


def test_lines_never_run_together() -> None:
    assert sent([b'{"a":1}', b'{"a":2}\n', b"", b'{"a":3}'], "ndjson") == b'{"a":1}\n{"a":2}\n{"a":3}\n'


def test_csv_keeps_one_header() -> None:
    assert sent([b"a,b\n1,2\n", b"a,b\n3,4"], "csv") == b"a,b\n1,2\n3,4\n"


@pytest.mark.parametrize(
    ("blocks", "rows"),
    [
        ([b' {"a": 1} '], {"a": 1}),
        ([b'[{"a": 1}]', b" [ ] ", b'{"a": 2}', b'[{"a": 3}, {"a": 4}]\n'], [{"a": n} for n in (1, 2, 3, 4)]),
        ([b"[]", b"[]"], []),
    ],
)
def test_json_documents_become_one(blocks: list[bytes], rows: Any) -> None:
    assert json.loads(sent(blocks, "json")) == rows


def test_python_values_are_written_as_the_decoder_reads_them() -> None:
    row = {
        "day": date(2024, 5, 1),
        "at": datetime(2024, 5, 1, 10, tzinfo=UTC),
        "time": time(10, 30),
        "total": Decimal("9.90"),
        "id": UUID(int=1),
        "raw": b"\xff",
        "nested": [{"x": Decimal("1")}],
        "text": "ä",
    }
    assert json.loads(sent([[row]], "rows")) == {
        "day": "2024-05-01",
        "at": "2024-05-01T10:00:00+00:00",
        "time": "10:30:00",
        "total": "9.90",
        "id": "00000000-0000-0000-0000-000000000001",
        "raw": "/w==",
        "nested": [{"x": "1"}],
        "text": "ä",
    }
    with pytest.raises(InvalidInput, match='"object"'):
        sent([[{"x": object()}]], "rows")


def test_tables_become_an_arrow_stream() -> None:
    table = pa.table({"id": range(5), "kind": pa.array(["a", "b", "a", None, "b"]).dictionary_encode()})
    whole = pa.ipc.open_stream(sent([table, table.to_batches()[0]], "arrow")).read_all()
    assert whole.to_pylist() == table.to_pylist() * 2
    frame = pd.DataFrame({"id": [1, 2]}, index=["x", "y"])
    assert pa.ipc.open_stream(sent([frame], "pandas")).read_all().to_pylist() == [{"id": 1}, {"id": 2}]
