"""DuckDB, locked down: it reads Parquet below the warehouse and the tables handed to it, and nothing else.

Only SQL that the agreement room wrote reaches it. Every query has a connection of its own, so that names never meet.
DuckDB reads damaged pages without a word, so the columns of a query are verified before it sees them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.manifest import DataFile

from headwater.errors import HeadwaterError, QueryCancelled, QueryFailed, system_error
from headwater.serving.agreement import Agreed, output_schema
from headwater.serving.change_rows import duck_changes
from headwater.serving.duck_files import literal, read_parquet, stored_names
from headwater.serving.plan import Mask, QueryPlan, Scan
from headwater.serving.running import timed_out
from headwater.storage.changes import Changes
from headwater.storage.checksums import Checksums

BATCH_ROWS = 65_536
BATCH_VALUES = 2**20
CHUNK_ROWS = 2_048
"""What DuckDB computes at a time: it gives no smaller batches."""


class Duck:
    """The one DuckDB of a process. An internal error of DuckDB invalidates it; the next query gets a new one."""

    def __init__(
        self, warehouse: Path, memory: int, scratch: Path, *, verify: bool = True, max_scratch: int | None = None
    ) -> None:
        self._checksums = Checksums() if verify else None
        self._warehouse = warehouse
        self._memory = memory
        self._scratch = scratch
        self._max_scratch = max_scratch
        self._lock = threading.Lock()
        self._database = self._open()

    def _open(self) -> Any:
        config: dict[str, Any] = {
            "memory_limit": f"{self._memory // 1024**2}MB",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": str(self._scratch / "duckdb"),
        }
        if self._max_scratch is not None:
            config["max_temp_directory_size"] = f"{self._max_scratch // 1024**2}MB"
        database = duckdb.connect(config=config)
        for setting, value in (
            ("TimeZone", "'UTC'"),
            ("python_enable_replacements", "false"),
            ("parquet_metadata_cache", "true"),
            ("allowed_directories", "[" + literal(str(self._warehouse)) + "]"),
            ("enable_external_access", "false"),
            ("lock_configuration", "true"),
        ):
            database.execute(f"SET GLOBAL {setting} = {value}")
        return database

    def run(self, plan: QueryPlan, timeout: float) -> DuckRun:
        """The plan's query, which runs when its batches are read."""
        assert plan.agreed is not None
        with self._lock:
            database = self._database
        broken = partial(self._replace, database)
        return DuckRun(database.cursor(), plan, plan.agreed, timeout, self._checksums, broken)

    def verify(self, files: Sequence[DataFile], columns: Sequence[str]) -> None:
        """Corrupt if one of the files is damaged, for those who read them without DuckDB."""
        if self._checksums is not None:
            self._checksums.verify(files, columns, lambda: None)

    def _replace(self, broken: Any) -> None:
        with self._lock:
            if self._database is broken:
                self._database = self._open()

    def close(self) -> None:
        self._database.close()


