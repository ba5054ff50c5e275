"""Damage under views, on Spark: refreshes and queries name the file, repairs that the doctor names work, and the doctor
has nothing to say of a healthy lake."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.checks_lake import check_lake
from headwater.engine import Lake
from headwater.errors import Corrupt
from headwater.storage.commit import tag
from headwater.storage.writer import local_path
from headwater.types import VIEW_TAG
from headwater.views import upkeep

pytestmark = pytest.mark.spark

LOW = "MATERIALIZED VIEW dv_low AS SELECT n % 3 AS k, sum(n) AS s FROM dv_t GROUP BY n % 3"


@pytest.fixture
def shop(lake: Lake) -> Iterator[Lake]:
    """A topic, a view on it, a view on that view, and a continuous view."""
    lake.sql(
        "CREATE STREAM dv_t (n BIGINT, ts TIMESTAMP) WITH (timestamp_field = 'ts', max_out_of_orderness = '10 seconds')"
    )
    append(lake, 0)
    lake.sql(f"CREATE {LOW}")
    lake.sql("CREATE MATERIALIZED VIEW dv_top AS SELECT k, s + 1 AS s FROM dv_low WHERE k > 0")
    lake.sql(
        "CREATE MATERIALIZED VIEW dv_live AS SELECT n, ts FROM dv_t WHERE n > 2 "
        "WITH (refresh = 'continuous', emit = 'changes')"
    )
    append(lake, 1)
    for name in ("dv_top", "dv_live"):
        lake.sql(f"REFRESH MATERIALIZED VIEW {name}")
    yield lake
    for name in ("dv_live", "dv_top", "dv_low"):
        lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
    lake.sql("DROP TOPIC IF EXISTS dv_t")


def append(lake: Lake, number: int) -> None:
    rows = [{"n": n, "ts": f"2026-01-01T00:{number:02}:{n:02}Z"} for n in range(9)]
    lake.topic("dv_t").append(rows)
    lake.flush("dv_t")


def wrong(lake: Lake, *, deep: bool = True) -> list[tuple[str, str, str]]:
    """What the doctor says of this test's tables that is not ok."""
    checks = check_lake(lake.paths.root, deep=deep)
    return [(each.name, each.status, each.message) for each in checks if each.status != "ok" and "dv_" in str(each)]


def test_the_doctor_is_silent_on_views_on_views_and_on_continuous_views_that_stopped(shop: Lake) -> None:
    assert wrong(shop) == []
    append(shop, 2)
    assert wrong(shop) == [], "views that are behind are healthy"
    shop.sql("REFRESH MATERIALIZED VIEW dv_top")
    shop.sql("REFRESH MATERIALIZED VIEW dv_live")
    assert wrong(shop) == []
    shop.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW dv_low AS SELECT n % 3 AS k, sum(n) + 1 AS s FROM dv_t GROUP BY n % 3"
    )
    assert wrong(shop) == [], "the next refresh of the view above sees to it"


