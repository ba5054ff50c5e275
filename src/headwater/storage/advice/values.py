"""What advice consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwater.sql.options import option

Kind = Literal["encoding", "compression", "bloom_filter", "partitioning", "ordering", "row_groups"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What was measured on the sample, as it is and as it would be; None where it was not.

    Bytes and seconds are those of the columns concerned (of all columns where the rows' order changes). `read` is the
    share of the rows that the recorded queries would read, after skipping.
    """

    bytes_before: int | None = None
    bytes_after: int | None = None
    write_seconds_before: float | None = None
    write_seconds_after: float | None = None
    read_seconds_before: float | None = None
    read_seconds_after: float | None = None
    read_before: float | None = None
    read_after: float | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One change to a topic: what it is, what it does, why, and the part of ALTER TOPIC that makes it.

    `option` and `value` are those of a topic option; None for a change of partitioning or order, which is in `clause`.
    Recommendations of one option share its value, so that applying any of them applies all of them.
    """

    kind: Kind
    columns: tuple[str, ...]
    current: str
    proposed: str
    effect: Effect
    why: str
    confidence: Confidence
    option: str | None = None
    value: str | None = None
    clause: str | None = None

    @property
    def change(self) -> str:
        """What follows ALTER TOPIC name."""
        if self.clause is not None:
            return self.clause
        assert self.option is not None
        assert self.value is not None
        return f"SET ({self.option} = {option(self.option).literal(self.value)})"
