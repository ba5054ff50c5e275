"""Results as CSV and JSON text, and errors as text and problems."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.failures import report, report_bug
from headwater.cli.formats import first_rows, to_csv, write_result
from headwater.cli.screen import Screen, counted, sized, timed
from headwater.errors import TopicNotFound
from headwater.serving.result import Result


def test_csv_of_every_kind() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "i": pa.array([1, None]),
            "d": pa.array([Decimal("1.50"), None]),
            "f": pa.array([math.nan, 0.1]),
            "b": pa.array([True, None]),
            "t": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "s": pa.array(["", None]),
            "l": pa.array([[1, 2], None]),
        }
    )
    assert to_csv(batch).decode() == '1,1.50,NaN,true,2024-01-02T03:04:05Z,"","[1,2]"\n,,0.1,,,,\n'


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_any_text_survives_csv(rows: list[tuple[str, str]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(list(each), pa.string()) for each in zip(*rows, strict=True)], ["a", "b"]
    )
    read = csv.reader(io.StringIO(to_csv(batch).decode(), newline=""))
    assert [tuple(row) for row in read] == rows


def test_rows_beyond_the_limit_are_not_read() -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pydict({"a": [1, 2]})
        yield pa.RecordBatch.from_pydict({"a": [3, 4]})
        pytest.fail("read too far")

    assert [batch.to_pydict()["a"] for batch in first_rows(batches(), 3)] == [[1, 2], [3]]


def test_json_is_one_array_over_batches(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    batches = [pa.RecordBatch.from_pydict({"a": [n, n + 1]}) for n in (0, 2)]
    written = write_result(Result(batches[0].schema, iter(batches)), "json", Screen(), None)
    assert json.loads(capsysbinary.readouterr().out) == [{"a": n} for n in range(4)]
    assert (written.rows, written.cut) == (4, False)


def test_an_unwritable_arrow_file_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    with pytest.raises(Exception, match="cannot be written"):
        write_result(Result(batch.schema, iter([batch])), "arrow", Screen(), None, tmp_path / "no" / "x.arrow")
    assert list(tmp_path.iterdir()) == []


def test_errors_have_message_detail_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = TopicNotFound('topic "x" does not exist', detail="One.\nTwo.", hint="Look.", near="y")
    assert report(error, Screen()) == 1
    assert capsys.readouterr().err == 'error: topic "x" does not exist\n  One.\n  Two.\n  hint: Look.\n'
    assert report(error, Screen(json=True)) == 1
    problem = json.loads(capsys.readouterr().err)
    assert problem == {
        "type": "urn:headwater:error:topic_not_found",
        "title": 'topic "x" does not exist',
        "status": 404,
        "detail": "One.\nTwo.",
        "code": "topic_not_found",
        "hint": "Look.",
        "near": "y",
    }


def test_a_bug_says_so_and_keeps_its_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADWATER_DEBUG", raising=False)
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError as failed:
        assert report_bug(failed, Screen()) == 1
    said = capsys.readouterr().err
    assert "error: unexpected ZeroDivisionError: division by zero\n  This is a bug in headwater." in said
    assert str(tmp_path / "headwater" / "errors.log") in said
    assert "Traceback" not in said
    assert "test_a_bug_says_so" in (tmp_path / "headwater" / "errors.log").read_text()


def test_numbers_for_people() -> None:
    assert [counted(1, "row"), counted(1200, "row")] == ["1 row", "1,200 rows"]
    assert [sized(12), sized(1536), sized(3 * 1024**4)] == ["12 B", "1.5 KB", "3.0 TB"]
    assert [timed(0.012), timed(3.42), timed(125)] == ["12 ms", "3.4 s", "2 min 5 s"]
