"""Brokers that do not answer are waited for once, whoever asks, and leave the rest of the lake as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.errors import Unavailable
from headwater.topics import describe, log_kafka_journal, log_routed
from headwater.topics.log import LogTopic
from headwater.topics.log_kafka_journal import Journal
from headwater.topics.log_kafka_place import KafkaPlace
from headwater.topics.log_routed import RoutedLog


class Silent:
    """Says that nobody answers, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        raise Unavailable("no broker answers")


def ask(question: Callable[[], object], times: int = 3) -> None:
    for _ in range(times):
        with pytest.raises(Unavailable, match="no broker answers"):
            question()


def journal(brokers: Silent) -> Callable[[], object]:
    made = Journal(KafkaPlace("127.0.0.1:1", "t"))
    made._bounds = brokers  # type: ignore[method-assign]
    return made.bounds


def routed(brokers: Silent) -> Callable[[], object]:
    nothing: Any = None
    log = RoutedLog(nothing, brokers, lambda: True)
    return lambda: log.stats(LogTopic("id", "t", 0, "kafka"))


@pytest.mark.parametrize(("made", "module"), [(journal, log_kafka_journal), (routed, log_routed)])
def test_those_who_ask_in_turn_wait_once(made: Any, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN", 30.0)
    quick = Silent()
    ask(made(quick))
    assert quick.asked == 3  # nobody waited, so nobody is spared anything
    clock = SimpleNamespace(monotonic=iter(range(0, 1000, 31)).__next__)
    monkeypatch.setattr(module, "time", clock)  # each look at the clock is half a minute after the one before
    slow = Silent()
    question = made(slow)
    ask(question, 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 60.0))
    ask(question)
    assert slow.asked == 1
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 62.0))
    ask(question, 1)
    assert slow.asked == 2


def test_topics_are_listed_although_a_log_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "_totals", lambda _: {"records": 5, "files": 1, "bytes": 9})
    monkeypatch.setattr(describe, "log_topic", lambda _: None)
    log: Any = SimpleNamespace(stats=lambda _: Silent()())
    options = SimpleNamespace(description="")
    topic: Any = SimpleNamespace(name="t", committed=5, definition=SimpleNamespace(options=options))
    shown = describe.summary(topic, log)
    assert (shown["records"], shown["tail"]) == (5, None)
