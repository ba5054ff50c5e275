"""The lake's Iceberg catalog: PyIceberg on the SQL tables that Iceberg's JDBC catalog shares."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from headwater.catalog.durable_files import IMPLEMENTATION
from headwater.errors import InvalidSetting, StorageBusy
from headwater.types import TableName

NAME = "lake"
"""The catalog's name, which both PyIceberg and Spark's JDBC catalog store beside each table."""


_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)


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
    return SqlCatalog(
        NAME,
        uri=f"sqlite:///{path}?timeout={busy_timeout}",
        warehouse=file_location(warehouse),
        init_catalog_tables="true",
        **{PY_IO_IMPL: IMPLEMENTATION},
    )


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn failures of the catalog's database into Headwater's."""
    try:
        yield
    except (OperationalError, sqlite3.OperationalError) as failed:
        said = str(failed.orig if isinstance(failed, OperationalError) else failed)
        if "full" in said:
            raise StorageBusy("disk of the catalog is full", hint="Free some space and try again.") from failed
        raise StorageBusy(
            "catalog stayed locked" if "locked" in said else "catalog does not answer",
            detail=f"Its database says: {said}.",
            hint="Try again, or raise the setting busy_timeout.",
        ) from failed


class Tables:
    """Tables by name, parsed anew only when their metadata moved."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self._cached: dict[TableName, Table] = {}
        self._lock = Lock()
        # Asked for every request and every query, so of the driver itself: SQLAlchemy would take ten times as long.
        self._connection = catalog.engine.raw_connection()
        self._lookup = self._connection.cursor()

    def load(self, name: TableName) -> Table:
        """The table as it is now. Callers share it: they must not refresh it or commit through it."""
        with named_errors():
            location = self._location(name)
            with self._lock:
                cached = self._cached.get(name)
            if cached is not None and cached.metadata_location == location:
                return cached
            table = self.catalog.load_table(name.identifier)
        with self._lock:
            self._cached[name] = table
        return table

    def load_for_commit(self, name: TableName) -> Table:
        """A table of the caller's own, freshly loaded."""
        with named_errors():
            return self.catalog.load_table(name.identifier)

    def close(self) -> None:
        self._connection.close()
        self.catalog.close()

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._cached.pop(name, None)

    def _location(self, name: TableName) -> str:
        with self._lock:
            row = self._lookup.execute(_LOCATION, (self.catalog.name, *name.identifier)).fetchone()
        if row is None:
            self.forget(name)
            raise NoSuchTableError(f"Table does not exist: {name}")
        return str(row[0])
