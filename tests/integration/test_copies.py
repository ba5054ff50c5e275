"""A lake of an older version is migrated, backed up and restored with all it has; Spark reads what was rewritten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.backup.rewrite import FolderChange, rewrite_table
from headwater.catalog.durable_files import local_path
from headwater.engine import Lake

ARCHIVE = Path(__file__).parents[1] / "data" / "lake-format-1.tar.xz"
"""A lake in /srv/shop of the last version before lakes knew their folder: topics, dead letters, a tag, a deleted row, a
materialized view, a continuous view with its checkpoint, and records that only the log has."""

SCRIPT = """
import json, sys
import headwater
with headwater.open(sys.argv[1]) as lake:
    visits = lake.sql("REFRESH MATERIALIZED VIEW visits").rows()[0]
    lake.flush()
    totals = lake.sql("REFRESH MATERIALIZED VIEW totals").rows()[0]
    answer = {
        "methods": [visits["method"], totals["method"]],
        "visits": [[row["who"], row["n"]] for row in lake.sql("SELECT * FROM visits ORDER BY who").rows()],
        "totals": [[row["product"], row["n"]] for row in lake.sql("SELECT * FROM totals ORDER BY product").rows()],
        "published": sorted([row.product, row.n] for row in lake.spark.sql("SELECT * FROM lake.mv.totals").collect()),
    }
print(json.dumps(answer))
"""


def unpack(folder: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "shop"


@pytest.mark.spark
@pytest.mark.slow
def test_an_old_lake_is_moved_backed_up_restored_and_goes_on(tmp_path: Path) -> None:
    old = unpack(tmp_path)
    headwater.relocate(old)
    with Lake.open(old) as lake:
        lake.backup(tmp_path / "backup")
    with headwater.restore(tmp_path / "backup", tmp_path / "new") as lake:
        total = lake.sql("SELECT count(*) AS n, sum(amount) AS total FROM orders").rows()
        assert total == [{"n": 35, "total": Decimal("644.50")}]
        assert lake.sql("SELECT count(*) AS n FROM orders FOR VERSION AS OF 'opening'").rows() == [{"n": 20}]
        assert lake.sql("SELECT count(*) AS n FROM orders__dead").rows() == [{"n": 1}]
        again = [{"id": 35, "product": "p2", "amount": "35.50", "at": "2026-01-03T00:00:00Z"}]
        assert lake.topic("orders").append(again).duplicates == 1
    # With a Spark of its own: a session is bound to the catalog of one lake.
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "methods": ["stream", "append"],
        "visits": [["w0", 7], ["w1", 6]],
        "totals": [["p0", 11], ["p1", 12], ["p2", 12]],
        "published": [["p0", 11], ["p1", 12], ["p2", 12]],
    }


@pytest.mark.spark
def test_position_deletes_are_rewritten_with_their_paths(spark: Any, spark_lake: Path, tmp_path: Path) -> None:
    """Headwater writes none, but another engine may."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.copies")
    spark.sql(
        "CREATE TABLE lake.copies.t (n BIGINT, d DATE) USING iceberg PARTITIONED BY (d) TBLPROPERTIES "
        "('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    spark.sql("INSERT INTO lake.copies.t SELECT id, DATE'9999-12-31' FROM range(10)")
    spark.sql("INSERT INTO lake.copies.t SELECT id, DATE'0001-01-01' FROM range(10, 20)")
    spark.sql("DELETE FROM lake.copies.t WHERE n % 3 = 0")
    location = spark.sql("SELECT file FROM lake.copies.t.metadata_log_entries").collect()[-1][0]
    new = tmp_path / "new"
    shutil.copytree(spark_lake / "warehouse" / "copies", new / "warehouse" / "copies")
    moved = f"{new}/{local_path(location).relative_to(spark_lake)}"
    for _ in range(2):  # a second time changes nothing
        assert rewrite_table(moved, FolderChange((spark_lake,), new)).damage == []
        rows = spark.read.format("iceberg").load(moved).orderBy("n").collect()
        assert [row.n for row in rows] == [n for n in range(20) if n % 3]
    spark.sql("DROP TABLE lake.copies.t")
