"""Log entries in the columns that a topic has now: fields are found by their ids, as in older files.

A producer's records are stored in the columns that the topic had when they were decoded. Whoever reads the log brings
them into the topic's own; entries that are in those already pass as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from headwater.catalog.definitions import user_columns
from headwater.storage.field_ids import FileReading, plan_reading
from headwater.storage.schemas import FIELD_ID, arrow_schema


@dataclass(frozen=True, slots=True)
class Projection:
    """Brings batches of log entries into a topic's columns, without the system's.

    An entry whose fields have no ids is in the columns `first`: those were stored before a topic could be altered.
    """

    columns: Schema
    wanted: pa.Schema
    first: pa.Schema
    _plans: dict[pa.Schema, FileReading] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def to(cls, schema: Schema, first: Schema) -> Projection:
        """To the columns of `schema`, of a table whose first one was `first`."""
        columns = user_columns(schema)
        return cls(columns, arrow_schema(columns), arrow_schema(user_columns(first)))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        given = batch.schema
        if given.equals(self.wanted, check_metadata=True):  # nearly always, and so it must cost little
            return batch
        if any(FIELD_ID not in (each.metadata or {}) for each in given):
            given = self.first
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=given)
        if given not in self._plans:
            self._plans[given] = plan_reading(given, self.columns, "log")
        return self._plans[given].batch(batch)


def first_schema(metadata: TableMetadata) -> Schema:
    """The schema that the table was made with."""
    return min(metadata.schemas, key=lambda schema: schema.schema_id)
