"""Views that an earlier version built are built again where that version stored them in a way that goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import headwater

ARCHIVE = Path(__file__).parents[1] / "data" / "lake-views-layout-1.tar.xz"
"""A lake in /srv/ledger with views of layout 1: `balance` has lost digits in a DELETE, `matches` joins a DATE with a
TIMESTAMP, `hours` groups by date_trunc('hour', at), `everything` selects *, and `accounts` only counts."""

SCRIPT = """
import json, sys
import headwater
with headwater.open(sys.argv[1]) as lake:
    def refresh():
        views = ("balance", "matches", "hours", "everything", "accounts")
        return {view: lake.sql(f"REFRESH MATERIALIZED VIEW {view}").rows()[0]["method"] for view in views}
    planned = lake.sql("EXPLAIN REFRESH MATERIALIZED VIEW balance").rows()
    lake.sql("ALTER TOPIC entries ADD COLUMN note STRING")
    lake.sql("ALTER MATERIALIZED VIEW matches SET (refresh = 'incremental')")
    lake.topic("entries").append([{"id": 3, "account": "a", "w": "2.5", "l": 5, "k": "2026-01-01"}])
    first = refresh()
    lake.sql("REFRESH MATERIALIZED VIEW everything FULL")
    lake.sql("DELETE FROM entries WHERE id = 3")
    lake.topic("entries").append([{"id": 4, "account": "b", "w": "0.5", "l": -2**63, "k": "2026-01-03"}])
    second = refresh()
    balance = lake.sql("SELECT * FROM balance ORDER BY account").rows()
    answer = {
        "planned": " ".join(row["plan"] for row in planned),
        "first": first,
        "second": second,
        "balance": [[row["account"], str(row["w"]), row["l"]] for row in balance],
        "matches": [[r["e"], r["d"]] for r in lake.sql("SELECT * FROM matches ORDER BY e").rows()],
        "grew": "note" in lake.sql("SELECT * FROM everything").rows()[0],
        "verified": [lake.sql(f"VERIFY MATERIALIZED VIEW {view}").rows()[0]["equal"] for view in first],
    }
print(json.dumps(answer))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_views_of_the_first_layout_are_built_again_once(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    headwater.relocate(tmp_path / "ledger")
    # With a Spark of its own: a session is bound to the catalog of one lake.
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "ledger")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert "earlier version" in answer.pop("planned")
    assert answer == {
        "first": {"balance": "full", "matches": "full", "hours": "full", "everything": "append", "accounts": "append"},
        "second": {
            "balance": "keys",
            "matches": "append",
            "hours": "append",
            "everything": "append",
            "accounts": "append",
        },
        "balance": [["a", "12345678901234567891.123456789012345679", 2], ["b", "0.500000000000000000", -(2**63)]],
        "matches": [[0, 0], [2, 2], [4, 2]],
        "grew": False,
        "verified": [True] * 5,
    }
