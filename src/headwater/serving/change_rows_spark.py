"""The change rows of a topic as a Spark frame; see `change_rows`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headwater.serving.change_rows import CHANGE, INSERTED, WEIGHT, TopicChanges, kind_in_spark
from headwater.storage.read_spark import read_files

_ROW = "__row"


@contextmanager
def change_frame(session: SparkSession, of: TopicChanges) -> Iterator[DataFrame]:
    """The topic's columns and `_change`; the frame can be run inside the block only."""
    table = of.topic.table_name
    with read_files(session, table, of.changes.added) as added, read_files(session, table, of.changes.removed) as gone:
        if of.changes.append_only:
            yield added.withColumn(CHANGE, fn.lit(INSERTED))
        else:
            yield _net(added, gone)


def _net(added: DataFrame, removed: DataFrame) -> DataFrame:
    columns = added.columns
    signed = added.withColumn(WEIGHT, fn.lit(1)).unionAll(removed.withColumn(WEIGHT, fn.lit(-1)))
    # Keys are normalised (-0.0 and 0.0 are one value, and so are all NaN): what is shown is a row that a file has.
    row = fn.struct(*(fn.col(f"`{name}`") for name in columns))
    keys = [_comparable(fn.col(f"`{field.name}`"), field.dataType) for field in added.schema.fields]
    named = [key.alias(f"__key{place}") for place, key in enumerate(keys)]
    net = signed.groupBy(*named).agg(fn.first(row).alias(_ROW), fn.sum(WEIGHT).alias(WEIGHT)).where(f"{WEIGHT} <> 0")
    rows = net.select(*(fn.col(f"{_ROW}.`{name}`").alias(name) for name in columns), WEIGHT)
    return rows.select(*(f"`{name}`" for name in columns), fn.expr(kind_in_spark()).alias(CHANGE))


def _comparable(value: Column, of: DataType) -> Column:
    """The value in a type that Spark groups by: not maps, which become lists of their entries as they are stored."""
    if not _has_map(of):
        return value
    match of:
        case MapType():
            entries = ArrayType(StructType().add("key", of.keyType).add("value", of.valueType, of.valueContainsNull))
            return _comparable(fn.map_entries(value), entries)
        case ArrayType():
            inside = of.elementType
            return fn.transform(value, lambda element: _comparable(element, inside))
        case StructType():
            fields = [_comparable(value[field.name], field.dataType).alias(field.name) for field in of.fields]
            return fn.when(value.isNotNull(), fn.struct(*fields))
    raise AssertionError(f"{of} holds a map")


def _has_map(of: DataType) -> bool:
    match of:
        case MapType():
            return True
        case ArrayType():
            return _has_map(of.elementType)
        case StructType():
            return any(_has_map(field.dataType) for field in of.fields)
    return False
