"""ALTER TOPIC planned: from a topic as it is and changes to what its table becomes. Pure.

Changes are made in their order, and after each the topic must be one that CREATE would take. Columns that options,
partitioning and ordering name are followed when they are renamed, and cannot be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import assert_never

from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType, NestedField, StructType

from headwater.catalog.evolve_definition import followed, users
from headwater.catalog.evolve_fields import (
    Fields,
    edited,
    find,
    numbered,
    paths,
    placed,
    reordered,
    replaced,
    widened,
    without,
)
from headwater.catalog.topics import Topic
from headwater.errors import InvalidInput, InvalidOption, InvalidSchema, InvalidStatement
from headwater.sql.alter_changes import (
    AddColumn,
    ChangeType,
    DropColumn,
    MoveColumn,
    Origin,
    Path,
    RenameColumn,
    ReorderColumns,
    SetComment,
    SetNullable,
    SetOptions,
    SetOrdering,
    SetPartitioning,
    TopicChange,
    dotted,
)
from headwater.sql.cursor import located
from headwater.sql.definition import check_column_options
from headwater.sql.options import parse_options, render_options
from headwater.sql.ordering import check_clustering, check_ordering
from headwater.sql.partitioning import check_partitioning
from headwater.sql.schema_rules import check_count, checked_schema
from headwater.sql.statements import AlterTopic
from headwater.types import DEAD_SUFFIX, SYSTEM_COLUMNS, TopicDefinition, TopicOptions


@dataclass(frozen=True, slots=True)
class Touched:
    """A top-level column of the topic as it was, and what happens to it that its readers would notice."""

    column: str
    how: str


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a topic becomes: its definition, and its columns with their ids, the system's behind them.

    `required` are paths, in the new columns, of what must not be null from now on. A change without an effect (a column
    that is there already, with IF NOT EXISTS) has none in `effects`.
    """

    definition: TopicDefinition
    schema: Schema
    effects: tuple[str | None, ...]
    touched: tuple[Touched, ...] = ()
    required: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Draft:
    """The topic while changes are made to it."""

    fields: Fields
    definition: TopicDefinition
    new_id: Iterator[int]
    taken: Mapping[str, int | None]  # names of partition fields, with the column that may have the same
    was: dict[int, str] = field(default_factory=dict)  # a column's id to the name that it had before
    touched: list[Touched] = field(default_factory=list)
    required: set[int] = field(default_factory=set)

    def touch(self, path: Path, how: str) -> None:
        """Note what happens to the column at the path, unless this statement made it."""
        column = find(self.fields, path[:1])
        if column is not None and column.field_id in self.was:
            inside = f' inside ("{dotted(path)}")' if len(path) > 1 else ""
            self.touched.append(Touched(self.was[column.field_id], how + inside))


def plan_evolution(topic: Topic, statement: AlterTopic) -> Evolution:
    """What the statement makes of the topic; an error that points at the change which cannot be made."""
    metadata = topic.table.metadata
    users = tuple(topic.columns.fields)
    draft = _Draft(
        users,
        topic.definition,
        count(metadata.last_column_id + 1),
        {
            part.name: part.source_id if isinstance(part.transform, IdentityTransform) else None
            for spec in metadata.partition_specs
            for part in spec.fields
        },
        {column.field_id: column.name for column in users},
    )
    effects = []
    for place, change in enumerate(statement.changes):
        with _locating(statement.origins, place):
            _refuse_dead(topic, change)
            effects.append(_made(draft, change))
            _check(draft)
    system = [column for column in topic.schema.fields if column.name in SYSTEM_COLUMNS]
    schema = Schema(*draft.fields, *system)
    definition = replace(draft.definition, schema=checked_schema(draft.fields))
    required = tuple(path for path, each in paths(draft.fields) if each.field_id in draft.required)
    return Evolution(definition, schema, tuple(effects), tuple(draft.touched), required)


@contextmanager
def _locating(origins: Sequence[Origin], place: int) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        if place >= len(origins):
            raise
        origin = origins[place]
        raise located(error, origin.text, origin.start, origin.end) from None


def _refuse_dead(topic: Topic, change: TopicChange) -> None:
    if topic.name.endswith(DEAD_SUFFIX) and not isinstance(change, SetOptions | SetPartitioning | SetOrdering):
        raise InvalidStatement(
            f'columns of topic "{topic.name}" cannot be altered', detail="Dead letters have columns of their own."
        )


def _check(draft: _Draft) -> None:
    """What CREATE checks, on the topic as it is by now."""
    definition, schema = draft.definition, checked_schema(draft.fields)
    check_count(len(schema.field_ids))
    check_column_options(schema, definition.options)
    check_partitioning(schema, definition.partitioning)
    check_clustering(schema, definition.clustering, check_ordering(schema, definition.ordering))


def _made(draft: _Draft, change: TopicChange) -> str | None:
    """Make the change; what it does, in words."""
    match change:
        case AddColumn():
            return _add(draft, change)
        case RenameColumn():
            return _rename(draft, change)
        case DropColumn():
            return _drop(draft, change)
        case ChangeType(path, of):
            draft.touch(path, "its type changes")
            draft.fields = edited(draft.fields, path, lambda f, n: replaced(f, n, widened(f[n], of, path)))
            return f'column "{dotted(path)}" gets a wider type'
        case SetNullable():
            return _set_nullable(draft, change)
        case SetComment(path, comment):
            _update(draft, path, doc=comment or None)
            return f'column "{dotted(path)}" gets another comment' if comment else f'"{dotted(path)}" loses its comment'
        case MoveColumn():
            return _move(draft, change)
        case ReorderColumns(columns):
            draft.fields = reordered(draft.fields, columns)
            return "columns are reordered"
        case SetOptions(values):
            options = parse_options({**render_options(draft.definition.options), **values})
            _check_log(draft.definition, options)
            draft.definition = replace(draft.definition, options=options)
            return f"options are set: {', '.join(values)}"
        case SetPartitioning(parts):
            draft.definition = replace(draft.definition, partitioning=parts)
            return "files that are written from now on are partitioned anew"
        case SetOrdering(keys, zorder):
            draft.definition = replace(draft.definition, ordering=keys, clustering=zorder)
            return "files that are written from now on are ordered anew"
        case _:
            assert_never(change)


