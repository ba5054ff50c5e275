"""Sort orders, Z-orders, partitions and bloom filters: what lets the recorded queries skip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, TimeTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from headwater.catalog.topics import Topic
from headwater.sql.option_pairs import FALSE_POSITIVES
from headwater.state.usage import TopicUsage
from headwater.storage.advice.measure import written
from headwater.storage.advice.skipping import Question, Skipping, parts_of
from headwater.storage.advice.space import pairs_text, with_pairs
from headwater.storage.advice.values import Confidence, Effect, Recommendation
from headwater.storage.bloom_columns import physical
from headwater.storage.comparable import comparable
from headwater.storage.layout import Layout
from headwater.storage.sorting import sort_rows
from headwater.types import OFFSET, SYSTEM_COLUMNS, Partition, SortKey, Transform

MIN_QUERIES = 3
"""Queries that ask in the same way, below which there is nothing to conclude."""
SURE_QUERIES, SOME_QUERIES = 50, 10
LESS, SHARE = 0.2, 0.7
"""Of all rows, how many less must be read, and at the most which share of those that are read now."""
GROWTH, MOST_GROWTH = 1.2, 2.0
"""How much larger the sample may get in another order, in which rows that came together are apart: a little, or more if
queries then read a quarter of the bytes."""
NEAR = 0.03
"""Of orders that differ by less than this in what is read, the simplest wins."""
MOSTLY = 4
"""How many times as often as by ranges a column is looked up by equality at least, to count as looked up."""
CANDIDATES = 3
PARTITION_BYTES = 32 * 1024**2
"""Bytes that a partition must have on average: fewer make small files."""
MAX_DAY_BYTES = 8 * 1024**3
"""Bytes of a day above which hours are tried as well."""
PROBES = 64
MAX_BLOOM_SHARE = 0.15

_TIMES: dict[Transform, tuple[TimeTransform[Any], int]] = {
    "day": (DayTransform(), 86_400),
    "month": (MonthTransform(), 30 * 86_400),
    "hour": (HourTransform(), 3600),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What ideas about skipping start from."""

    topic: Topic
    sample: pa.Table
    layout: Layout
    usage: TopicUsage
    questions: tuple[Question, ...]
    table_bytes: int

    def queries(self, column: str) -> int:
        """Queries that filter by the column in a way that an order helps."""
        used = self.usage.of(column)
        return used.equal + used.range + used.prefix

    def skipping(self, columns: Iterable[str]) -> Skipping:
        """Of the queries that filter by any of these columns."""
        wanted = set(columns)
        return Skipping(self.topic.schema, [each for each in self.questions if each.columns & wanted])

    def confidence(self, columns: Sequence[str]) -> Confidence:
        queries = min(self.queries(column) for column in columns)
        return "high" if queries >= SURE_QUERIES else "medium" if queries >= SOME_QUERIES else "low"


def clearly_less(before: float, after: float) -> bool:
    """Whether so much less is read that it is worth a change."""
    return before - after >= LESS and after <= SHARE * before


def _filtered(setting: Setting) -> list[NestedField]:
    """The columns by which enough queries filter, the most frequent first."""
    fields = [each for each in setting.topic.schema.fields if isinstance(each.field_type, PrimitiveType)]
    asked = [each for each in fields if setting.queries(each.name) >= MIN_QUERIES]
    return sorted(asked, key=lambda each: -setting.queries(each.name))


# -- partitions -------------------------------------------------------------------------------------------------


def advise_partitioning(setting: Setting) -> Iterator[Recommendation]:
    """Partitions by the time in a column by whose ranges queries filter, if they become neither small nor useless."""
    definition = setting.topic.definition
    if definition.partitioning:
        return  # two ideas of the same kind would fight; files would also become smaller by another factor
    for field in _filtered(setting):
        if field.name in SYSTEM_COLUMNS or not isinstance(field.field_type, DateType | TimestampType | TimestamptzType):
            continue
        skipping = setting.skipping([field.name])
        before = skipping.share(parts_of(setting.sample))
        for transform in ("day", "month", "hour"):
            if (parts := _partitions(setting, field, transform)) is None:
                continue
            after = skipping.share(parts)
            if clearly_less(before, after):
                yield _partitioning(setting, Partition(transform, field.name), before, after)
                return


