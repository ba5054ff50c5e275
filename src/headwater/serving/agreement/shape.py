"""DuckDB's Arrow results in the names and types that Spark would give."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater.serving.agreement.values import OutputColumn


def output_schema(output: Sequence[OutputColumn]) -> pa.Schema:
    """The Arrow schema of a result."""
    return pa.schema([pa.field(column.name, column.type) for column in output])


def shaped(result: pa.Table, output: Sequence[OutputColumn]) -> pa.Table:
    """A result with Spark's names and types; raises pa.ArrowInvalid for a value that does not fit."""
    columns = [found.cast(wanted.type) for found, wanted in zip(result.columns, output, strict=True)]
    return pa.Table.from_arrays(columns, schema=output_schema(output))