def _check_log(definition: TopicDefinition, options: TopicOptions) -> None:
    """InvalidOption if the log would be another: records that wait in the old one would be left behind."""
    if options.log != definition.options.log:
        raise InvalidOption(
            f'option "log" of topic "{definition.name}" cannot be changed',
            detail=f"Its records are kept by {definition.options.log} until they are in the table.",
            hint="Make a topic with the other log, and copy the records.",
            option="log",
        )


def _update(draft: _Draft, path: Path, **values: object) -> None:
    draft.fields = edited(draft.fields, path, lambda f, n: replaced(f, n, f[n].model_copy(update=values)))


def _add(draft: _Draft, change: AddColumn) -> str | None:
    path, inside = change.path, change.path[:-1]
    if find(draft.fields, path) is not None:
        if change.if_not_exists:
            return None
        raise InvalidSchema(f'column "{dotted(path)}" exists already', hint="Use IF NOT EXISTS to leave it as it is.")
    id_ = next(draft.new_id)
    _check_free(draft, path, id_)
    of = numbered(change.type, lambda: next(draft.new_id))
    added = NestedField(id_, path[-1], of, required=False, doc=change.comment)
    if not inside:
        draft.fields = placed(draft.fields, added, change.place, ())
    else:
        draft.touch(path, "it gets a field")
        _into_struct(draft, inside, added, change)
    return f'column "{dotted(path)}" is added'


def _into_struct(draft: _Draft, inside: Path, added: NestedField, change: AddColumn) -> None:
    def edit(fields: Fields, position: int) -> Fields:
        struct = fields[position]
        if not isinstance(struct.field_type, StructType):
            hint = {ListType: ".element", MapType: ".value"}.get(type(struct.field_type), "")
            raise InvalidSchema(
                f'column "{dotted(inside)}" is not a struct',
                detail="Only a struct gets fields.",
                hint=f"Write {dotted(inside)}{hint}.{added.name}." if hint else None,
            )
        of = StructType(*placed(tuple(struct.field_type.fields), added, change.place, inside))
        return replaced(fields, position, struct.model_copy(update={"field_type": of}))

    draft.fields = edited(draft.fields, inside, edit)


def _check_free(draft: _Draft, path: Path, field_id: int) -> None:
    """Refuse a top-level name that a partition field has: Iceberg's readers could not tell them apart."""
    if len(path) == 1 and draft.taken.get(path[0], field_id) != field_id:
        raise InvalidSchema(
            f'column name "{path[0]}" is the name of a partition field',
            detail="Files are, or were, partitioned under this name.",
            hint="Choose another name.",
        )


def _rename(draft: _Draft, change: RenameColumn) -> str:
    old, new = change.path, (*change.path[:-1], change.name)
    if old != new and find(draft.fields, new) is not None:
        raise InvalidSchema(f'column "{dotted(new)}" exists already', hint="Rename or drop it first.")
    draft.touch(old, "it is renamed" if len(old) == 1 else "a field is renamed")
    _update(draft, old, name=change.name)
    renamed = find(draft.fields, new)
    assert renamed is not None
    _check_free(draft, new, renamed.field_id)
    draft.definition = followed(draft.definition, dotted(old), dotted(new))
    return f'column "{dotted(old)}" is renamed to "{dotted(new)}"'


def _drop(draft: _Draft, change: DropColumn) -> str | None:
    path = change.path
    if change.if_exists and find(draft.fields, path) is None:
        return None
    if named := tuple(users(draft.definition, dotted(path))):
        raise InvalidSchema(
            f'column "{dotted(path)}" is needed',
            detail=f"It is named by {', '.join(named)}.",
            hint="Change that first; several changes may stand in one statement, separated by commas.",
        )
    draft.touch(path, "it is dropped" if len(path) == 1 else "a field is dropped")
    draft.fields = edited(draft.fields, path, without)
    return f'column "{dotted(path)}" is dropped'


def _set_nullable(draft: _Draft, change: SetNullable) -> str | None:
    path = change.path
    before = find(draft.fields, path)
    _update(draft, path, required=not change.nullable)
    assert before is not None  # `edited` refused it otherwise
    if before.required != change.nullable:
        return None
    if change.nullable:
        draft.required.discard(before.field_id)
        draft.touch(path, "it may become null")
        return f'column "{dotted(path)}" may be null'
    draft.required.add(before.field_id)
    return f'column "{dotted(path)}" is never null'


def _move(draft: _Draft, change: MoveColumn) -> str:
    path, at = change.path, change.path[:-1]
    if change.place.field == path[-1]:
        raise InvalidSchema(f'column "{dotted(path)}" cannot be placed beside itself')
    if len(path) > 1:
        draft.touch(path, "its fields are reordered")

    def edit(fields: Fields, position: int) -> Fields:
        rest = (*fields[:position], *fields[position + 1 :])
        return placed(rest, fields[position], change.place, at)

    draft.fields = edited(draft.fields, path, edit)
    return f'column "{dotted(path)}" is moved'
