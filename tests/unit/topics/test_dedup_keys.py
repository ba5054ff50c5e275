"""Deduplication keys leave the log with the commits of their topic: it must not grow for ever."""

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
