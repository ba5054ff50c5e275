"""An evolution as Iceberg's own updates of table metadata: a schema, a partition spec, a sort order, properties.

A partition field that the table had before gets its old id and name again, so that files of both specs agree on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform

from headwater.catalog.definitions import (
    P_KIND,
    P_OFFSET,
    P_VERSION,
    P_WRITTEN_BY,
    partition_spec,
    sort_order,
    table_properties,
)
from headwater.catalog.evolve import Evolution
from headwater.types import TopicDefinition

P_SCHEMA = "headwater.schema."
"""Before a schema's id, the property that says since when it is the table's, and which changes made it."""
MAX_SAID = 2000
_FIRST_PARTITION_ID = 1000


def plan_updates(
    table: Table, before: TopicDefinition, planned: Evolution, said: str, now: datetime
) -> tuple[TableUpdate, ...]:
    """What turns the table into the planned one; nothing if it is that already. `said` is the text of the changes."""
    metadata = table.metadata
    properties, removed = _properties(before, planned.definition)
    updates: list[TableUpdate] = []
    if planned.schema.as_struct() != table.schema().as_struct():
        new_id = 1 + max(schema.schema_id for schema in metadata.schemas)
        # Never the id of an equal one of old: ids then tell the order in which schemas came.
        updates += [
            AddSchemaUpdate(schema=Schema(*planned.schema.fields, schema_id=new_id)),
            SetCurrentSchemaUpdate.model_validate({"schema-id": new_id}),
        ]
        properties[f"{P_SCHEMA}{new_id}"] = json.dumps({"at": now.isoformat(), "changes": said[:MAX_SAID]})
    if planned.definition.partitioning != before.partitioning:
        updates += _spec_updates(metadata, next_spec(metadata, planned.definition, planned.schema))
    if planned.definition.ordering != before.ordering:
        updates += _order_updates(metadata, sort_order(planned.definition, planned.schema))
    if properties:
        updates.append(SetPropertiesUpdate(updates=properties))
    if removed:
        updates.append(RemovePropertiesUpdate(removals=removed))
    return tuple(updates)


def _properties(before: TopicDefinition, after: TopicDefinition) -> tuple[dict[str, str], list[str]]:
    """Properties to set, and those to take away: only what this evolution changes, never another's."""
    old, new = table_properties(before), table_properties(after)
    kept = {P_KIND, P_OFFSET, P_VERSION, P_WRITTEN_BY}
    changed = {name: value for name, value in new.items() if name not in kept and old.get(name) != value}
    return changed, sorted(set(old) - set(new))


def _spec_updates(metadata: TableMetadata, spec: PartitionSpec) -> Iterator[TableUpdate]:
    if all(each.spec_id != spec.spec_id for each in metadata.partition_specs):
        yield AddPartitionSpecUpdate(spec=spec)
    yield SetDefaultSpecUpdate.model_validate({"spec-id": spec.spec_id})


def _order_updates(metadata: TableMetadata, order: SortOrder) -> Iterator[TableUpdate]:
    for each in metadata.sort_orders:
        if each.fields == order.fields:
            yield SetDefaultSortOrderUpdate.model_validate({"sort-order-id": each.order_id})
            return
    new_id = 1 + max((each.order_id for each in metadata.sort_orders), default=0)
    # Sorting by nothing is order 0 by definition, in every table.
    made = SortOrder(*order.fields, order_id=new_id if order.fields else 0)
    yield AddSortOrderUpdate.model_validate({"sort-order": made})
    yield SetDefaultSortOrderUpdate.model_validate({"sort-order-id": made.order_id})


def next_spec(metadata: TableMetadata, definition: TopicDefinition, schema: Schema) -> PartitionSpec:
    """The partition spec of a definition, with the ids that this table has or would give."""
    known = [part for spec in metadata.partition_specs for part in spec.fields]
    names = {part.name: part.field_id for part in known}
    last = max([_FIRST_PARTITION_ID - 1, *(part.field_id for part in known), metadata.last_partition_id or 0])
    fields: list[PartitionField] = []
    for wanted in partition_spec(definition, schema).fields:
        old = next((p for p in known if (p.source_id, p.transform) == (wanted.source_id, wanted.transform)), None)
        if old is None:
            last += 1
            name = _free_name(wanted, names, schema)
            old = PartitionField(wanted.source_id, last, wanted.transform, name)
            names[name] = last
        fields.append(old)
    for spec in metadata.partition_specs:
        if list(spec.fields) == fields:
            return spec
    return PartitionSpec(*fields, spec_id=1 + max(spec.spec_id for spec in metadata.partition_specs))


def _free_name(part: PartitionField, taken: Mapping[str, int], schema: Schema) -> str:
    """A name that no other partition field of the table ever had, and no column either."""
    source = schema.find_column_name(part.source_id)
    columns = set(schema.column_names)
    for number in range(len(taken) + len(columns) + 1):
        name = part.name if not number else f"{part.name}_{number + 1}"
        own = isinstance(part.transform, IdentityTransform) and name == source
        if name not in taken and (own or name not in columns):
            return name
    raise AssertionError("there are more numbers than names")
