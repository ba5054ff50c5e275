"""Inputs as chunks: nothing lost, sizes bounded, cuts the same in every run, and places that a person can find."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BodyTooLarge, HeadwaterError, InvalidInput, RecordsRejected
from headwater.sources.reading import Chunk, Kind, kind_of, open_input, read_chunks

MB = 1024**2


def chunks(body: bytes, kind: Any, target: int = 1024, max_record: int = MB) -> list[Chunk]:
    return list(read_chunks(io.BytesIO(body), kind, target, max_record, live=False))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.ndjson", "ndjson"), ("a.JSONL", "ndjson"), ("a.csv.gz", "csv"), ("a.b.parquet", "parquet"), ("a.txt", None)],
)
def test_formats_by_name(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_lines_are_kept_and_named() -> None:
    body = b"".join(b'{"n": %d}\n' % n + (b"\n" if n % 3 == 0 else b"") for n in range(500))
    found = chunks(body, "ndjson")
    assert b"".join(chunk.block for chunk in found) == body
    assert len(found) > 3
    numbers = {line: number for number, line in enumerate(body.split(b"\n"), 1) if line}
    for chunk in found:
        records = [line for line in chunk.block.split(b"\n") if line]
        assert [chunk.place(row) for row in range(len(records))] == [f"line {numbers[record]}" for record in records]


def test_csv_rows_are_named_by_their_first_line() -> None:
    body = b"a,b\n" + b"".join(b'%d,"x\ny"\n' % n for n in range(300))
    found = chunks(body, "csv")
    assert len(found) > 2
    assert all(chunk.block.startswith(b"a,b\n") for chunk in found)
    places = [chunk.place(row) for chunk in found for row in range(chunk.block.count(b'"') // 2)]
    assert places == [f"line {2 + 2 * n}" for n in range(300)]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.lists(st.text()))), st.booleans())
def test_arrays_come_apart_into_their_elements(records: list[dict[str, Any]], indented: bool) -> None:
    body = json.dumps(records, indent=2 if indented else None, ensure_ascii=False).encode()
    found = chunks(body, "json", target=64)
    lines = [line for chunk in found for line in chunk.block.split(b"\n")]
    assert [json.loads(line) for line in lines] == records
    assert [chunk.place(0) for chunk in found[:1]] == ["record 1"][: len(found)]


def test_a_json_object_alone_is_one_record() -> None:
    (chunk,) = chunks(b' {"a": 1} \n', "json")
    assert json.loads(chunk.block) == {"a": 1}


@pytest.mark.parametrize(
    "body", [b"[{}", b"[{} {}]", b'{"a": 1}\n{"a": 2}', b"3", b"[{}] x", b'[{"a": tru]', b"[\xff]"]
)
def test_broken_json_is_refused(body: bytes) -> None:
    with pytest.raises(RecordsRejected, match="not a JSON array"):
        chunks(body, "json")


def test_records_on_lines_of_their_own_are_told_from_an_array() -> None:
    for body in (b'{"a": 1}\n{"a": 2}', b'[{"a": 1}]\n[{"a": 2}]'):
        with pytest.raises(RecordsRejected) as refused:
            chunks(body, "json")
        assert refused.value.detail is not None and "another format, ndjson" in refused.value.detail


def test_json_that_is_broken_far_from_its_end_is_not_called_too_long() -> None:
    rest = b", ".join([b'{"a": 1}'] * 10_000)
    for record, reason in ((b'{"a": oops}', "Expecting value"), (b'{"a": 1 "b": 2}', "Expecting ',' delimiter")):
        with pytest.raises(RecordsRejected, match="not a JSON array") as refused:
            chunks(b"[" + record + b", " + rest + b"]", "json", max_record=1000)
        assert refused.value.detail is not None and reason in refused.value.detail
    with pytest.raises(RecordsRejected, match="not a JSON array") as refused:
        chunks(b"[" * 100_000 + rest, "json", max_record=1000)
    assert refused.value.detail is not None and "nested too deeply" in refused.value.detail


@pytest.mark.parametrize("kind", ["ndjson", "json", "csv"])
def test_what_is_not_compressed_as_its_name_says(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "a.gz").write_bytes(b'{"a": 1}\n')
    with open_input(str(tmp_path / "a.gz")) as stream, pytest.raises(InvalidInput, match="read to its end"):
        list(read_chunks(stream, kind, MB, MB, live=False))


def test_nothing_has_no_chunks() -> None:
    assert [chunks(b"", kind) for kind in ("ndjson", "json", "csv")] == [[], [], []]


def test_endless_records_are_refused() -> None:
    for kind, body in (("ndjson", b"x" * 5000), ("json", b'[{"a": "' + b"x" * 5000)):
        with pytest.raises((BodyTooLarge, RecordsRejected)):
            chunks(body, kind, max_record=1000)


def test_columnar_inputs_are_cut_and_joined(tmp_path: Path) -> None:
    table = pa.table({"a": range(10_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    for kind in ("parquet", "arrow"):
        with (tmp_path / f"a.{kind}").open("rb") as stream:
            found = list(read_chunks(stream, kind, 16 * 1024, MB, live=False))  # type: ignore[arg-type]
        assert pa.concat_tables([chunk.block for chunk in found]).column("a").to_pylist() == list(range(10_000))
        assert all(chunk.block.nbytes < 48 * 1024 for chunk in found)
        assert found[1].place(0) == f"row {found[0].block.num_rows + 1}"


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_what_is_not_columnar_is_refused(kind: str) -> None:
    with pytest.raises(RecordsRejected, match="input is not"):
        chunks(b"neither of them", kind)


def test_an_arrow_stream_that_was_cut_is_refused() -> None:
    schema = pa.schema([("a", pa.int64())])
    sink, ends = io.BytesIO(), []
    with pa.ipc.new_stream(sink, schema) as writer:
        for start in (0, 3, 6):
            writer.write_batch(pa.record_batch([pa.array(range(start, start + 3))], schema=schema))
            ends.append(sink.tell())
    body = sink.getvalue()
    assert [chunk.block.num_rows for chunk in chunks(body, "arrow")] == [9]
    for end in (*ends, *(end - 5 for end in ends), len(body) - 1):
        with pytest.raises(RecordsRejected, match="ends before its end marker"):
            chunks(body[:end], "arrow")


def test_a_live_pipe_is_sent_without_waiting_for_more() -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []
    with open(reading, "rb") as stream:  # noqa: PTH123
        thread = threading.Thread(
            target=lambda: got.extend(chunk.block for chunk in read_chunks(stream, "ndjson", MB, MB, live=True))
        )
        thread.start()
        os.write(writing, b'{"a": 1}\n{"a"')
        deadline = time.monotonic() + 30
        while not got and time.monotonic() < deadline:
            time.sleep(0.05)
        assert got == [b'{"a": 1}\n']
        os.write(writing, b": 2}")
        os.close(writing)
        thread.join(30)
    assert got == [b'{"a": 1}\n', b'{"a": 2}']


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        open_input(str(tmp_path / "none.csv"))
    with pytest.raises(HeadwaterError):
        open_input(str(tmp_path / "none.csv.gz"))
