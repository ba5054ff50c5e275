"""Nexmark's events, an auction house as three streams: people arrive, open auctions, and bid in them.

Of every 50 events one is a person, three are auctions and 46 are bids, and event time goes on evenly. Half of the bids
are for the hot auction of the moment, three quarters of them by the hot bidder, and three quarters of the auctions are
by the hot seller; the rest is spread over whom and what is active. Every value is a function of the seed and of the
number of its event, so any piece of the stream can be made by itself, and is the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EPOCH, AUCTIONS, BIDS = 50, 3, 46
FIRST_ID = 1000
ACTIVE_PEOPLE, OPEN_AUCTIONS, HOT_EVERY = 1000, 100, 100
CATEGORIES, FIRST_CATEGORY = 5, 10
CHANNELS = 10_000
BLOCK = 100_000
BASE = np.datetime64("2026-01-01T00:00:00", "us")
_HALF = np.uint64(2**32 - 1)

FIRST_NAMES = ("Ada", "Brook", "Cleo", "Dario", "Edda", "Finn", "Gus", "Hedy", "Ines", "Jorge", "Kim", "Lena")
LAST_NAMES = ("Adler", "Brun", "Castro", "Dahl", "Egger", "Falk", "Grau", "Holm", "Ivens")
CITIES = ("Phoenix", "Fresno", "Oakland", "Boise", "Salem", "Bend", "Tacoma", "Seattle", "Yakima", "Laramie")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")

COLUMNS = {
    "person": "id BIGINT NOT NULL, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP NOT NULL, extra STRING",
    "auction": "id BIGINT NOT NULL, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP NOT NULL, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP NOT NULL, extra STRING",
}
"""The columns of each stream, as CREATE STREAM takes them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a stream of events is like: events in a second of event time, and how far they arrive out of order."""

    rate: int = 10_000
    base: np.datetime64 = BASE
    disorder: float = 0.0
    """Seconds: no event arrives after another one that is later by more than this."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Events:
    """A piece of the three streams, each in the order of arrival."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        yield from (("person", self.person), ("auction", self.auction), ("bid", self.bid))


def events(count: int, workload: Workload | None = None, *, first: int = 0) -> Events:
    """Events `[first, first + count)`; those that arrive out of order do so within this piece."""
    made = workload or Workload()
    numbers = _arrival(np.arange(first, first + count, dtype=np.int64), made)
    # In blocks that stay in the processor's cache, which is twice as fast.
    blocks = [_block(numbers[start : start + BLOCK], made) for start in range(0, max(1, count), BLOCK)]
    return Events(*(pa.concat_tables(tables) for tables in zip(*blocks, strict=True)))


def _block(numbers: np.ndarray, workload: Workload) -> tuple[pa.Table, pa.Table, pa.Table]:
    place = numbers % EPOCH
    return (
        _people(numbers[place == 0], workload),
        _auctions(numbers[(place > 0) & (place <= AUCTIONS)], workload),
        _bids(numbers[place > AUCTIONS], workload),
    )


def pieces(count: int, number: int, workload: Workload | None = None) -> Iterator[Events]:
    """The first `count` events in `number` pieces of equal size; what is left over is in the last one."""
    each = count // number
    for place in range(number):
        last = place == number - 1
        yield events(count - place * each if last else each, workload, first=place * each)


def ending(count: int, workload: Workload, after: float) -> Events:
    """One event of each stream, so many seconds after the first `count`: what closes all windows before it."""
    whole = -(-count // EPOCH) * EPOCH
    last = events(EPOCH, replace(workload, disorder=0.0), first=whole)
    later = int((after + (count - whole) / workload.rate) * 1_000_000)
    return Events(*(_later(table.slice(0, 1), later) for _, table in last.tables()))


def _later(table: pa.Table, micros: int) -> pa.Table:
    place = table.schema.get_field_index("date_time")
    moved = pc.add(table["date_time"], pa.scalar(np.timedelta64(micros, "us")))
    return table.set_column(place, table.schema.field(place), moved)


# -- numbers --------------------------------------------------------------------------------------------------------


def _draw(numbers: np.ndarray, workload: Workload, column: int) -> np.ndarray:
    """64 random bits for each event and column: splitmix64 of its number."""
    with np.errstate(over="ignore"):
        bits = numbers.astype(np.uint64) + np.uint64((workload.seed * 64 + column) << 40)
        bits *= np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _below(bits: np.ndarray, limit: Any) -> np.ndarray:
    """Whole numbers from 0 to `limit` - 1, by 32 of the bits."""
    return (((bits & _HALF) * np.asarray(limit, np.uint64)) >> np.uint64(32)).astype(np.int64)


def _one_in(bits: np.ndarray, ratio: int) -> np.ndarray:
    # By the upper bits, so that the choice is independent of the number that the lower half becomes.
    return (bits >> np.uint64(48)) % np.uint64(ratio) == 0


def _micros(numbers: np.ndarray, workload: Workload) -> np.ndarray:
    return numbers * 1_000_000 // workload.rate


def _moments(numbers: np.ndarray, workload: Workload, later: np.ndarray | int = 0) -> pa.Array:
    micros = workload.base.astype("datetime64[us]").astype(np.int64) + _micros(numbers, workload) + later
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))


def _arrival(numbers: np.ndarray, workload: Workload) -> np.ndarray:
    """The events by when they arrive: each one up to `disorder` after its time."""
    if not workload.disorder:
        return numbers
    delay = _below(_draw(numbers, workload, 0), int(workload.disorder * 1_000_000))
    return numbers[np.argsort(_micros(numbers, workload) + delay, kind="stable")]


def _price(bits: np.ndarray) -> np.ndarray:
    """From 100 to 100 million, evenly on a logarithmic scale."""
    return np.round(10.0 ** (bits / 2.0**64 * 6) * 100).astype(np.int64)


def _person(numbers: np.ndarray, bits: np.ndarray, hot: int) -> np.ndarray:
    """A person who came before the event: of every `hot` events one has anyone active, and the others the hot one."""
    newest = numbers // EPOCH
    anyone = newest - _below(bits, np.minimum(newest + 1, ACTIVE_PEOPLE))
    return FIRST_ID + np.where(_one_in(bits, hot), anyone, newest // HOT_EVERY * HOT_EVERY)


def _auction(numbers: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """An auction that was opened before the event: the hot one for half of the events, else any of the open ones."""
    newest = numbers // EPOCH * AUCTIONS + AUCTIONS - 1
    anyone = newest - _below(bits, np.minimum(newest + 1, OPEN_AUCTIONS))
    return FIRST_ID + np.where(_one_in(bits, 2), anyone, newest // HOT_EVERY * HOT_EVERY)


# -- texts ----------------------------------------------------------------------------------------------------------


@cache
def _letters(shortest: int, longest: int) -> pa.Array:
    """4096 words; two of them joined are rarely the same ones again."""
    random = np.random.default_rng(longest)
    words = random.integers(ord("a"), ord("z") + 1, (4096, longest)).astype(np.uint8)
    lengths = random.integers(shortest, longest + 1, 4096)
    return pa.array([word[:length].tobytes().decode() for word, length in zip(words, lengths, strict=True)])


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """The names of channels, the hot ones first, and each one's address."""
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    folders = _letters(3, 8).take(pa.array(np.arange(len(names)) * 7 % 4096)).to_pylist()
    urls = [
        f"https://auctions.example/{folder}/{name.lower()}/item.htm?query=1"
        + (f"&channel_id={place - len(HOT_CHANNELS)}" if place >= len(HOT_CHANNELS) else "")
        for place, (name, folder) in enumerate(zip(names, folders, strict=True))
    ]
    return pa.array(names), pa.array(urls)


