"""Nexmark's generator: the same events each time, in the right proportion, that refer to what came before them."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench.nexmark import COLUMNS, Events, Workload, ending, events, pieces
from bench.nexmark_queries import QUERIES

from headwater.sql.windows import rewrite_windows

ORDERED = Workload(rate=10_000)
SHUFFLED = Workload(rate=10_000, disorder=2.0)


def moments(table: pa.Table) -> np.ndarray:
    """The event times in microseconds."""
    return table["date_time"].cast(pa.int64()).to_numpy()


def joined(parts: list[Events]) -> Events:
    return Events(
        *(pa.concat_tables(tables) for tables in zip(*(dict(p.tables()).values() for p in parts), strict=True))
    )


def test_the_same_numbers_give_the_same_events() -> None:
    assert events(5_000, SHUFFLED) == events(5_000, SHUFFLED)
    assert events(5_000, SHUFFLED) != events(5_000, Workload(disorder=2.0, seed=2))


def test_a_stream_in_order_is_its_pieces_put_together() -> None:
    whole = events(250_000, ORDERED)
    assert joined(list(pieces(250_000, 7, ORDERED))) == whole
    assert events(1_000, ORDERED, first=240_000).bid == whole.bid.slice(240_000 // 50 * 46, 920)


def test_persons_auctions_and_bids_are_as_1_to_3_to_46() -> None:
    made = events(50_000, SHUFFLED)
    assert [len(table) for _, table in made.tables()] == [1_000, 3_000, 46_000]


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_those_of_the_stream(name: str) -> None:
    table = dict(events(500).tables())[name]
    assert ", ".join(table.column_names) == ", ".join(part.split()[0] for part in COLUMNS[name].split(", "))
    assert all(column.null_count == 0 for column in table.columns)


def test_event_time_goes_on_evenly() -> None:
    made = events(100_000, ORDERED)
    times = np.sort(np.concatenate([moments(table) for _, table in made.tables()]))
    assert set(np.diff(times)) == {100}


def test_arrival_is_out_of_order_within_the_bound() -> None:
    times = moments(events(100_000, SHUFFLED).bid)
    behind = np.maximum.accumulate(times) - times
    assert 1_500_000 < behind.max() <= 2_000_000
    assert set(times) == set(moments(events(100_000, ORDERED).bid))


def test_people_and_auctions_are_there_before_they_are_named() -> None:
    made = events(100_000, ORDERED)
    born = dict(zip(made.person["id"].to_pylist(), moments(made.person), strict=True))
    opened = dict(zip(made.auction["id"].to_pylist(), moments(made.auction), strict=True))
    assert len(born) == len(made.person) and len(opened) == len(made.auction)
    for people, table in (("seller", made.auction), ("bidder", made.bid)):
        known = np.array([born[one] for one in table[people].to_pylist()])
        assert (known < moments(table)).all()
    assert (np.array([opened[one] for one in made.bid["auction"].to_pylist()]) < moments(made.bid)).all()


def test_some_are_hot() -> None:
    made = events(200_000, ORDERED)
    for column, share in ((made.bid["auction"], 0.5), (made.bid["bidder"], 0.75), (made.auction["seller"], 0.75)):
        hot = np.mean(column.to_numpy() % 100 == 0)
        assert share - 0.01 < hot < share + 0.03


def test_auctions_end_after_they_begin_and_bids_fall_into_them() -> None:
    made = events(100_000, ORDERED)
    assert pc.all(pc.less(made.auction["date_time"], made.auction["expires"])).as_py()
    open_until = dict(
        zip(made.auction["id"].to_pylist(), made.auction["expires"].cast("int64").to_pylist(), strict=True)
    )
    ends = np.array([open_until[one] for one in made.bid["auction"].to_pylist()])
    assert 0.4 < np.mean(moments(made.bid) <= ends) < 0.99


def test_prices_are_spread_over_six_powers_of_ten() -> None:
    prices = events(100_000).bid["price"].to_numpy()
    counts, _ = np.histogram(np.log10(prices), bins=6, range=(2, 8))
    assert counts.sum() == len(prices) and counts.min() > 0.95 * len(prices) / 6


def test_the_ending_is_one_event_of_each_stream_after_all_others() -> None:
    last = ending(1_234, Workload(rate=100), after=60)
    newest = max(pc.max(table["date_time"]).as_py() for _, table in events(1_234, Workload(rate=100)).tables())
    for _, table in last.tables():
        assert len(table) == 1
        assert timedelta(seconds=60) <= table["date_time"][0].as_py() - newest < timedelta(seconds=61)


def test_every_query_is_in_headwaters_sql() -> None:
    numbers = [*range(9), *range(11, 21)]
    assert list(QUERIES) == [f"q{number}" for number in numbers]
    for query in QUERIES.values():
        text = rewrite_windows(query.sql)
        assert not any(word in text for word in ("TUMBLE", "HOP", "SESSION("))