class DuckRun:
    """A query: batches to read once, and a way to stop it."""

    def __init__(
        self,
        cursor: Any,
        plan: QueryPlan,
        agreed: Agreed,
        timeout: float,
        checksums: Checksums | None,
        on_broken: Callable[[], None],
    ) -> None:
        self.schema = output_schema(agreed.output)
        self._checksums = checksums
        self._on_broken = on_broken
        self._cursor = cursor
        self._plan = plan
        self._sql = agreed.sql
        # Arrow's buffers are outside of DuckDB's memory limit: a batch of wide or long rows has few of them.
        rows = BATCH_VALUES // (max(1, len(agreed.output)) * agreed.growth)
        self._batch_rows = min(BATCH_ROWS, max(CHUNK_ROWS, rows))
        self._timeout = timeout
        self._stopped: HeadwaterError | None = None
        self._ended = threading.Event()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The result in the types that Spark would give."""
        timer = threading.Timer(self._timeout, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            for scan in self._plan.scans:
                if self._checksums is not None:
                    self._checksums.verify(scan.files.files, stored_names(scan), self._check)
                _register(self._cursor, scan)
            self._check()
            for batch in self._cursor.sql(self._sql).to_arrow_reader(self._batch_rows):
                self._check()
                yield _as(batch, self.schema)
        except (duckdb.Error, pa.ArrowException, OSError) as failed:  # an interrupt while reading is an OSError
            raise self._named(failed) from None
        finally:
            timer.cancel()
            self.close()

    def cancel(self) -> None:
        """Stop the query; its reader gets QueryCancelled."""
        self._stop(QueryCancelled("query was cancelled"))

    def _time_out(self) -> None:
        self._stop(timed_out(self._timeout))

    def _stop(self, why: HeadwaterError) -> None:
        if self._stopped is None:
            self._stopped = why
            threading.Thread(target=self._interrupt_until_ended, name="headwater-cancel", daemon=True).start()

    def _interrupt_until_ended(self) -> None:
        # Once is not enough: an interrupt that comes just before the query starts is forgotten.
        while not self._ended.is_set():
            with suppress(duckdb.Error):  # it has ended meanwhile
                self._cursor.interrupt()
            self._ended.wait(0.1)

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _named(self, failed: Exception) -> HeadwaterError:
        if isinstance(failed, duckdb.InternalException | duckdb.FatalException):
            self._on_broken()
        if self._stopped is not None:
            return self._stopped
        if (known := system_error(failed)) is not None:
            return known
        text = str(failed).split("\n")[0]
        return QueryFailed("query failed", detail=text if text.endswith(".") else f"{text}.")

    def close(self) -> None:
        self._ended.set()
        self._cursor.close()


def _register(cursor: Any, scan: Scan) -> None:
    """Make the name that the SQL has for a stored table a view of its files and its tail."""
    if scan.changed is not None:
        cursor.execute(f"CREATE TEMP VIEW {_identifier(scan.name)} AS {_changes(cursor, scan, scan.changed.changes)}")
        return
    columns = ", ".join(_identifier(name) for name in scan.columns) or "1 AS _none"
    parts = []
    if scan.files.files:
        masked = _masked(cursor, scan.name, scan.mask) if scan.mask is not None else ""
        parts.append(f"SELECT {columns} FROM {read_parquet(scan, scan.files.files)} AS f{masked}")  # noqa: S608
    if scan.tail_rows.num_rows or not parts:
        tail = f"__tail_{scan.name}"
        rows = scan.tail_rows.select(list(scan.columns)) if scan.columns else scan.tail_rows.select([0])
        cursor.register(tail, rows)
        parts.append(f"SELECT {columns} FROM {_identifier(tail)}")  # noqa: S608
    cursor.execute(f"CREATE TEMP VIEW {_identifier(scan.name)} AS " + " UNION ALL ".join(parts))


def _changes(cursor: Any, scan: Scan, changes: Changes) -> str:
    """How the scan's files differ: the rows of those that came against the rows of those that went."""
    columns, empty = [_identifier(name) for name in scan.columns], f"__none_{scan.name}"
    cursor.register(empty, scan.tail_rows)
    came, went = (
        f"SELECT {', '.join(columns)} FROM {read_parquet(scan, files) if files else _identifier(empty)}"  # noqa: S608
        for files in (changes.added, changes.removed)
    )
    return duck_changes(columns, came, went if changes.removed else None)


def _masked(cursor: Any, name: str, mask: Mask) -> str:
    """What lets through only the rows of files that the mask is for."""
    if not mask.keys:
        return "" if mask.among == bool(mask.values.num_rows) else " WHERE FALSE"
    table = f"__mask_{name}"
    cursor.register(table, mask.values)
    same = " AND ".join(f"f.{_identifier(key)} IS NOT DISTINCT FROM m.{_identifier(key)}" for key in mask.keys)
    return f" {'SEMI' if mask.among else 'ANTI'} JOIN {_identifier(table)} AS m ON {same}"


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch, checked; columns are matched by position because names may repeat."""
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
