"""What a namespace of the catalog keeps, topics or views: loaded, listed and dropped in one way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from difflib import get_close_matches
from typing import ClassVar, Generic, Protocol, TypeVar

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from headwater.catalog.definitions import P_KIND
from headwater.catalog.iceberg import Tables, named_errors
from headwater.errors import NotFound
from headwater.types import TableName, checked_name


class OfTable(Protocol):
    """Something that a table of the catalog stands for."""

    @property
    def table(self) -> Table: ...


T = TypeVar("T", bound=OfTable)


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
        if (loaded := self._loaded.get(name)) is not None and loaded.table is table:
            return loaded
        found = self._loaded[name] = self._of(name, table)
        return found

    def exists(self, name: str) -> bool:
        with named_errors():
            return bool(self.tables.catalog.table_exists(self._table(name).identifier))

    def names(self) -> list[str]:
        """All names, sorted."""
        return self.tables.names(self.namespace)

    def all(self) -> list[T]:
        """All of them; a table in the namespace that is something else is left out."""
        found = []
        for name in self.names():
            try:
                table = self.tables.load(self._table(name))
            except NoSuchTableError:  # dropped since it was listed
                continue
            if table.metadata.properties.get(P_KIND) == self.kind:
                found.append(self.load(name))
        return found

    def drop(self, name: str) -> T:
        """Remove it from the catalog; its files stay until the caller deletes them."""
        found = self.load(name)
        try:
            with named_errors():
                self.tables.catalog.drop_table(self._table(name).identifier)
        except NoSuchTableError:
            raise self._not_found(name) from None
        self.tables.forget(self._table(name))
        return found

    def _table(self, name: str) -> TableName:
        return TableName(self.namespace, checked_name(name, self.noun))

    def _not_found(self, name: str) -> NotFound:
        near = get_close_matches(name, self.names(), n=1)
        hint = f'Did you mean "{near[0]}"?' if near else f"`{self.listing}` lists them."
        return self.missing(f'{self.noun} "{name}" does not exist', hint=hint)
