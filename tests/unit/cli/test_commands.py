"""What commands make of their words, without running anything heavy; and that the reference page is current."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from tools.reference_cli import stale

from headwater.cli.completer import SqlCompleter
from headwater.cli.produce import Sent
from headwater.cli.session import find_lake
from headwater.cli.shell import is_ready
from headwater.cli.topic import define
from headwater.topics.produce import Ack
from headwater.types import Offsets, Partition


def test_the_reference_page_is_current() -> None:
    assert not stale(), "run `python -m tools.reference_cli`"


def test_flags_win_over_what_a_schema_file_says(tmp_path: Path) -> None:
    file = tmp_path / "s.sql"
    file.write_text("CREATE TOPIC x (id INT, at DATE) PARTITIONED BY (id) WITH (compression = 'gzip', batch_size = 5)")
    definition = define("orders", None, file, "days(at)", None, None, ["compression=snappy"])
    assert definition.name == "orders"
    assert definition.partitioning == (Partition("day", "at"),)
    assert (definition.options.compression, definition.options.batch_size) == ("snappy", 5)


def test_acknowledgements_add_up() -> None:
    sent = Sent("t").with_ack(Ack("t", Offsets(5, 8), duplicates=1), 10).with_ack(Ack("t", Offsets(8, 9), dead=2), 5)
    assert (sent.rows, sent.duplicates, sent.dead, sent.bytes, sent.requests) == (4, 1, 2, 15, 2)
    assert sent.said == "4 records (offsets 5 to 8)"
    assert Sent("t").said == "0 records"


def test_the_lake_is_the_nearest_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_LAKE", raising=False)
    (tmp_path / "lake" / "deep").mkdir(parents=True)
    (tmp_path / "lake" / "headwater.toml").touch()
    monkeypatch.chdir(tmp_path / "lake" / "deep")
    assert find_lake(None) == tmp_path / "lake"
    monkeypatch.setenv("HEADWATER_LAKE", "/there")
    assert find_lake(None) == Path("/there")
    assert find_lake(Path("/given")) == Path("/given")


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("\\q", True),
        ("SELECT 1; -- c", True),
        ("", True),
    ],
)
def test_enter_runs_what_is_complete(text: str, ready: bool) -> None:
    assert is_ready(text) == ready


def test_completion_from_a_real_lake(tmp_path: Path) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    import headwater

    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC orders (order_id INT, customer STRING)")
        completer = SqlCompleter(lake)

        def after(text: str) -> list[str]:
            return [each.text for each in completer.get_completions(Document(text), CompleteEvent())]

        assert after("SELECT cust") == ["customer"]
        assert after("select * from o") == ["orders"]
        assert "ORDER" in after("SELECT 1 FROM orders ORD")
        assert "order" in after("select 1 from orders ord")
        assert after("\\t") == ["\\timing"]
        lake.sql("CREATE TOPIC others (x INT)")
        assert after("select * from o") == ["orders"]
        completer.forget()
        assert after("select * from o") == ["orders", "others"]