def damage(path: Path, kind: str) -> None:
    body = path.read_bytes()
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes({"truncate": body[: len(body) // 2], "empty": b"", "garbage": b"\x07" * len(body)}[kind])


def parts(lake: Lake, name: str) -> dict[str, Path]:
    """A file of each kind that the current snapshot of a view or topic needs."""
    table = (lake.views if name in lake.views.names() else lake.topics).load(name).table
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0]
    file = manifest.fetch_manifest_entry(table.io)[0].data_file.file_path
    return {
        "manifest list": local_path(snapshot.manifest_list),
        "manifest": local_path(manifest.manifest_path),
        "data file": local_path(file),
    }


@pytest.fixture
def cold(shop: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Lake]:
    """The lake as a new process has it: nothing of its tables is remembered."""

    def forget() -> Lake:
        from headwater.storage.scan import ManifestCache

        shop.spark.catalog.refreshTable("lake.topics.dv_t")
        for name in {"dv_low", "dv_top"}.intersection(shop.views.names()):
            shop.spark.catalog.refreshTable(f"lake.views.{name}")
        fresh = ManifestCache()
        shop._queries._manifests.__dict__.update(fresh.__dict__)
        shop.view_room.upkeep.cache.__dict__.update(ManifestCache().__dict__)
        return shop

    return forget


@pytest.mark.parametrize(("part", "kind"), [("data file", "garbage"), ("manifest", "truncate")])
def test_damage_to_a_view_is_named_and_what_the_doctor_says_repairs_it(
    cold: Callable[[], Lake], part: str, kind: str
) -> None:
    lake = cold()
    path = parts(lake, "dv_low")[part]
    damage(path, kind)
    for engine in ("duckdb", "spark"):
        with pytest.raises(Corrupt) as found:
            cold().sql("SELECT * FROM dv_low", engine=engine).rows()
        assert str(path) in str(found.value), engine
        assert found.value.hint
    assert lake.sql("SELECT count(*) AS c FROM dv_t").rows() == [{"c": 18}]
    listed = {row["view"]: row["status"] for row in lake.sql("SHOW MATERIALIZED VIEWS").rows()}
    assert listed["dv_low"] != "damaged", "its definition can be read"
    said = [check for check in check_lake(lake.paths.root, deep=True) if str(path) in check.message]
    if part == "data file":
        assert "REFRESH MATERIALIZED VIEW dv_low FULL" in str(said[0].action)
        cold().sql("REFRESH MATERIALIZED VIEW dv_low FULL")
    else:
        assert "DROP MATERIALIZED VIEW dv_low" in str(said[0].action)
        lake.sql("DROP MATERIALIZED VIEW dv_top")
        lake.sql("DROP MATERIALIZED VIEW dv_low")
        lake.sql(f"CREATE {LOW}")
    assert cold().sql("SELECT sum(s) AS s FROM dv_low", engine="spark").rows() == [{"s": 72}]


def test_damage_to_a_source_is_named_by_the_refresh(cold: Callable[[], Lake]) -> None:
    lake = cold()
    append(lake, 2)
    table = lake.topics.load("dv_t").table
    newest = table.current_snapshot()
    assert newest is not None
    manifest = next(each for each in newest.manifests(table.io) if each.added_snapshot_id == newest.snapshot_id)
    path = local_path(manifest.fetch_manifest_entry(table.io)[0].data_file.file_path)
    kept = path.read_bytes()
    for kind in ("delete", "garbage"):
        damage(path, kind)
        with pytest.raises(Corrupt) as found:
            cold().sql("REFRESH MATERIALIZED VIEW dv_low").rows()
        assert str(path) in str(found.value), kind
        path.write_bytes(kept)
    assert cold().sql("REFRESH MATERIALIZED VIEW dv_low").rows()


def test_a_view_whose_metadata_is_damaged_is_listed_and_dropped_with_its_tags(cold: Callable[[], Lake]) -> None:
    lake = cold()
    path = local_path(lake.views.load("dv_top").table.metadata_location)
    path.write_bytes(b"{")
    lake.views.tables.forget(lake.views.load("dv_low").table_name)
    lake.views.tables.forget(lake.views._table("dv_top"))
    listed = {row["view"]: row for row in lake.sql("SHOW MATERIALIZED VIEWS").rows()}
    assert listed["dv_top"]["status"] == "damaged"
    assert str(path) in listed["dv_top"]["error"]
    assert listed["dv_low"]["status"] in ("fresh", "behind")
    with pytest.raises(Corrupt, match="metadata file"):
        lake.sql("SELECT * FROM dv_top").rows()
    assert VIEW_TAG + "dv_top" in lake.views.load("dv_low").table.metadata.refs
    lake.sql("DROP MATERIALIZED VIEW dv_top")
    assert "dv_top" not in lake.views.names()
    assert VIEW_TAG + "dv_top" not in lake.views.load("dv_low").table.metadata.refs
    assert wrong(lake) == []


def test_a_continuous_view_whose_metadata_is_damaged_can_be_dropped(cold: Callable[[], Lake]) -> None:
    lake = cold()
    (folder,) = lake.paths.streams.glob("dv_live-*")
    local_path(lake.views.load("dv_live").table.metadata_location).write_bytes(b"{")
    lake.views.tables.forget(lake.views._table("dv_live"))
    listed = {row["view"]: row["status"] for row in lake.sql("SHOW MATERIALIZED VIEWS").rows()}
    assert listed["dv_live"] == "damaged"
    os.utime(folder, (0, 0))
    lake.streams._keeper.sweep()
    assert folder.exists(), "while a view cannot be read, the checkpoint may be its own"
    lake.sql("DROP MATERIALIZED VIEW dv_live")
    assert "dv_live" not in lake.views.names()
    assert wrong(lake) == []
    os.utime(folder, (0, 0))
    lake.streams._keeper.sweep()
    assert not folder.exists()
    assert lake.sql("SELECT count(*) AS n FROM dv_t").rows() == [{"n": 18}]


def test_a_view_whose_snapshot_expired_before_it_was_tagged_is_recomputed(
    shop: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = []

    def expire_first(load: Callable[[], Any], name: str, snapshot_id: int | None) -> None:
        if name == VIEW_TAG + "dv_low" and snapshot_id is not None and not expired:
            append(shop, 3)
            load().maintenance.expire_snapshots().by_id(snapshot_id).commit()
            expired.append(snapshot_id)
        tag(load, name, snapshot_id)

    monkeypatch.setattr(upkeep, "tag", expire_first)
    append(shop, 2)
    assert shop.sql("REFRESH MATERIALIZED VIEW dv_low").rows()[0]["method"] == "append"
    assert expired
    assert shop.sql("REFRESH MATERIALIZED VIEW dv_low").rows()[0]["method"] == "full"
    assert shop.sql("VERIFY MATERIALIZED VIEW dv_low").rows()[0]["equal"]
    append(shop, 4)
    assert shop.sql("REFRESH MATERIALIZED VIEW dv_low").rows()[0]["method"] == "append"
    assert wrong(shop) == []


def published(lake: Lake, name: str) -> Path:
    """The current metadata of the Iceberg view that other engines read."""
    with closing(sqlite3.connect(lake.paths.catalog)) as db:
        query = "SELECT metadata_location FROM iceberg_tables WHERE iceberg_type = 'VIEW' AND table_name = ?"
        return local_path(db.execute(query, (name,)).fetchone()[0])


@pytest.mark.parametrize("kind", ["delete", "truncate", "empty"])
def test_damage_to_what_other_engines_read_is_found_and_repaired(shop: Lake, kind: str) -> None:
    path = published(shop, "dv_low")
    damage(path, kind)
    ((name, status, message),) = wrong(shop)
    assert (name, status) == ("mv.dv_low", "fail")
    assert str(path) in message
    (found,) = [check for check in check_lake(shop.paths.root) if check.name == name]
    assert found.repair is not None
    found.repair.run()
    assert wrong(shop) == []
    shop.sql("REFRESH MATERIALIZED VIEW dv_low FULL")
    rows = shop.spark.sql("SELECT sum(s) AS s FROM lake.mv.dv_low").collect()
    assert [row["s"] for row in rows] == [72]
    assert wrong(shop) == []


def test_damage_to_a_checkpoint_is_named(shop: Lake) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW dv_sums AS SELECT window_start AS w, sum(n) AS s FROM "
        "TUMBLE(TABLE dv_t, DESCRIPTOR(ts), INTERVAL '30 seconds') GROUP BY window_start "
        "WITH (refresh = 'continuous')"
    )
    append(shop, 2)
    shop.sql("REFRESH MATERIALIZED VIEW dv_sums")
    (checkpoint,) = shop.paths.streams.glob("dv_sums-*/checkpoint")
    assert wrong(shop) == []
    damages: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("metadata", lambda body: body[:9]),
        ("offsets/*", lambda body: body[: len(body) // 2]),
        ("commits/*", lambda body: b""),
        ("state/0/0/*.changelog", lambda body: body[: len(body) // 2]),
        ("state/0/0/*.changelog", lambda body: body[:30] + bytes([body[30] ^ 1]) + body[31:]),
    ]
    for number, (pattern, damage) in enumerate(damages, 3):
        append(shop, number)
        newest = max(checkpoint.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        whole = newest.read_bytes()
        newest.write_bytes(damage(whole))
        with pytest.raises(Corrupt) as found:
            shop.sql("REFRESH MATERIALIZED VIEW dv_sums")
        assert str(newest) in str(found.value), pattern
        assert found.value.hint and "CREATE OR REPLACE" in found.value.hint
        assert any(str(newest) in message for _, _, message in wrong(shop)), pattern
        newest.write_bytes(whole)
        assert wrong(shop) == []
        shop.sql("REFRESH MATERIALIZED VIEW dv_sums")  # and it goes on with a file that was restored
    assert shop.sql("VERIFY MATERIALIZED VIEW dv_sums").rows()[0]["equal"]
    shop.sql("DROP MATERIALIZED VIEW dv_sums")
