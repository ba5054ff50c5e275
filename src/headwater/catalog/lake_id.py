"""The lake's own id, for what it keeps outside: a property of the namespace of topics, made when it is first needed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from headwater.catalog.iceberg import NAME, named_errors
from headwater.types import TOPICS

P_LAKE = "headwater.lake-id"
_FIND = (
    "SELECT property_value FROM iceberg_namespace_properties "
    "WHERE catalog_name = ? AND namespace = ? AND property_key = ?"
)


def find_lake_id(catalog: Path, busy_timeout: float) -> str | None:
    """The id of the lake whose catalog is in the file; None if it has not needed one yet."""
    with named_errors(), closing(_connected(catalog, busy_timeout)) as db:
        row = db.execute(_FIND, (NAME, TOPICS, P_LAKE)).fetchone()
    return None if row is None else str(row[0])


def make_lake_id(catalog: Path, busy_timeout: float) -> str:
    """The lake's id, the same for all who ask at once."""
    from ulid import ULID

    values = (NAME, TOPICS, P_LAKE, str(ULID()).lower())
    with named_errors(), closing(_connected(catalog, busy_timeout)) as db:
        with db:
            db.execute("INSERT OR IGNORE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)", values)
        return str(db.execute(_FIND, values[:3]).fetchone()[0])


def _connected(catalog: Path, busy_timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True, timeout=busy_timeout)