def _partitions(setting: Setting, field: NestedField, transform: Transform) -> list[pa.Table] | None:
    """The sample by partitions; None if those would be of an unreasonable size."""
    of, seconds = _TIMES[transform]
    if transform == "hour" and isinstance(field.field_type, DateType):
        return None
    column = setting.sample.column(field.name)
    keys = of.pyarrow_transform(field.field_type)(column).combine_chunks()
    bounds = pc.min_max(keys).as_py()
    if bounds["min"] is None:
        return None
    # The sample is spread over the table: it reaches about as far as the table does.
    size = setting.table_bytes / (int(bounds["max"]) - int(bounds["min"]) + 1)
    if size < PARTITION_BYTES or (transform == "hour" and size * 86_400 / seconds < MAX_DAY_BYTES):
        return None
    return [setting.sample.filter(pc.equal(keys, value)) for value in pc.unique(keys.drop_null())]


def _partitioning(setting: Setting, part: Partition, before: float, after: float) -> Recommendation:
    return Recommendation(
        kind="partitioning",
        columns=(part.column,),
        current="none",
        proposed=str(part),
        effect=Effect(read_before=before, read_after=after),
        why=f"queries ask for ranges of {part.column}, and rows of a {part.transform} lie in many files",
        confidence=setting.confidence((part.column,)),
        clause=f"SET PARTITIONED BY ({part})",
    )


# -- order ------------------------------------------------------------------------------------------------------


def advise_ordering(setting: Setting, without: frozenset[str]) -> tuple[Recommendation | None, pa.Table]:
    """The order in which the queries read least, if that is clearly less; and the sample in the order it gets."""
    current = sort_rows(setting.sample, setting.layout)
    columns = _ordered_by(setting, without)
    if not columns:
        return None, current
    skipping = setting.skipping(columns)
    before = skipping.share(parts_of(current))
    narrow = current.select(sorted({*skipping.columns, *columns}))  # sorting the rest would change nothing
    tried = [(skipping.share(parts_of(sort_rows(narrow, each))), each) for each in _orders(setting, columns)]
    least = min(share for share, _ in tried)
    after, layout = next((share, each) for share, each in tried if share <= least + NEAR)
    if not clearly_less(before, after):
        return None, current
    rows = sort_rows(current, layout)
    sizes = written(current, setting.layout).bytes, written(rows, layout).bytes
    if not _may_grow(sizes[1] / sizes[0], before, after):
        return None, current
    return _ordering(setting, layout, before, after, sizes), rows


def _may_grow(growth: float, before: float, after: float) -> bool:
    return growth <= GROWTH or (growth <= MOST_GROWTH and growth * after <= before / 4)


def _ordered_by(setting: Setting, without: frozenset[str]) -> list[str]:
    """Columns for an order, the most frequent first. One that is mostly looked up is better off with a bloom filter."""
    found = []
    for field in _filtered(setting):
        used = setting.usage.of(field.name)
        ranged = MOSTLY * (used.range + used.prefix) >= used.equal
        if field.name not in {*without, OFFSET} and (ranged or not _suits_bloom(setting.sample, field)):
            found.append(field.name)
    return found[:CANDIDATES]


def _orders(setting: Setting, columns: Sequence[str]) -> Iterator[Layout]:
    """Orders worth trying, the simplest first."""
    none = replace(setting.layout, ordering=(), clustering=(), sort_order_id=None)
    for count in (1, 2):
        for names in permutations(columns, count):
            yield replace(none, ordering=tuple(SortKey(name) for name in names))
    for count in range(2, len(columns) + 1):
        yield replace(none, clustering=tuple(columns[:count]))


