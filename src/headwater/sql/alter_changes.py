"""What ALTER TOPIC changes, one frozen value per change; each is text that parses back to itself.

A path names a column or a field inside one: `address.zip`, `items.element.price`, `attributes.value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyiceberg.types import IcebergType

from headwater.sql.options import option
from headwater.sql.schema_text import render_type
from headwater.sql.tokens import quote
from headwater.types import Partition, SortKey

Path = tuple[str, ...]


def dotted(path: Path) -> str:
    """A path as it is written."""
    return ".".join(path)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a field goes among those beside it: `first`, or `after` or `before` another one."""

    where: Literal["first", "after", "before"]
    field: str = ""

    def __str__(self) -> str:
        return f"{self.where.upper()} {self.field}".rstrip()


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column, or a field to a struct; its value in rows that are there is null."""

    path: Path
    type: IcebergType
    comment: str | None = None
    place: Place | None = None
    if_not_exists: bool = False

    def __str__(self) -> str:
        unless = "IF NOT EXISTS " if self.if_not_exists else ""
        comment = "" if self.comment is None else f" COMMENT {quote(self.comment)}"
        place = "" if self.place is None else f" {self.place}"
        return f"ADD COLUMN {unless}{dotted(self.path)} {render_type(self.type)}{comment}{place}"


@dataclass(frozen=True, slots=True)
class RenameColumn:
    path: Path
    name: str

    def __str__(self) -> str:
        return f"RENAME COLUMN {dotted(self.path)} TO {self.name}"


@dataclass(frozen=True, slots=True)
class DropColumn:
    path: Path
    if_exists: bool = False

    def __str__(self) -> str:
        return f"DROP COLUMN {'IF EXISTS ' if self.if_exists else ''}{dotted(self.path)}"


@dataclass(frozen=True, slots=True)
class ChangeType:
    path: Path
    type: IcebergType

    def __str__(self) -> str:
        return f"ALTER COLUMN {dotted(self.path)} TYPE {render_type(self.type)}"


@dataclass(frozen=True, slots=True)
class SetNullable:
    """Let a field be null, or require that it never is."""

    path: Path
    nullable: bool

    def __str__(self) -> str:
        return f"ALTER COLUMN {dotted(self.path)} {'DROP' if self.nullable else 'SET'} NOT NULL"


@dataclass(frozen=True, slots=True)
class SetComment:
    """Say what a field is for; an empty comment takes it away."""

    path: Path
    comment: str

    def __str__(self) -> str:
        return f"ALTER COLUMN {dotted(self.path)} COMMENT {quote(self.comment)}"


@dataclass(frozen=True, slots=True)
class MoveColumn:
    path: Path
    place: Place

    def __str__(self) -> str:
        return f"ALTER COLUMN {dotted(self.path)} {self.place}"


@dataclass(frozen=True, slots=True)
class ReorderColumns:
    """Let these columns come first, in this order; the others follow as they were."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"REORDER COLUMNS ({', '.join(self.columns)})"


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Change the options that are named, and no others; values are texts as `render_options` writes them."""

    values: Mapping[str, str]

    def __str__(self) -> str:
        shown = (f"{name} = {option(name).literal(value)}" for name, value in self.values.items())
        return f"SET ({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """How files that are written from now on are partitioned; none: not at all."""

    parts: tuple[Partition, ...]

    def __str__(self) -> str:
        return f"SET PARTITIONED BY ({', '.join(map(str, self.parts))})" if self.parts else "SET UNPARTITIONED"


@dataclass(frozen=True, slots=True)
class SetOrdering:
    """How rows lie in files that are written from now on: by keys, along a Z-order, or as they came."""

    keys: tuple[SortKey, ...] = ()
    zorder: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.zorder:
            return f"SET CLUSTERED BY ZORDER ({', '.join(self.zorder)})"
        return f"SET ORDERED BY ({', '.join(map(str, self.keys))})" if self.keys else "SET UNORDERED"


TopicChange = (
    AddColumn
    | RenameColumn
    | DropColumn
    | ChangeType
    | SetNullable
    | SetComment
    | MoveColumn
    | ReorderColumns
    | SetOptions
    | SetPartitioning
    | SetOrdering
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the text of a change is, so that an error can point at it."""

    text: str
    start: int
    end: int
