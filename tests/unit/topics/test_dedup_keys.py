"""Deduplication keys: which records they drop, and that they leave the log with the commits of their topic."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import headwater
from headwater.topics import ingest


def test_an_ingest_forgets_keys_past_their_horizon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "write_files", lambda _, log, into, entries: ingest.write_entries(log, into, entries))
    with headwater.init(tmp_path / "lake") as lake:
        monkeypatch.setattr(lake._ingester, "_spark", lambda: None)
        lake.sql("CREATE TOPIC t (id BIGINT NOT NULL) WITH (dedup_key = 'id', dedup_horizon = '1 ms')")
        lake.topic("t").append([{"id": n} for n in range(50)])
        lake.topic("t").flush()
        with sqlite3.connect(lake.paths.state) as state:
            assert state.execute("SELECT count(*) FROM log_keys").fetchone() == (0,)


def test_values_of_other_columns_are_other_keys(tmp_path: Path) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (a INT, b INT) WITH (dedup_key = 'a')")
        topic = lake.topic("t")
        topic.append([{"a": 1, "b": 10}])
        topic.alter("RENAME COLUMN a TO c, ALTER COLUMN c TYPE BIGINT")
        assert topic.append([{"c": 1, "b": 11}]).duplicates == 1  # the same column under its new name
        topic.alter("SET (dedup_key = 'b')")
        assert topic.append([{"c": 2, "b": 1}]).duplicates == 0
        topic.alter("SET (dedup_key = 'b, c')")
        assert topic.append([{"c": 1, "b": 1}]).duplicates == 0
        topic.alter("SET (dedup_key = 'c, b')")
        assert topic.append([{"c": 3, "b": 1}, {"c": 1, "b": 3}, {"c": 3, "b": 1}]).duplicates == 1
