"""The lake's Iceberg catalog: PyIceberg on the SQL tables that Iceberg's JDBC catalog shares."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Lock

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import select

from headwater.types import TableName

NAME = "lake"
"""The catalog's name, which both PyIceberg and Spark's JDBC catalog store beside each table."""


def create_catalog_file(path: Path, busy_timeout: float) -> None:
    """Make the SQLite file and put it into WAL mode, which the file remembers."""
    with sqlite3.connect(path, timeout=busy_timeout) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def open_catalog(path: Path, warehouse: Path, busy_timeout: float) -> SqlCatalog:
    """The embedded catalog in the SQLite file `path`, with tables below `warehouse`."""
    return SqlCatalog(
        NAME,
        uri=f"sqlite:///{path}?timeout={busy_timeout}",
        warehouse=warehouse.as_uri(),
        init_catalog_tables="true",
    )


class Tables:
    """Tables by name, parsed anew only when their metadata moved."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self._cached: dict[TableName, Table] = {}
        self._lock = Lock()

    def load(self, name: TableName) -> Table:
        """The table as it is now. Callers share it: they must not refresh it or commit through it."""
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
        return self.catalog.load_table(name.identifier)

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._cached.pop(name, None)

    def _location(self, name: TableName) -> str:
        statement = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == name.namespace,
            IcebergTables.table_name == name.name,
        )
        with self.catalog.engine.connect() as connection:
            location = connection.execute(statement).scalar()
        if location is None:
            self.forget(name)
            raise NoSuchTableError(f"Table does not exist: {name}")
        return str(location)