def _ordering(setting: Setting, layout: Layout, before: float, after: float, sizes: tuple[int, int]) -> Recommendation:
    columns = layout.clustering or tuple(key.column for key in layout.ordering)
    keys = f"ORDERED BY ({', '.join(map(str, layout.ordering))})"
    proposed = f"CLUSTERED BY ZORDER ({', '.join(layout.clustering)})" if layout.clustering else keys
    named = " and ".join(columns)
    return Recommendation(
        kind="ordering",
        columns=columns,
        current=_order_now(setting.layout),
        proposed=proposed,
        effect=Effect(sizes[0], sizes[1], read_before=before, read_after=after),
        why=f"queries filter by {named}, and with neighbouring values together most row groups are skipped",
        confidence=setting.confidence(columns),
        clause=f"SET {proposed}",
    )


def _order_now(layout: Layout) -> str:
    if layout.clustering:
        return f"CLUSTERED BY ZORDER ({', '.join(layout.clustering)})"
    return f"ORDERED BY ({', '.join(map(str, layout.ordering))})" if layout.ordering else "none"


# -- bloom filters ----------------------------------------------------------------------------------------------


def advise_blooms(setting: Setting, rows: pa.Table) -> Iterator[Recommendation]:
    """Filters for columns that are looked up by equality and whose values min and max do not tell apart."""
    options = setting.topic.definition.options
    known, found = dict(options.bloom_columns), []
    for field in _filtered(setting):
        if setting.usage.of(field.name).equal < MIN_QUERIES or field.name in known or not _suits_bloom(rows, field):
            continue
        if (effect := _bloom_effect(setting, rows, field.name)) is not None:
            found.append((field.name, effect))
    value = pairs_text(with_pairs(options.bloom_columns, {name: FALSE_POSITIVES for name, _ in found}))
    for name, effect in found:
        yield Recommendation(
            kind="bloom_filter",
            columns=(name,),
            current="none",
            proposed=f"false positives {FALSE_POSITIVES}",
            effect=effect,
            why="it is looked up by equality, and its values lie between min and max of most row groups",
            confidence=setting.confidence((name,)),
            option="bloom_columns",
            value=value,
        )


def _suits_bloom(rows: pa.Table, field: NestedField) -> bool:
    """Whether lookups in a column would skip much more by a filter than by min and max alone."""
    settable = field.name not in SYSTEM_COLUMNS and physical(field.field_type) is not None
    return settable and clearly_less(*_looked_up(rows, field.name))


def _looked_up(rows: pa.Table, column: str) -> tuple[float, float]:
    """The share of parts that a lookup of a stored value reads by min and max, and with a filter besides."""
    values = comparable(rows.column(column)).combine_chunks()
    values = values.cast(pa.binary()) if pa.types.is_fixed_size_binary(values.type) else values
    stored = values.drop_null()
    probes = stored.take(pa.array(np.linspace(0, len(stored) - 1, PROBES).astype(np.int64))) if len(stored) else stored
    if not len(probes):
        return 1.0, 1.0
    kept = present = 0.0
    parts = [part.column("v").combine_chunks() for part in parts_of(pa.table({"v": values}))]
    for part in parts:
        bounds = pc.min_max(part)
        within = pc.and_(pc.greater_equal(probes, bounds["min"]), pc.less_equal(probes, bounds["max"]))
        kept += pc.mean(pc.fill_null(within, False)).as_py()
        present += pc.mean(pc.is_in(probes, value_set=part)).as_py()
    after = present + (kept - present) * float(FALSE_POSITIVES)
    return kept / len(parts), after / len(parts)


def _bloom_effect(setting: Setting, rows: pa.Table, column: str) -> Effect | None:
    """What the filter costs and gives; None if it is too large for what it gives."""
    wanted = {column: {"ndv": min(rows.num_rows, setting.layout.row_group_rows), "fpp": float(FALSE_POSITIVES)}}
    sizes = written(rows, setting.layout).bytes, written(rows, setting.layout, wanted).bytes
    if sizes[1] > (1 + MAX_BLOOM_SHARE) * sizes[0]:
        return None
    before, after = _looked_up(rows, column)
    return Effect(sizes[0], sizes[1], read_before=before, read_after=after)
