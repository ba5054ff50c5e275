"""kill -9 at every step of a DELETE or an UPDATE: all of its rows are changed, or none, and no other row ever."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headwater.cli.checks_lake import check_lake
from headwater.observability.failpoints import NAMES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STEPS = [name for name in NAMES if name.startswith("rewrite.")]
BATCHES = 4
DELETE = "DELETE FROM t WHERE n % 3 = 1"
UPDATE = "UPDATE t SET text = concat(text, '!') WHERE n % 3 = 1"


def content(abused: Any) -> dict[int, tuple[int, str]]:
    """Number and text by offset, as any Iceberg reader sees them; the position is that of what was flushed."""
    with SqlCatalog("lake", uri=f"sqlite:///{abused.path / 'catalog.db'}") as catalog:
        table = catalog.load_table(("topics", "t"))
        rows = table.scan().to_arrow().to_pylist()
        found = {row["_offset"]: (row["n"], row["text"]) for row in rows}
        assert len(found) == len(rows), "an offset is there twice"
        assert all(offset < int(table.properties["headwater.offset"]) for offset in found)
        assert all(row["_timestamp"] is not None for row in rows)
    return found


def before(abused: Any) -> dict[int, tuple[int, str]]:
    return {n: (n, f"record {n}") for n in range(BATCHES * abused.rows)}


def after(abused: Any, statement: str) -> dict[int, tuple[int, str]]:
    rows = before(abused)
    if statement == DELETE:
        return {offset: row for offset, row in rows.items() if row[0] % 3 != 1}
    return {offset: (n, f"{text}!" if n % 3 == 1 else text) for offset, (n, text) in rows.items()}


def healthy(abused: Any) -> bool:
    return all(check.status == "ok" for check in check_lake(abused.path, deep=True))


@pytest.mark.parametrize(
    ("point", "statement"), [*((point, DELETE) for point in STEPS), ("rewrite.found", UPDATE), (STEPS[-1], UPDATE)]
)
def test_killed_while_rewriting(abused: Any, point: str, statement: str) -> None:
    arguments = ("--batches", str(BATCHES), "--clean", "99", "--flush-every", "2", "--statement", statement)
    assert abused.run(*arguments, points=f"{point}=kill") == -signal.SIGKILL, abused.said()
    done = point == "rewrite.after_commit"
    assert content(abused) == (after(abused, statement) if done else before(abused))
    assert healthy(abused)
    again = ("--statement", statement) if not done else ()
    assert abused.run("--start", str(BATCHES), "--batches", "0", *again) == 0, abused.said()
    assert content(abused) == after(abused, statement)
    assert abused.run("--start", str(BATCHES), "--batches", "1", "--flush-every", "1", "--no-spark") == 0, abused.said()
    total = (BATCHES + 1) * abused.rows
    assert sorted(content(abused).keys() - after(abused, statement).keys()) == list(range(total - abused.rows, total))
    assert healthy(abused)


def test_killed_at_random_while_others_produce(abused: Any) -> None:
    """One process rewrites and is killed, another produces and commits all the while; then the statement ends."""
    chance = random.Random(3)
    producer = abused.start("--batches", "100000", "--flush-every", "5", "--no-spark")
    abused.wait_for("flushed")
    for round in range(3):
        rewriter = abused.start("--batches", "0", "--statement", DELETE)
        abused.wait_for("stating", round + 1)
        time.sleep(chance.uniform(4, 12))
        rewriter.send_signal(signal.SIGKILL)
        rewriter.wait()
        assert producer.poll() is None, abused.said()
        content(abused)
    producer.send_signal(signal.SIGKILL)
    producer.wait()
    assert abused.run("--batches", "0", "--statement", DELETE) == 0, abused.said()
    with abused.open() as lake:
        visible = lake.sql("SELECT n, _offset FROM t").rows()
    found = [row["n"] for row in visible]
    assert len(set(found)) == len(found)
    assert len({row["_offset"] for row in visible}) == len(found)
    wanted = {n for n in abused.numbers(abused.noted("ack")) if n % 3 != 1}
    assert wanted <= set(found) <= {n for n in abused.numbers(abused.noted("send")) if n % 3 != 1}
    assert healthy(abused)
