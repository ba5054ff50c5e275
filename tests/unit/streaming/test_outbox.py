"""Rows that go to a topic once, however often an epoch is repeated and wherever it was cut off."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.engine import Lake
from headwater.errors import HeadwaterError, StaleCommit
from headwater.streaming.outbox import Outbox
from headwater.topics.produce import Ack, Source


class Sent:
    """The topic `out`, and how rows get there."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.requests = 0
        self.fails_at: int | None = None
        lake.sql("CREATE TOPIC out (n BIGINT)")

    def append(self, topic: str, rows: list[pa.Table], source: Source) -> Ack:
        self.requests += 1
        if self.requests == self.fails_at:
            raise OSError("no space left")
        return self.lake._intake.append(topic, rows, "arrow", source, wait=True)

    def outbox(self, source: str = "stream/1/into") -> Outbox:
        return Outbox("out", source, self.lake.log, self.append)

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.lake.sql("SELECT n FROM out ORDER BY _offset").rows()]


@pytest.fixture
def sent(lake: Lake) -> Sent:
    return Sent(lake)


def parts(*numbers: Any) -> list[pa.Table]:
    return [pa.table({"n": pa.array(each if isinstance(each, list) else [each], pa.int64())}) for each in numbers]


def send(outbox: Outbox, generation: int, epoch: int, tables: list[pa.Table]) -> None:
    for number, rows in enumerate(tables):
        outbox.send((generation, epoch, number), rows)


def test_an_epoch_that_is_repeated_is_sent_once(sent: Sent) -> None:
    assert sent.outbox().sent is None
    send(sent.outbox(), 1, 0, parts([1, 2], 3))
    assert sent.outbox().sent == (1, 0, 1)
    send(sent.outbox(), 1, 0, parts([1, 2], 3))
    send(sent.outbox(), 1, 4, parts(4))
    send(sent.outbox(), 1, 4, parts(4))
    send(sent.outbox(), 1, 0, parts([1, 2], 3))
    assert sent.numbers() == [1, 2, 3, 4]
    assert sent.requests == 3


def test_an_epoch_that_was_cut_off_goes_on_with_the_part_that_is_missing(sent: Sent) -> None:
    sent.fails_at = 2
    with pytest.raises(OSError, match="no space"):
        send(sent.outbox(), 1, 7, parts(1, 2, 3))
    assert (sent.numbers(), sent.outbox().sent) == ([1], (1, 7, 0))
    send(sent.outbox(), 1, 7, parts(1, 2, 3))
    assert sent.numbers() == [1, 2, 3]


def test_the_epochs_of_a_new_generation_begin_anew(sent: Sent) -> None:
    send(sent.outbox(), 1, 9, parts(1))
    send(sent.outbox(), 2, 0, parts(2))
    send(sent.outbox(), 1, 10, parts(3))  # of a run that does not know yet that its query was replaced
    assert sent.numbers() == [1, 2]


def test_numbers_are_compared_as_numbers(sent: Sent) -> None:
    for epoch in (9, 10, 100):
        send(sent.outbox(), 1, epoch, parts(epoch))
    assert sent.numbers() == [9, 10, 100]


def test_sources_know_nothing_of_each_other(sent: Sent) -> None:
    send(sent.outbox("stream/1/into"), 1, 0, parts(1))
    send(sent.outbox("stream/2/into"), 1, 0, parts(2))
    assert sent.numbers() == [1, 2]


def test_of_two_that_send_at_once_one_is_refused(sent: Sent) -> None:
    """Both looked before either had sent."""
    outbox, other = sent.outbox(), sent.outbox()
    stored = sent.append

    def slow(topic: str, rows: list[pa.Table], source: Source) -> Ack:
        outbox._append = stored
        send(other, 1, 0, parts(1))
        return stored(topic, rows, source)

    outbox._append = slow
    with pytest.raises(HeadwaterError) as refused:
        send(outbox, 1, 0, parts(1))
    assert isinstance(refused.value, StaleCommit)
    assert sent.numbers() == [1]
