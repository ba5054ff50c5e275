"""Opening a database again must not drop the locks that this process holds on it: others would delete its commits."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from headwater.catalog.iceberg import create_catalog_file
from headwater.state.sqlite import connect

VISIT = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('INSERT INTO t VALUES (2)'); db.commit()"


def visit(path: Path) -> None:
    """Another process writes, and closes the last connection that it knows of."""
    subprocess.run([sys.executable, "-c", VISIT, str(path)], check=True, timeout=60)


def test_commits_survive_a_second_connection_and_a_visitor(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(connect(path, 5)) as held:
        held.execute("CREATE TABLE t (n INTEGER)")
        connect(path, 5).close()
        visit(path)
        held.execute("INSERT INTO t VALUES (1)")
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_a_catalog_that_exists_is_not_opened_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    create_catalog_file(path, 5)
    with closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("CREATE TABLE t (n INTEGER)")
        create_catalog_file(path, 5)
        visit(path)
        held.execute("INSERT INTO t VALUES (1)")
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT count(*) FROM t").fetchone() == (2,)
