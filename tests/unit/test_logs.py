from __future__ import annotations

import logging

from headwater.observability.logs import FieldsFormatter, Seldom


def test_fields_follow_the_message() -> None:
    fields = {"name": "headwater.x", "levelname": "INFO", "msg": "ingested", "topic": "orders", "seconds": 1.25}
    record = logging.makeLogRecord({**fields, "reason": "two words"})
    assert (
        FieldsFormatter()
        .format(record)
        .endswith("INFO headwater.x: ingested topic=orders seconds=1.250 reason='two words'")
    )


def test_a_line_is_not_repeated() -> None:
    seldom, short = Seldom(), Seldom(0.0)

    def said(text: str, by: Seldom = seldom) -> bool:
        return by.filter(logging.makeLogRecord({"msg": text}))

    assert said("FAIL [headwater#consumer-1] kafka-1:9092 refused (after 0ms in state CONNECT)")
    assert not said("FAIL [headwater#consumer-2] kafka-1:9092 refused (after 12ms in state CONNECT)")
    assert said("FAIL [headwater#consumer-2] kafka-2:9092 refused (after 0ms in state CONNECT)")
    assert said("refused", short)
    assert said("refused", short)
    few = Seldom(most=1)
    assert [said(text, few) for text in ("a", "b", "a", "a")] == [True, True, True, False]
