"""The lake's Iceberg catalog: PyIceberg on the SQL tables that Iceberg's JDBC catalog shares.

Reading asks the catalog's file directly, with the standard library: where a table's metadata is, and which tables there
are. Every request does so, and SQLAlchemy would take ten times as long; commands that only read need not import it at
all. What changes the catalog goes through PyIceberg's `SqlCatalog`, opened when it is first needed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.io import PY_IO_IMPL, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from headwater.catalog.durable_files import IMPLEMENTATION
from headwater.errors import Corrupt, InvalidSetting, StorageBusy
from headwater.types import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

NAME = "lake"
"""The catalog's name, which both PyIceberg and Spark's JDBC catalog store beside each table."""


_DAMAGED = ("unable to open", "not a database", "malformed", "no such table")
_UNREADABLE = (FileNotFoundError, ValueError, ValidationError)
"""What PyIceberg raises for a metadata file that is missing or damaged."""
_FILES = {PY_IO_IMPL: IMPLEMENTATION}
_TABLES = "FROM iceberg_tables WHERE (iceberg_type = 'TABLE' OR iceberg_type IS NULL) AND catalog_name = ?"
_LOCATION = f"SELECT metadata_location {_TABLES} AND table_namespace = ? AND table_name = ?"
_NAMES = f"SELECT table_name {_TABLES} AND table_namespace = ? ORDER BY table_name"


def create_catalog_file(path: Path, busy_timeout: float) -> None:
    """Make the SQLite file and put it into WAL mode, which the file remembers."""
    with sqlite3.connect(path, timeout=busy_timeout) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def file_location(path: Path) -> str:
    """The folder as an Iceberg location. Not a URI: readers take what follows `file://` as it stands."""
    if set("?#%") & set(str(path)):
        raise InvalidSetting(
            f'folder "{path}" cannot hold a lake',
            detail="Iceberg's and SQLite's readers disagree about the characters ?, # and % in a path.",
            hint="Choose a path without them.",
        )
    return f"file://{path}"


def open_catalog(path: Path, warehouse: Path, busy_timeout: float) -> SqlCatalog:
    """The embedded catalog in the SQLite file `path`, with tables below `warehouse`."""
    from headwater.catalog.forward import ForwardCatalog

    return ForwardCatalog(
        NAME,
        uri=f"sqlite:///{path}?timeout={busy_timeout}",
        warehouse=file_location(warehouse),
        init_catalog_tables="true",
        **_FILES,
    )


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn failures of the catalog's database into Headwater's."""
    try:
        yield
    except Exception as failed:
        cause = getattr(failed, "orig", failed)  # SQLAlchemy wraps what the driver raised
        if not isinstance(cause, sqlite3.DatabaseError) or isinstance(cause, sqlite3.IntegrityError):
            raise
        said = str(cause)
        if any(sign in said for sign in _DAMAGED):
            raise Corrupt(
                "catalog cannot be read", detail=f"Its database says: {said}.", hint="Run `headwater doctor`."
            ) from failed
        if "full" in said:
            raise StorageBusy("disk of the catalog is full", hint="Free some space and try again.") from failed
        raise StorageBusy(
            "catalog stayed locked" if "locked" in said else "catalog does not answer",
            detail=f"Its database says: {said}.",
            hint="Try again, or raise the setting busy_timeout.",
        ) from failed


class Tables:
    """The tables of the catalog in the file `path`, parsed anew only when their metadata moved."""

    def __init__(self, path: Path, warehouse: Path, busy_timeout: float) -> None:
        self._place = (path, warehouse, busy_timeout)
        self._catalog: SqlCatalog | None = None
        self._cached: dict[TableName, Table] = {}
        self._lock = Lock()
        uri = f"{path.as_uri()}?mode=rw"
        with named_errors():
            self._reader = sqlite3.connect(uri, uri=True, timeout=busy_timeout, check_same_thread=False)

    @property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's catalog, for whoever changes something."""
        with self._lock:
            if self._catalog is None:
                self._catalog = open_catalog(*self._place)
            return self._catalog

    def load(self, name: TableName) -> Table:
        """The table as it is now. Callers share it: it can be neither refreshed nor committed through."""
        location = self._location(name)
        with self._lock:
            cached = self._cached.get(name)
        if cached is not None and cached.metadata_location == location:
            return cached
        try:
            table = _read_table(name, location)
        except _UNREADABLE as wrong:
            self._check_place(name, location, wrong)
            return self.load(name)
        with self._lock:
            self._cached[name] = table
        return table

    def load_for_commit(self, name: TableName) -> Table:
        """A table of the caller's own, freshly loaded."""
        location = self._location(name)
        try:
            with named_errors():
                return self.catalog.load_table(name.identifier)
        except _UNREADABLE as wrong:
            self._check_place(name, location, wrong)
            return self.load_for_commit(name)

    def names(self, namespace: str) -> list[str]:
        """The names of the namespace's tables, sorted."""
        with named_errors(), self._lock:
            return [str(name) for (name,) in self._reader.execute(_NAMES, (NAME, namespace))]

    def close(self) -> None:
        self._reader.close()
        if self._catalog is not None:
            self._catalog.close()

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._cached.pop(name, None)

    def _check_place(self, name: TableName, location: str, wrong: Exception) -> None:
        """Corrupt if the metadata that could not be read is the table's still: it may have moved, or been dropped."""
        if self._location(name) == location:
            said = "does not exist" if isinstance(wrong, FileNotFoundError) else "is damaged"
            raise Corrupt(
                f'metadata of table "{name}" cannot be read',
                detail=f"{location} {said}.",
                hint="Restore the file from a backup; `headwater doctor` checks all tables.",
            ) from wrong

    def _location(self, name: TableName) -> str:
        with named_errors(), self._lock:
            row = self._reader.execute(_LOCATION, (NAME, *name.identifier)).fetchone()
        if row is None:
            self.forget(name)
            raise NoSuchTableError(f"Table does not exist: {name}")
        return str(row[0])


def _read_table(name: TableName, location: str) -> Table:
    metadata = FromInputFile.table_metadata(load_file_io(_FILES, location).new_input(location))
    files = load_file_io({**_FILES, **metadata.properties}, location)
    return Table(name.identifier, metadata, location, files, NoopCatalog(NAME))