def _chosen(words: tuple[str, ...] | pa.Array, bits: np.ndarray) -> pa.Array:
    words = words if isinstance(words, pa.Array) else pa.array(words)
    return words.take(pa.array(_below(bits, len(words))))


def _words(bits: np.ndarray, shortest: int, longest: int, between: str = "") -> pa.Array:
    """Two words of so many letters each."""
    pool = _letters(shortest, longest)
    return pc.binary_join_element_wise(_chosen(pool, bits), _chosen(pool, bits >> np.uint64(24)), between)


def _card(bits: np.ndarray) -> pa.Array:
    groups = [
        pc.utf8_lpad(pa.array(_below(bits >> np.uint64(16 * n), 10_000)).cast("string"), 4, "0") for n in range(4)
    ]
    return pc.binary_join_element_wise(*groups, " ")


# -- tables ---------------------------------------------------------------------------------------------------------


def _people(numbers: np.ndarray, workload: Workload) -> pa.Table:
    name, mail, card, place, extra = (_draw(numbers, workload, column) for column in range(1, 6))
    names = pc.binary_join_element_wise(_chosen(FIRST_NAMES, name), _chosen(LAST_NAMES, name >> np.uint64(20)), " ")
    return pa.table(
        {
            "id": FIRST_ID + numbers // EPOCH,
            "name": names,
            "email_address": _words(mail, 4, 7, "@"),
            "credit_card": _card(card),
            "city": _chosen(CITIES, place),
            "state": _chosen(STATES, place >> np.uint64(20)),
            "date_time": _moments(numbers, workload),
            "extra": _words(extra, 20, 60),
        }
    )


def _auctions(numbers: np.ndarray, workload: Workload) -> pa.Table:
    item, text, cost, open_for, seller, kind, extra = (_draw(numbers, workload, column) for column in range(11, 18))
    initial = _price(cost)
    # About as long as it takes until so many other auctions are opened.
    longest = max(1, OPEN_AUCTIONS * EPOCH * 2_000_000 // AUCTIONS // workload.rate)
    return pa.table(
        {
            "id": FIRST_ID + numbers // EPOCH * AUCTIONS + numbers % EPOCH - 1,
            "item_name": _words(item, 4, 10, " "),
            "description": _words(text, 20, 50, " "),
            "initial_bid": initial,
            "reserve": initial + _price(cost * np.uint64(0x9E3779B97F4A7C15)),
            "date_time": _moments(numbers, workload),
            "expires": _moments(numbers, workload, 1_000 + _below(open_for, longest)),
            "seller": _person(numbers, seller, 4),
            "category": FIRST_CATEGORY + _below(kind, CATEGORIES),
            "extra": _words(extra, 100, 200),
        }
    )


def _bids(numbers: np.ndarray, workload: Workload) -> pa.Table:
    auction, bidder, price, channel, extra = (_draw(numbers, workload, column) for column in range(21, 26))
    names, urls = _channels()
    hot = len(HOT_CHANNELS)
    channels = pa.array(np.where(_one_in(channel, 2), _below(channel, hot), hot + _below(channel, CHANNELS)))
    return pa.table(
        {
            "auction": _auction(numbers, auction),
            "bidder": _person(numbers, bidder, 4),
            "price": _price(price),
            "channel": names.take(channels),
            "url": urls.take(channels),
            "date_time": _moments(numbers, workload),
            "extra": _words(extra, 10, 25),
        }
    )
