"""A name that there is not is reported at once: no statement starts Spark, or even imports it, to find that out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from headwater.engine import Lake

STATEMENTS = (
    "SELECT * FROM ordrs",
    "EXPLAIN SELECT * FROM ordrs",
    "SELECT percentile(id, 0.5) AS p FROM ordrs",
    "SELECT count(*) AS n FROM orders WHERE id IN (SELECT id FROM ordrs)",
    "SELECT TUMBLE_START(at, INTERVAL '1 day') AS d, count(*) AS n FROM ordrs GROUP BY TUMBLE(at, INTERVAL '1 day')",
    "SELECT * FROM ordrs VERSION AS OF 1",
    "SELECT * FROM mv('ordrs')",
    "DESCRIBE TOPIC ordrs",
    "DROP TOPIC ordrs",
    "ALTER TOPIC ordrs ADD COLUMN x INT",
    "SHOW SCHEMAS OF ordrs",
    "FLUSH ordrs",
    "DELETE FROM ordrs WHERE id = 1",
    "DELETE FROM orders WHERE id IN (SELECT id FROM ordrs)",
    "UPDATE ordrs SET id = 1 WHERE id = 2",
    "UPDATE orders SET id = (SELECT max(id) FROM ordrs) WHERE id = 2",
    "SHOW SNAPSHOTS OF ordrs",
    "CREATE TAG x ON ordrs",
    "ROLLBACK TOPIC ordrs TO TAG 'x'",
    "CHERRY PICK VERSION 1 INTO ordrs",
    "DIFF TOPIC ordrs BETWEEN 1 AND 2",
    "OPTIMIZE TOPIC ordrs",
    "MAINTAIN ordrs",
    "SHOW MAINTENANCE OF ordrs",
    "SHOW PARQUET STATS OF ordrs",
    "RECOMMEND FOR ordrs",
    "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM ordrs",
    "CREATE MATERIALIZED VIEW v AS SELECT id FROM ordrs WITH (refresh = 'continuous')",
    "EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM ordrs",
    "REFRESH MATERIALIZED VIEW ordrs",
    "EXPLAIN REFRESH MATERIALIZED VIEW ordrs",
    "VERIFY MATERIALIZED VIEW ordrs",
    "COMPACT MATERIALIZED VIEW ordrs",
    "DESCRIBE MATERIALIZED VIEW ordrs",
    "DROP MATERIALIZED VIEW ordrs",
    "SHOW REFRESHES FOR ordrs",
    "CREATE STREAM s WITH (topic = 'ordrs', timestamp_field = 'at')",
    "DROP STREAM ordrs",
    "START STREAM ordrs",
    "STOP STREAM ordrs",
    "DESCRIBE STREAM ordrs",
)
PROGRAM = """
import json, sys
from headwater.engine import Lake
found = {}
with Lake.open(sys.argv[1]) as lake:
    for statement in json.load(sys.stdin):
        try:
            lake.sql(statement).rows()
            found[statement] = "no error"
        except Exception as error:
            found[statement] = getattr(error, "code", repr(error))
        if "pyspark" in sys.modules:
            found[statement] += ", and pyspark was imported"
            break
print(json.dumps(found))
"""


def test_no_statement_needs_spark_to_find_that_a_name_is_wrong(tmp_path: Path) -> None:
    with Lake.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC orders (id BIGINT, at TIMESTAMP)")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")]
    done = subprocess.run(command, input=json.dumps(STATEMENTS), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    expected = {"topic_not_found", "view_not_found", "stream_not_found"}
    assert {statement: code for statement, code in found.items() if code not in expected} == {}
    assert set(found) == set(STATEMENTS)
