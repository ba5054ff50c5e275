"""What a lake knows about itself: its id, its folder, its format and its state database.

Iceberg's metadata names files by absolute path. So a folder that was copied or moved names the files of another folder,
and whatever it deletes, it would delete there. A lake therefore records where it is, and is opened only there.

These facts are properties of the catalog's namespace of topics: they are in the database that they are about, and
survive whatever Iceberg's tools do to tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from headwater.catalog.definitions import P_WRITTEN_BY as P_WRITTEN_BY
from headwater.catalog.durable_files import is_inside, local_name
from headwater.catalog.iceberg import NAME, named_errors
from headwater.config import LakePaths, is_writable, read_only_uri
from headwater.errors import LakeMoved
from headwater.types import TOPICS
from headwater.version import __version__, newer_version

FORMAT = 2
"""Of a lake as a whole. 1: before lakes recorded their folder and their state database."""

P_LAKE = "headwater.lake-id"
P_LOCATION = "headwater.location"
"""The lake's folder, as its tables' locations spell it."""
P_FORMAT = "headwater.format"
P_STATE = "headwater.state-id"
"""The id of the log in the lake's state database."""
P_RELOCATING = "headwater.relocating-to"
"""While locations are rewritten: the folder that they are rewritten to."""
P_KAFKA = "headwater.kafka-log"
"""Set once a topic has its log in Kafka."""
P_COPIED_FROM = "headwater.copied-from"
"""Of a lake that was restored from a backup or made from a copy: the id of its original, empty if that had none."""

_READ = "SELECT property_key, property_value FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?"
_PUT = "INSERT OR REPLACE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)"
_PUT_NEW = "INSERT OR IGNORE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)"
_REMOVE = "DELETE FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ? AND property_key = ?"
_LOCATIONS = "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ?"


# -- properties -----------------------------------------------------------------------------------------------------


def read_properties(db: sqlite3.Connection) -> dict[str, str]:
    """The lake's properties, by name."""
    return {str(key): str(value) for key, value in db.execute(_READ, (NAME, TOPICS)) if key.startswith("headwater.")}


def put_properties(db: sqlite3.Connection, values: Mapping[str, str | None], *, replace: bool = True) -> None:
    """Set properties inside the caller's transaction; None removes one. Without `replace`, those that exist stay."""
    for key, value in values.items():
        if value is None:
            db.execute(_REMOVE, (NAME, TOPICS, key))
        else:
            db.execute(_PUT if replace else _PUT_NEW, (NAME, TOPICS, key, value))


def load_properties(catalog: Path, busy_timeout: float) -> dict[str, str]:
    """The same, of the catalog in a file."""
    with named_errors(), closing(connect_catalog(catalog, busy_timeout)) as db:
        return read_properties(db)


def connect_catalog(catalog: Path, busy_timeout: float) -> sqlite3.Connection:
    """A connection to the catalog's file, which must exist; transactions are begun by hand."""
    uri = f"{catalog.as_uri()}?mode=rw" if is_writable(catalog) else read_only_uri(catalog)
    return sqlite3.connect(uri, uri=True, timeout=busy_timeout, isolation_level=None)


def new_identity(root: Path) -> dict[str, str]:
    """The properties of a lake that is new in the folder `root`."""
    from ulid import ULID

    return {
        P_LAKE: str(ULID()).lower(),
        P_LOCATION: str(root),
        P_FORMAT: str(FORMAT),
        P_WRITTEN_BY: __version__,
    }


def record_identity(paths: LakePaths, busy_timeout: float) -> None:
    """Give a new lake its identity; what a lake records already stays."""
    with named_errors(), closing(connect_catalog(paths.catalog, busy_timeout)) as db:
        put_properties(db, new_identity(paths.root), replace=False)


def record_state(catalog: Path, busy_timeout: float, state: str, *, replace: bool = False) -> None:
    """Note the id of the lake's log; what is noted already stays, unless `replace` says otherwise."""
    with named_errors(), closing(connect_catalog(catalog, busy_timeout)) as db:
        try:
            put_properties(db, {P_STATE: state}, replace=replace)
        except sqlite3.OperationalError as failed:
            if "readonly" not in str(failed):
                raise


def claim_kafka_log(catalog: Path, busy_timeout: float) -> str:
    """Note that the lake has a log in Kafka; the lake's id, which names it there."""
    with named_errors(), closing(connect_catalog(catalog, busy_timeout)) as db:
        put_properties(db, {P_KAFKA: "true"}, replace=False)
        return read_properties(db)[P_LAKE]


