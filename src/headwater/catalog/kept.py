"""What a namespace of the catalog keeps, topics or views: loaded, listed and dropped in one way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from headwater.catalog.iceberg import Tables, named_errors
from headwater.errors import Corrupt, HeadwaterError, InvalidInput, NotFound
from headwater.types import TableName, checked_name


class OfTable(Protocol):
    """Something that a table of the catalog stands for."""

    @property
    def table(self) -> Table: ...


T = TypeVar("T", bound=OfTable)

P_OURS = "headwater."
"""How the names of all properties begin that Headwater gives to its tables."""


@dataclass(frozen=True, slots=True)
class DamagedTable:
    """A table of the catalog that cannot be read, and why."""

    table: TableName
    error: HeadwaterError

    @property
    def name(self) -> str:
        return self.table.name


class Kept(ABC, Generic[T]):
    """All tables of one kind."""

    namespace: ClassVar[str]
    kind: ClassVar[str]
    noun: ClassVar[str]
    missing: ClassVar[type[NotFound]]
    listing: ClassVar[str]

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._loaded: dict[str, T] = {}

    @abstractmethod
    def _of(self, name: str, table: Table) -> T:
        """What the table stands for; Corrupt if it is none of these."""

    def load(self, name: str) -> T:
        """As it is now; an error with a suggestion if there is none."""
        try:
            table = self.tables.load(self._table(name))
        except NoSuchTableError:
            raise self._not_found(name) from None
        return self._interpret(name, table)

    def _interpret(self, name: str, table: Table) -> T:
        """What the table stands for; Corrupt if its properties do not say so."""
        if (loaded := self._loaded.get(name)) is not None and loaded.table is table:
            return loaded
        if not any(key.startswith(P_OURS) for key in table.metadata.properties):
            raise Corrupt(
                f'table "{self.namespace}.{name}" is not a {self.noun}',
                detail="Another program made it: it has none of Headwater's properties.",
            )
        try:
            found = self._loaded[name] = self._of(name, table)
        except (InvalidInput, ValueError, LookupError, TypeError, AttributeError) as wrong:
            raise Corrupt(
                f'definition of {self.noun} "{name}" cannot be read',
                detail=f"The properties of its table, in {table.metadata_location}, are not as they were written.",
                hint="Restore the file from a backup; `headwater doctor` checks all tables.",
                file=str(table.metadata_location),
            ) from wrong
        return found

    def exists(self, name: str) -> bool:
        """Whether the catalog names it; it may be damaged."""
        try:
            self.tables.location(self._table(name))
        except NoSuchTableError:
            return False
        return True

    def names(self) -> list[str]:
        """All names, sorted."""
        return self.tables.names(self.namespace)

    def all(self) -> list[T]:
        """All that can be read: one damaged table must not take the others with it."""
        return self.survey()[0]

    def survey(self) -> tuple[list[T], list[DamagedTable]]:
        """All of them, and the tables that are damaged; a table that is not Headwater's is left out."""
        found: list[T] = []
        damaged: list[DamagedTable] = []
        for name in self.names():
            at = TableName(self.namespace, name)
            try:
                table = self.tables.load(at)
            except NoSuchTableError:  # dropped since it was listed
                continue
            except HeadwaterError as error:
                if "file" not in error.data:  # not of this table: the catalog itself does not answer
                    raise
                damaged.append(DamagedTable(at, error))
                continue
            if any(key.startswith(P_OURS) for key in table.metadata.properties):
                try:
                    found.append(self._interpret(name, table))
                except HeadwaterError as error:
                    damaged.append(DamagedTable(at, error))
        return found, damaged

    def drop(self, name: str) -> T:
        """Remove it from the catalog; its files stay until the caller deletes them."""
        found = self.load(name)
        self._unregister(name)
        return found

    def drop_damaged(self, name: str) -> Path | None:
        """Remove a table that cannot be read from the catalog; its folder, unless that is not one of the lake's."""
        try:
            folder = self.tables.folder(self._table(name))
        except NoSuchTableError:
            raise self._not_found(name) from None
        self._unregister(name)
        return folder

    def _unregister(self, name: str) -> None:
        try:
            with named_errors():
                self.tables.catalog.drop_table(self._table(name).identifier)
        except NoSuchTableError:
            raise self._not_found(name) from None
        self.tables.forget(self._table(name))

    def _table(self, name: str) -> TableName:
        return TableName(self.namespace, checked_name(name, self.noun))

    def _not_found(self, name: str) -> NotFound:
        near = get_close_matches(name, self.names(), n=1)
        hint = f'Did you mean "{near[0]}"?' if near else f"`{self.listing}` lists them."
        return self.missing(f'{self.noun} "{name}" does not exist', hint=hint)
