"""Changes to a tree of Iceberg fields: a field keeps its id, whatever it is called, wherever it lies, however wide.

Ids are what files and log entries are read by, so an id is never given twice, and what is dropped is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from headwater.errors import InvalidSchema
from headwater.sql.alter_changes import Path, Place, dotted
from headwater.sql.cursor import closest
from headwater.sql.schema_text import render_type

Fields = tuple[NestedField, ...]
Edit = Callable[[Fields, int], Fields]
"""What becomes of fields that lie beside each other, of which the one at a position is meant."""

_WIDER = "INT becomes BIGINT, FLOAT becomes DOUBLE, and DECIMAL(p, s) a DECIMAL of more digits and the same scale."


def edited(fields: Fields, path: Path, edit: Edit, at: Path = ()) -> Fields:
    """The fields after `edit` of the one that the path leads to."""
    position = _position(fields, path[0], at)
    if len(path) == 1:
        return edit(fields, position)
    field = fields[position]
    of = _edited_inside(field.field_type, path[1:], edit, (*at, path[0]))
    return replaced(fields, position, field.model_copy(update={"field_type": of}))


def _edited_inside(of: IcebergType, path: Path, edit: Edit, at: Path) -> IcebergType:
    match of:
        case StructType():
            return StructType(*edited(of.fields, path, edit, at))
        case ListType():
            (element,) = _alone(edited((of.element_field,), path, edit, at), "element", at)
            return ListType(of.element_id, element.field_type, element_required=element.required)
        case MapType():
            if path[0] == "key":
                raise InvalidSchema(
                    f'keys of map "{dotted(at)}" cannot be altered', detail="They tell the map's entries apart."
                )
            (value,) = _alone(edited((of.value_field,), path, edit, at), "value", at)
            return MapType(of.key_id, of.key_type, of.value_id, value.field_type, value_required=value.required)
        case _:
            raise InvalidSchema(
                f'column "{dotted(at)}" has no fields inside', detail=f"It is of type {render_type(of)}."
            )


def _alone(fields: Fields, name: str, at: Path) -> Fields:
    """What a list or a map holds, which has one name and is always there."""
    if len(fields) != 1 or fields[0].name != name or fields[0].doc:
        raise InvalidSchema(
            f'"{dotted((*at, name))}" can be neither dropped, renamed, moved nor commented',
            detail="It is what every value of the column holds.",
        )
    return fields


def _position(fields: Fields, name: str, at: Path) -> int:
    for position, field in enumerate(fields):
        if field.name == name:
            return position
    names = [field.name for field in fields]
    near = closest(name, names)
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    raise InvalidSchema(
        f'column "{dotted((*at, name))}" does not exist',
        detail=f"{f'Inside {dotted(at)} there are' if at else 'The columns are'} {shown}.",
        hint=f'Did you mean "{dotted((*at, near))}"?' if near else None,
    )


def find(fields: Fields, path: Path) -> NestedField | None:
    """The field that a path leads to, if there is one."""
    found: NestedField | None = None
    inside: Sequence[NestedField] = fields
    for step in path:
        found = next((field for field in inside if field.name == step), None)
        if found is None:
            return None
        inside = children(found.field_type)
    return found


def children(of: IcebergType) -> Fields:
    """The fields that a value of the type is made of."""
    match of:
        case StructType():
            return tuple(of.fields)
        case ListType():
            return (of.element_field,)
        case MapType():
            return (of.key_field, of.value_field)
        case _:
            return ()


def replaced(fields: Fields, position: int, field: NestedField) -> Fields:
    return (*fields[:position], field, *fields[position + 1 :])


def without(fields: Fields, position: int) -> Fields:
    if len(fields) == 1:
        raise InvalidSchema(
            f'column "{fields[0].name}" is the only one', detail="A topic and a struct have at least one."
        )
    return (*fields[:position], *fields[position + 1 :])


def placed(fields: Fields, field: NestedField, place: Place | None, at: Path) -> Fields:
    """The fields with one more among them; behind them if nothing says where."""
    if place is None:
        return (*fields, field)
    if place.where == "first":
        return (field, *fields)
    position = _position(fields, place.field, at) + (place.where == "after")
    return (*fields[:position], field, *fields[position:])


def reordered(fields: Fields, first: Sequence[str]) -> Fields:
    """The fields with those named `first` before the others."""
    named = [fields[_position(fields, name, ())] for name in first]
    return (*named, *(field for field in fields if field.name not in first))


def widened(field: NestedField, to: IcebergType, path: Path) -> NestedField:
    """The field with a type that holds every value which it had."""
    of = field.field_type
    if of != to and not _is_wider(of, to):
        raise InvalidSchema(
            f'column "{dotted(path)}" cannot become {render_type(to) if to.is_primitive else "a nested type"}',
            detail=f"It is {render_type(of) if of.is_primitive else 'of a nested type'}. {_WIDER}",
            hint="Add a column of the other type, fill it with UPDATE, and drop this one."
            if of.is_primitive and to.is_primitive
            else "Alter the fields inside it one by one.",
        )
    return field.model_copy(update={"field_type": to})


def _is_wider(of: IcebergType, to: IcebergType) -> bool:
    if isinstance(of, DecimalType) and isinstance(to, DecimalType):
        return of.scale == to.scale and of.precision < to.precision
    return (isinstance(of, IntegerType) and isinstance(to, LongType)) or (
        isinstance(of, FloatType) and isinstance(to, DoubleType)
    )


def numbered(of: IcebergType, new_id: Callable[[], int]) -> IcebergType:
    """A new field's type with ids for everything inside."""
    match of:
        case StructType():
            ids = [new_id() for _ in of.fields]
            inner = [
                field.model_copy(update={"field_id": id_, "field_type": numbered(field.field_type, new_id)})
                for id_, field in zip(ids, of.fields, strict=True)
            ]
            return StructType(*inner)
        case ListType():
            element_id = new_id()
            return ListType(element_id, numbered(of.element_type, new_id), element_required=of.element_required)
        case MapType():
            key_id, value_id = new_id(), new_id()
            key, value = numbered(of.key_type, new_id), numbered(of.value_type, new_id)
            return MapType(key_id, key, value_id, value, value_required=of.value_required)
        case _:
            return of


def paths(fields: Iterable[NestedField], at: Path = ()) -> Iterator[tuple[Path, NestedField]]:
    """Every field with the path to it, what is inside behind what it is inside of."""
    for each in fields:
        here = (*at, each.name)
        yield here, each
        yield from paths(children(each.field_type), here)