def outlet_prefix(known: Mapping[str, str]) -> str:
    """How the names begin under which a lake's views send to Kafka. The views of a copy have the ids of the original's:
    under the same names, each would stop the other's producer and take the other's rows for sent."""
    return f"headwater-{known[P_LAKE]}" if P_COPIED_FROM in known else "headwater"


# -- location -------------------------------------------------------------------------------------------------------


def locate_lake(paths: LakePaths, busy_timeout: float, *, adopt: bool = True) -> LakePaths:
    """The lake's paths as its tables spell them; LakeMoved if the folder is a copy, or was moved.

    A lake of format 1 gets its identity here, if its tables are all inside the folder and unless `adopt` is False.
    """
    with named_errors(), closing(connect_catalog(paths.catalog, busy_timeout)) as db:
        known = read_properties(db)
        check_format(paths.root, known)
        if P_RELOCATING in known:
            raise LakeMoved(
                f'lake in "{paths.root}" is being moved, or its move was interrupted',
                detail=f"Its locations were being rewritten to {known[P_RELOCATING]}.",
                hint=f"Run `headwater -C {paths.root} relocate` again.",
            )
        recorded = recorded_location(db, paths, known)
        if recorded != str(paths.root) and not is_same_folder(recorded, paths.root):
            raise moved_error(paths.root, Path(recorded), known.get(P_LAKE), busy_timeout)
        found = LakePaths(Path(recorded))
        if adopt and P_LOCATION not in known and is_writable(paths.catalog):
            _adopt(db, found, known)
        return found


def check_format(root: Path, known: Mapping[str, str]) -> None:
    """NewerVersion if the lake has a format that this Headwater does not know."""
    found = known.get(P_FORMAT, "1")
    if not found.isdigit() or int(found) > FORMAT:
        raise newer_version(f'lake in "{root}"', "format", found, FORMAT, known.get(P_WRITTEN_BY))


def recorded_location(db: sqlite3.Connection, paths: LakePaths, known: Mapping[str, str]) -> str:
    """The folder that the lake records; of a lake of format 1, the one that its tables are in."""
    if P_LOCATION in known:
        return known[P_LOCATION]
    for (location,) in db.execute(_LOCATIONS, (NAME,)):
        if not is_inside(location, paths.warehouse):
            parents = Path(local_name(location)).parents
            return str(next((each.parent for each in parents if each.name == paths.warehouse.name), parents[0]))
    return str(paths.root)


def _adopt(db: sqlite3.Connection, paths: LakePaths, known: Mapping[str, str]) -> None:
    values = new_identity(paths.root)
    if P_LAKE in known:  # until format 2, only a lake with a log in Kafka had an id
        values[P_KAFKA] = "true"
    try:
        db.execute("BEGIN IMMEDIATE")
        put_properties(db, values, replace=False)
        db.execute("COMMIT")
    except sqlite3.OperationalError as failed:
        if "readonly" not in str(failed):
            raise


def is_same_folder(recorded: str | Path, root: Path) -> bool:
    """Whether both paths lead to one folder: through a link, or a mount."""
    try:
        return root.samefile(recorded)
    except OSError:
        return False


def moved_error(root: Path, recorded: Path, lake: str | None, busy_timeout: float) -> LakeMoved:
    """The error for a lake in the folder `root` that records another one."""
    if is_lake(recorded, lake, busy_timeout):
        return LakeMoved(
            f'folder "{root}" is a copy of a lake',
            detail=f"Its tables name the files of the lake in {recorded}.",
            hint=f"Use the lake in {recorded}, or copy it with `headwater backup` and `headwater restore`. To turn "
            f"this folder into a lake of its own, run `headwater -C {root} relocate --copy`.",
        )
    return LakeMoved(
        f'lake in "{root}" was moved',
        detail=f"Its tables name files in {recorded}, which does not hold this lake.",
        hint=f"Run `headwater -C {root} relocate`, or move the folder back to {recorded}.",
    )


def is_lake(folder: Path, lake: str | None, busy_timeout: float) -> bool:
    """Whether the folder holds the lake of this id; any lake, if the id is not known."""
    paths = LakePaths(folder)
    try:
        paths.config.stat()
        paths.catalog.stat()
        if lake is None:
            return True
        with closing(connect_catalog(paths.catalog, busy_timeout)) as db:
            return read_properties(db).get(P_LAKE) == lake
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, sqlite3.Error):  # a lake that cannot be looked at, such as another user's, may well be there
        return True
