"""What a result is converted to, and what is said where Python has no value for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.errors import QueryFailed
from headwater.serving.result import Result


def result(days: int) -> Result:
    table = pa.table({"d": pa.array([days], pa.int32()).cast(pa.date32())})
    return Result(table.schema, iter(table.to_batches()))


@pytest.mark.parametrize("days", [3_000_000, -800_000])
def test_a_date_that_python_does_not_have_is_told(days: int) -> None:
    for convert in (Result.rows, Result.pandas, lambda of: list(of)):
        with pytest.raises(QueryFailed, match="Python has no object"):
            convert(result(days))
    assert result(days).arrow().num_rows == 1


def test_dates_are_blamed_only_where_there_are_any() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    table = pa.table({"s": text})
    with pytest.raises(QueryFailed) as failed:
        Result(table.schema, iter(table.to_batches())).rows()
    assert "9999" not in str(failed.value.detail) and "utf-8" in str(failed.value.detail)
    with pytest.raises(QueryFailed) as failed:
        result(3_000_000).rows()
    assert "years 1 to 9999" in str(failed.value.detail)
