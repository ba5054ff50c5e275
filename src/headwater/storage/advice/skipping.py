"""How much of a table the recorded queries would read if its rows lay in another order.

The sample is cut into parts that stand for row groups; each gets the statistics that a file of it would have, and the
planner's own evaluator says which of them a filter needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, bind, extract_field_ids
from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from headwater.state.usage import TopicUsage
from headwater.storage.file_statistics import footer_statistics

PARTS = 32


@dataclass(frozen=True, slots=True)
class Question:
    """A recorded filter, the columns that it names, and for how many queries it stands."""

    filter: BooleanExpression = field(repr=False)
    columns: frozenset[str]
    queries: float


def questions_of(schema: Schema, usage: TopicUsage) -> tuple[Question, ...]:
    """The recorded filters that the topic's columns still have a meaning for."""
    found = []
    for pattern in usage.patterns:
        for text in pattern.filters:
            if (row_filter := _read(schema, text)) is not None:
                found.append(Question(row_filter, _columns(schema, row_filter), pattern.queries / len(pattern.filters)))
    return tuple(found)


def _read(schema: Schema, text: str) -> BooleanExpression | None:
    """A filter, None if it is of columns that are no more, or of another type now."""
    try:
        if isinstance(json.loads(text), bool):
            return None
        row_filter = BooleanExpression.model_validate_json(text)
        bind(schema, row_filter, case_sensitive=True)
    except (ValidationError, ValueError, TypeError):
        return None
    return None if isinstance(row_filter, AlwaysTrue) else row_filter


def parts_of(rows: pa.Table, parts: int = PARTS) -> list[pa.Table]:
    """The rows in parts of equal size, in their order."""
    size = max(1, -(-rows.num_rows // parts))
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


class Skipping:
    """Tells the share of rows that the questions read."""

    def __init__(self, schema: Schema, questions: Sequence[Question]) -> None:
        self._schema = schema
        self._paths = parquet_path_to_id_mapping(schema)
        self._plan = compute_statistics_plan(schema, {})
        self._needs: list[tuple[Callable[[DataFile], bool], float]] = [
            (_InclusiveMetricsEvaluator(schema, each.filter).eval, each.queries) for each in questions
        ]
        self.columns = sorted({name for each in questions for name in each.columns})

    def share(self, parts: Sequence[pa.Table]) -> float:
        """The rows in parts that are needed, by all rows, averaged over the queries."""
        files = [(self._file(part.select(self.columns)), part.num_rows) for part in parts]
        total = sum(rows for _, rows in files) * sum(queries for _, queries in self._needs)
        read = sum(queries * rows for needs, queries in self._needs for file, rows in files if needs(file))
        return read / total if total else 1.0

    def _file(self, part: pa.Table) -> DataFile:
        """The entry that a file of these rows would have in a manifest."""
        sink = pa.BufferOutputStream()
        pq.write_table(part, sink, compression="none", use_dictionary=False, store_decimal_as_integer=True)
        metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path="",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=metadata.serialized_size,
            **footer_statistics(metadata, self._plan, self._paths),
        )


def _columns(schema: Schema, row_filter: BooleanExpression) -> frozenset[str]:
    """The top-level columns that a filter names."""
    names = (schema.find_column_name(id) for id in extract_field_ids(bind(schema, row_filter, case_sensitive=True)))
    return frozenset(name.split(".")[0] for name in names if name is not None)
