"""A result: a schema, batches that are read once, and the forms that people want them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import QueryFailed, ResultTooLarge

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

DONE = pa.schema({"status": pa.string()})


class Result:
    """What a statement answered. `batches()` streams; `arrow()`, `pandas()`, `rows()` and `spark()` hold it whole."""

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        *,
        max_rows: int | None = None,
        info: Mapping[str, Any] | None = None,
        notices: Sequence[str] = (),
        close: Callable[[], None] = lambda: None,
        spark: Callable[[], SparkSession] | None = None,
    ) -> None:
        self.schema = schema
        self.info: Mapping[str, Any] = info or {}
        self.notices = tuple(notices)
        self._batches = batches
        self._max_rows = max_rows
        self._close = close
        self._spark = spark
        self._table: pa.Table | None = None

    @classmethod
    def of_rows(cls, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], **more: Any) -> Result:
        """A small result that is known already."""
        return cls(schema, iter(pa.Table.from_pylist(list(rows), schema=schema).to_batches()), **more)

    @classmethod
    def done(cls, status: str, notices: Sequence[str] = ()) -> Result:
        """What a statement that returns no rows of its own says."""
        return cls.of_rows(DONE, [{"status": status}], notices=notices)

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches as they come; for one reader, and without a limit on rows."""
        if self._table is not None:
            yield from self._table.to_batches()
            return
        try:
            yield from self._batches
        finally:
            self.close()

    def arrow(self) -> pa.Table:
        """The whole result as an Arrow table."""
        if self._table is None:
            self._table = pa.Table.from_batches(list(self._limited()), schema=self.schema)
        return self._table

    def _limited(self) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in self.batches():
            seen += batch.num_rows
            if self._max_rows is not None and seen > self._max_rows:
                self.close()
                raise ResultTooLarge(
                    f"result has more than {self._max_rows} rows",
                    hint="Add a LIMIT, stream it with batches(), or raise the setting query_max_rows.",
                )
            yield batch

    def pandas(self) -> pd.DataFrame:
        frame: pd.DataFrame = _converted(self.arrow().to_pandas, self.schema)
        return frame

    def rows(self) -> list[dict[str, Any]]:
        """The whole result as Python dicts."""
        rows: list[dict[str, Any]] = _converted(self.arrow().to_pylist, self.schema)
        return rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from _converted(batch.to_pylist, self.schema)

    def spark(self) -> DataFrame:
        """The whole result as a Spark DataFrame; starts Spark if it does not run yet."""
        if self._spark is None:
            raise QueryFailed(
                "result has no Spark session",
                detail="It came from a service, or from a statement that is not a query.",
                hint="Use arrow() or pandas(), or query the lake itself: headwater.open(path).",
            )
        from headwater.spark.arrow_spark import as_shown

        return self._spark().createDataFrame(as_shown(self.arrow()))

    def close(self) -> None:
        """Stop working on it; safe to call twice."""
        self._close()


def _converted(convert: Callable[[], Any], schema: pa.Schema) -> Any:
    try:
        return convert()
    except (ValueError, OverflowError) as error:
        years = "Python's dates and times are those of the years 1 to 9999. " if _has_times(schema) else ""
        raise QueryFailed(
            "result has a value that Python has no object for",
            detail=f"{years}Arrow says: {str(error).rstrip('.')}.",
            hint="Use arrow(), or CAST the column to STRING." if years else "Use arrow().",
        ) from None


def _has_times(of: pa.Schema | pa.DataType) -> bool:
    """Whether dates or timestamps are anywhere in it."""
    if isinstance(of, pa.Schema):
        return any(_has_times(field.type) for field in of)
    if pa.types.is_date(of) or pa.types.is_timestamp(of):
        return True
    return any(_has_times(of.field(place).type) for place in range(of.num_fields))
