"""Bounds of long texts and bytes are cut, still enclose every value, and can always be stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, NestedField, StringType

from headwater.storage.file_statistics import footer_statistics

SCHEMA = Schema(NestedField(1, "s", StringType()), NestedField(2, "raw", BinaryType()))


def bounds(rows: list[tuple[str, bytes]], mode: str = "truncate(4)") -> dict[str, Any]:
    """The statistics that a file with these rows has."""
    sink = pa.BufferOutputStream()
    texts, raws = zip(*rows, strict=True)
    pq.write_table(pa.table({"s": pa.array(texts, pa.string()), "raw": pa.array(raws, pa.binary())}), sink)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    plan = compute_statistics_plan(SCHEMA, {"write.metadata.metrics.default": mode})
    return footer_statistics(footer, plan, parquet_path_to_id_mapping(SCHEMA))


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("abcd", "abcd"),
        ("abcde", "abce"),
        ("abc\ud7ffe", "abc\ue000"),
        ("abc\U0010ffffe", "abd"),
        ("\ud7ff\U0010ffff\U0010ffff\U0010ffffe", "\ue000"),
        ("\U0010ffff" * 4, "\U0010ffff" * 4),
        ("\U0010ffff" * 5, None),
    ],
)
def test_an_upper_bound_is_the_next_larger_prefix(text: str, upper: str | None) -> None:
    found = bounds([(text, b"")])["upper_bounds"].get(1)
    assert found == (None if upper is None else upper.encode())


@pytest.mark.parametrize(
    ("raw", "upper"),
    [(b"abcd", b"abcd"), (b"abcde", b"abce"), (b"ab\xff\xffe", b"ac"), (b"\xff" * 4, b"\xff" * 4), (b"\xff" * 5, None)],
)
def test_an_upper_bound_of_bytes_is_the_next_larger_prefix(raw: bytes, upper: bytes | None) -> None:
    assert bounds([("", raw)])["upper_bounds"].get(2) == upper


CHARACTERS = st.sampled_from("a\x00\ud7ff\ue000\uffff\U0010ffff") | st.characters(exclude_categories=["Cs"])
BYTES = st.lists(st.sampled_from([0, 1, 127, 128, 254, 255]), max_size=6).map(bytes)


@given(st.lists(st.tuples(st.text(CHARACTERS, max_size=6), BYTES), min_size=1, max_size=4))
def test_cut_bounds_enclose_every_value(rows: list[tuple[str, bytes]]) -> None:
    found = bounds(rows)
    for of, values in ((1, [text.encode() for text, _ in rows]), (2, [raw for _, raw in rows])):
        assert found["lower_bounds"][of] <= min(values)
        assert of not in found["upper_bounds"] or max(values) <= found["upper_bounds"][of]
    assert len(found["lower_bounds"][1].decode()) <= 4


@pytest.mark.parametrize("mode", ["none", "counts", "full", "truncate(1)"])
def test_every_mode_of_metrics_holds_for_odd_characters(mode: str) -> None:
    found = bounds([("\ud7ff" * 17, b"\xff" * 17)], mode)
    assert (1 in found["lower_bounds"]) == (mode not in ("none", "counts"))
    assert (2 in found["upper_bounds"]) == (mode == "full")
