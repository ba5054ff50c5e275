"""Dead letters: the rejected records of a topic, a topic of their own named `<topic>__dead`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headwater.storage.decode import Reject
from headwater.storage.schemas import arrow_schema
from headwater.types import DEAD_SUFFIX, LogKind, TopicDefinition, TopicOptions

SCHEMA = Schema(
    NestedField(1, "reason", StringType(), required=True, doc="why the record was rejected"),
    NestedField(2, "field", StringType(), required=False, doc="the field at fault, if it was one"),
    NestedField(3, "raw", StringType(), required=True, doc="the record as it came, cut to 64 KiB"),
    NestedField(4, "origin", StringType(), required=True, doc="the surface or file that it came from"),
    NestedField(5, "row", LongType(), required=True, doc="its position in the request, from 0"),
    NestedField(6, "producer", StringType(), required=False, doc="the producer's id, if it gave one"),
)


def dead_definition(topic: str, log: LogKind = "sqlite") -> TopicDefinition:
    """The definition of a topic's dead letters, on the log of the topic: a request is stored in one log."""
    options = TopicOptions(log=log, description=f"records that topic {topic} rejected")
    return TopicDefinition(topic + DEAD_SUFFIX, SCHEMA, options=options)


def dead_batch(rejects: Sequence[Reject], origin: str | Callable[[int], str], producer: str | None) -> pa.RecordBatch:
    """Rejected rows as records; bytes that are no UTF-8 become escapes."""
    rows = [
        {
            "reason": reject.reason,
            "field": reject.field,
            "raw": reject.raw.decode("utf-8", errors="backslashreplace"),
            "origin": origin if isinstance(origin, str) else origin(reject.row),
            "row": reject.row,
            "producer": producer,
        }
        for reject in rejects
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SCHEMA))
