from __future__ import annotations

import logging

from headwater.observability.logs import FieldsFormatter


def test_fields_follow_the_message() -> None:
    fields = {"name": "headwater.x", "levelname": "INFO", "msg": "ingested", "topic": "orders", "seconds": 1.25}
    record = logging.makeLogRecord({**fields, "reason": "two words"})
    assert (
        FieldsFormatter()
        .format(record)
        .endswith("INFO headwater.x: ingested topic=orders seconds=1.250 reason='two words'")
    )
