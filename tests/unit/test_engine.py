from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from headwater.errors import InvalidOption, InvalidSetting, LakeExists, LakeNotFound


def test_what_a_crash_in_drop_leaves_in_the_log_is_forgotten(tmp_path: Path) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
        lake.topics.drop("t")  # the crash comes before the log hears of it
        lake.sql("CREATE TOPIC t (n BIGINT)")
        assert len(lake.log.waiting()) == 1
        lake.flush()
        assert lake.log.waiting() == []
        assert lake.sql("SELECT count(*) AS n FROM t").rows() == [{"n": 0}]


def test_a_lake_is_made_once_and_opened_where_it_is(tmp_path: Path) -> None:
    headwater.init(tmp_path / "lake").close()
    with pytest.raises(LakeExists):
        headwater.init(tmp_path / "lake")
    with pytest.raises(LakeNotFound, match="no lake in"):
        headwater.open(tmp_path)


def test_settings_come_from_arguments_variables_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headwater.init(tmp_path).close()
    (tmp_path / "headwater.toml").write_text("port = 1000\nquery_max_rows = 5\nlease_ttl = 7\n")
    monkeypatch.setenv("HEADWATER_QUERY_MAX_ROWS", "6")
    monkeypatch.setenv("HEADWATER_LEASE_TTL", "8")
    with headwater.open(tmp_path, lease_ttl=9) as lake:
        assert (lake.settings.port, lake.settings.query_max_rows, lake.settings.lease_ttl) == (1000, 6, 9)


@pytest.mark.leaves_damage
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("prot = 1", 'setting "prot" is not valid', 'Did you mean "port"?'),
        ('port = "x"', 'setting "port" is not valid', None),
        ("port =", "cannot be read", "Correct the file."),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, message: str, hint: str | None) -> None:
    headwater.init(tmp_path).close()
    (tmp_path / "headwater.toml").write_text(text)
    with pytest.raises(InvalidSetting, match=message) as wrong:
        headwater.open(tmp_path)
    assert wrong.value.hint == hint


def test_options_are_a_querys(tmp_path: Path) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (n BIGINT)")
        lake.topic("t").append([{"n": 1}])
        assert lake.sql("SELECT count(*) AS n FROM t", tail=False).rows() == [{"n": 0}]
        assert lake.sql("EXPLAIN SELECT n FROM t", tail=False).info["plan"]["scans"][0]["tail"] is None
        with pytest.raises(InvalidOption, match='option "tail" is a query'):
            lake.sql("SHOW TOPICS", tail=False)


def test_every_part_of_a_lake_is_closed_whatever_another_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = headwater.init(tmp_path / "lake")
    closed: list[str] = []
    monkeypatch.setattr(lake.log, "close", lambda: closed.append("log"))
    monkeypatch.setattr(lake._spark, "stop", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lake.close()
    assert closed == ["log"]
