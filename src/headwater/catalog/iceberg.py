"""The lake's Iceberg catalog: PyIceberg on the SQL tables that Iceberg's JDBC catalog shares.

Reading asks the catalog's file directly, with the standard library: where a table's metadata is, and which tables there
are. Every request does so, and SQLAlchemy would take ten times as long; commands that only read need not import it at
all. What changes the catalog goes through PyIceberg's `SqlCatalog`, opened when it is first needed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from headwater.catalog.damage import unreadable
from headwater.catalog.durable_files import FILES, is_inside, local_path
from headwater.catalog.metadata import MetadataCache
from headwater.config import is_writable, read_only_uri
from headwater.errors import Corrupt, HeadwaterError, InvalidSetting, LakeMoved, StorageBusy, read_only, system_error
from headwater.types import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

NAME = "lake"
"""The catalog's name, which both PyIceberg and Spark's JDBC catalog store beside each table."""


_DAMAGED = ("unable to open", "not a database", "malformed", "no such table")
_TABLES = "FROM iceberg_tables WHERE (iceberg_type = 'TABLE' OR iceberg_type IS NULL) AND catalog_name = ?"
_LOCATION = f"SELECT metadata_location {_TABLES} AND table_namespace = ? AND table_name = ?"
_NAMES = f"SELECT table_name {_TABLES} AND table_namespace = ? ORDER BY table_name"


def create_catalog_file(path: Path, busy_timeout: float) -> None:
    """Make the SQLite file, for its owner only, and put it into WAL mode, which the file remembers."""
    path.touch(0o600)
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


def open_catalog(path: Path, warehouse: Path, busy_timeout: float, cache: MetadataCache | None = None) -> SqlCatalog:
    """The embedded catalog in the SQLite file `path`, with tables below `warehouse`."""
    from headwater.catalog.forward import ForwardCatalog

    return ForwardCatalog(
        NAME,
        cache or MetadataCache(),
        uri=f"sqlite:///{path}?timeout={busy_timeout}",
        warehouse=file_location(warehouse),
        init_catalog_tables="true",
        **FILES,
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
                "catalog cannot be read",
                detail=f"SQLite says of catalog.db: {said}. No table of the lake can be found without it.",
                hint="Restore catalog.db from a backup, and run `headwater doctor --deep` before anything else.",
            ) from failed
        if (known := system_error(cause)) is not None:
            raise known from failed
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
        self._metadata = MetadataCache()
        self._lock = Lock()
        self._reader = self._connect() if is_writable(path) else None

    def _connect(self) -> sqlite3.Connection:
        path, _, busy_timeout = self._place
        uri = f"{path.as_uri()}?mode=rw" if is_writable(path) else read_only_uri(path)
        with named_errors():
            connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout, check_same_thread=False)
            # SQLite opens the file at the first read; from then on others can tell that the lake is in use.
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA schema_version").fetchone()
            return connection

    def _rows(self, statement: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """What the catalog's file answers. One that cannot be written is opened each time: a connection to it would
        not notice what others write."""
        with named_errors(), self._lock:
            if self._reader is not None:
                return self._reader.execute(statement, values).fetchall()
            with closing(self._connect()) as reader:
                return reader.execute(statement, values).fetchall()

    @property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's catalog, for whoever changes something."""
        with self._lock:
            if self._catalog is None:
                if not is_writable(self._place[0]):
                    raise read_only(str(self._place[0]))
                self._catalog = open_catalog(*self._place, self._metadata)
            return self._catalog

    def load(self, name: TableName) -> Table:
        """The table as it is now. Callers share it: it can be neither refreshed nor committed through."""
        location = self.location(name)
        with self._lock:
            cached = self._cached.get(name)
        if cached is not None and cached.metadata_location == location:
            return cached
        try:
            table = _read_table(name, location, self._metadata)
        except Exception as error:  # readers of damaged bytes raise anything
            self._check_place(name, location, error)
            return self.load(name)
        self._check_inside(name, table.location())
        with self._lock:
            self._cached[name] = table
        return table

    def load_for_commit(self, name: TableName) -> Table:
        """A table of the caller's own, freshly loaded."""
        location = self.location(name)
        try:
            with named_errors():
                table = self.catalog.load_table(name.identifier)
        except (HeadwaterError, NoSuchTableError):
            raise
        except Exception as error:
            self._check_place(name, location, error)
            return self.load_for_commit(name)
        self._check_inside(name, table.location())
        return table

    def folder(self, name: TableName) -> Path | None:
        """The folder of the table's files, by where its metadata is; None if it is not one that this lake made."""
        path = Path(self.location(name).removeprefix("file://"))
        home, folder = self._place[1] / name.namespace, path.parent.parent
        made_here = path.parent.name == "metadata" and folder.parent == home and folder.name.startswith(f"{name.name}-")
        return folder if made_here else None

    def names(self, namespace: str) -> list[str]:
        """The names of the namespace's tables, sorted."""
        return [str(name) for (name,) in self._rows(_NAMES, (NAME, namespace))]

    def commits(self) -> dict[tuple[str, ...], int]:
        """How many commits this process has made to each table, by identifier."""
        return self._metadata.commits()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._catalog is not None:
            self._catalog.close()

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._cached.pop(name, None)
        self._metadata.forget(name.identifier)

    def _check_place(self, name: TableName, location: str, error: Exception) -> None:
        """Name the metadata file that could not be read, unless it is not the table's any more: it moved, or was
        dropped."""
        if self.location(name) == location:
            raise unreadable("metadata file", location, error, str(name)) from error

    def location(self, name: TableName) -> str:
        """Where the table's metadata file is, whether or not it can be read; NoSuchTableError if there is no table."""
        rows = self._rows(_LOCATION, (NAME, *name.identifier))
        if not rows:
            self.forget(name)
            raise NoSuchTableError(f"Table does not exist: {name}")
        self._check_inside(name, str(rows[0][0]))
        return str(rows[0][0])

    def delete_folder(self, location: str) -> None:
        """Delete the folder of a table that was dropped, as far as possible; maintenance deletes what is left."""
        if not is_inside(location, self._place[1]):
            raise _outside(f'folder "{location}" is not deleted', location, self._place[1])
        shutil.rmtree(local_path(location), ignore_errors=True)

    def _check_inside(self, name: TableName, location: str) -> None:
        if not is_inside(location, self._place[1]):
            raise _outside(f'table "{name}" is in another folder, at "{location}"', location, self._place[1])


def _outside(message: str, location: str, warehouse: Path) -> LakeMoved:
    return LakeMoved(
        message,
        detail=f"This lake's tables are in {warehouse}. Nothing outside is read, changed or deleted.",
        hint="`headwater doctor` checks all tables.",
        file=location,
    )


def _read_table(name: TableName, location: str, known: MetadataCache) -> Table:
    metadata = known.load(name.identifier, location, load_file_io(FILES, location))
    files = load_file_io({**FILES, **metadata.properties}, location)
    return Table(name.identifier, metadata, location, files, NoopCatalog(NAME))
