"""EXPLAIN REFRESH for every rule against `tests/golden/explain/*.txt`.

A file is the query of a view (`ex_` and its name) and, behind `== <when>` lines, what EXPLAIN answered at that moment:
before the view was made, while nothing had changed, after rows came, after some left, and when a source was lost. All
views stand on one lake, whose rows are the same in every run; snapshots and sizes are masked. HEADWATER_REWRITE=1
rewrites the answers; a person reads the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Lake
from headwater.spark.session import SparkEngine
from headwater.types import TableName

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).parent / "explain"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
REWRITE = os.environ.get("HEADWATER_REWRITE") == "1"
MASKS = (
    (re.compile(r"snapshot (\d+|empty) → \d+"), "snapshot <id> → <id>"),
    (re.compile(r"snapshot \d+"), "snapshot <id>"),
    (re.compile(r"[\d,]+ bytes"), "<size>"),
)


def read(path: Path) -> tuple[str, dict[str, str]]:
    """The query of a file, and its answers by moment."""
    query, *answers = re.split(r"^== (.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return query.strip(), dict(zip(answers[::2], (answer.strip("\n") for answer in answers[1::2]), strict=True))


def check(name: str, moment: str, got: str) -> None:
    """The answer is the one in the file; or becomes it."""
    path = FILES[name]
    query, answers = read(path)
    assert moment in answers, f"{path.name} does not ask for {moment!r}"
    if REWRITE:
        answers[moment] = got
        sections = "".join(f"== {when}\n{answer}\n" for when, answer in answers.items())
        path.write_text(f"{query}\n\n{sections}", encoding="utf-8")
        return
    assert got == answers[moment], f"{path.name}: {moment}"


def asking(moment: str) -> list[str]:
    """The views that have an answer for the moment."""
    return [name for name, path in FILES.items() if moment in read(path)[1]]


class Explained:
    """The lake of all files: two small topics, a larger one, and their views; its moments pass in order."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.answers: dict[tuple[str, str], str] = {}
        lake.sql(
            "CREATE TOPIC ex_sales (id BIGINT NOT NULL, city STRING, product BIGINT, qty INT, price DECIMAL(10,2), "
            "weight DOUBLE, sold_at TIMESTAMP)"
        )
        lake.sql("CREATE TOPIC ex_products (product BIGINT NOT NULL, name STRING, maker STRING)")
        lake.sql("CREATE TOPIC ex_many (n BIGINT NOT NULL, k BIGINT NOT NULL)")
        self._sell(0, 40)
        lake.topic("ex_products").append([{"product": p, "name": f"p{p}", "maker": f"m{p % 2}"} for p in range(4)])
        lake.topic("ex_many").append([{"n": n, "k": n % 50} for n in range(3000)])
        lake.flush()
        for name in sorted(FILES, key=lambda each: each.startswith("view_on")):
            query, answers = read(FILES[name])
            statement = f"CREATE MATERIALIZED VIEW ex_{name} AS {query} WITH (refresh = 'manual')"
            if "create" in answers:
                self.answers[name, "create"] = self._shown(f"EXPLAIN {statement}")
            lake.sql(statement)

    def pass_moments(self) -> None:
        """What is asked about each moment, asked at that moment."""
        self._ask("unchanged")
        self._sell(40, 6)
        self.lake.topic("ex_products").append([{"product": 7, "name": "p7", "maker": "m1"}])
        self.lake.flush()
        self._ask("rows came")
        self.lake.sql("DELETE FROM ex_sales WHERE id = 3")
        self.lake.sql("DELETE FROM ex_products WHERE product = 2")
        self.lake.sql("DELETE FROM ex_many WHERE n = 1")
        self._ask("rows left")

    def replace_source(self) -> None:
        """The view below is replaced by another of its name."""
        self.lake.sql(
            "CREATE OR REPLACE MATERIALIZED VIEW ex_distinct AS "
            "SELECT city, product, COUNT(*) AS n FROM ex_sales GROUP BY city, product WITH (refresh = 'manual')"
        )
        self._ask("source replaced")

    def expire_source(self, name: str) -> None:
        """The snapshot that a view stands for goes, although a tag keeps it."""
        table = self.lake.views.tables.load_for_commit(TableName.topic("ex_sales"))
        pinned = table.metadata.refs[f"headwater-view-ex_{name}"].snapshot_id
        others = [tag for tag, ref in table.metadata.refs.items() if ref.snapshot_id == pinned]
        for tag in others:
            table.manage_snapshots().remove_tag(tag).commit()
        table.maintenance.expire_snapshots().by_id(pinned).commit()
        self._ask("snapshot expired")

    def refresh_below(self) -> None:
        """The view below is refreshed, the one above is not."""
        self.lake.sql("REFRESH MATERIALIZED VIEW ex_aggregate")
        self._ask("below refreshed")

    def _ask(self, moment: str) -> None:
        for name in asking(moment):
            self.answers[name, moment] = self._shown(f"EXPLAIN REFRESH ex_{name}")

    def _shown(self, statement: str) -> str:
        found = self.lake.sql(statement)
        lines = [*(str(row["plan"]) for row in found.rows()), *(f"notice: {notice}" for notice in found.notices)]
        text = "\n".join(lines)
        for pattern, masked in MASKS:
            text = pattern.sub(masked, text)
        return text

    def _sell(self, start: int, rows: int) -> None:
        self.lake.topic("ex_sales").append(
            [
                {
                    "id": i,
                    "city": f"c{i % 3}",
                    "product": i % 5,
                    "qty": i % 7,
                    "price": f"{i}.50",
                    "weight": i * 0.25,
                    "sold_at": f"2026-01-{1 + i % 20:02d}T10:00:00Z",
                }
                for i in range(start, start + rows)
            ]
        )

    def drop(self) -> None:
        for name in sorted(FILES, key=lambda each: not each.startswith("view_on")):
            self.lake.sql(f"DROP MATERIALIZED VIEW IF EXISTS ex_{name}")
        for topic in ("ex_sales", "ex_products", "ex_many"):
            self.lake.sql(f"DROP TOPIC IF EXISTS {topic}")


@pytest.fixture(scope="module")
def explained(spark: Any, spark_lake: Path) -> Iterator[Explained]:
    made = (spark_lake / "headwater.toml").exists()
    with Lake.open(spark_lake) if made else Lake.init(spark_lake) as lake:
        lake._spark = SparkEngine(lambda: spark, stop=lambda _: None)
        world = Explained(lake)
        world.pass_moments()
        world.refresh_below()
        world.replace_source()
        world.expire_source("filter")
        yield world
        world.drop()


@pytest.mark.parametrize(("name", "moment"), [(name, moment) for name in FILES for moment in read(FILES[name])[1]])
def test_explain(explained: Explained, name: str, moment: str) -> None:
    check(name, moment, explained.answers[name, moment])
