"""How long a window is: intervals of a fixed length, exact to the microsecond."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import InvalidInput, InvalidStatement
from headwater.sql.tokens import Token
from headwater.sql.units import parse_duration, shown

_TAKEN = "Intervals look like INTERVAL '1 hour', INTERVAL '5' MINUTE or '30 seconds'."
_UNFIXED = re.compile(r"\b(mon|month|year|quarter|yr)s?\b", re.IGNORECASE)
_UNITS = (("DAY", 86_400_000_000), ("HOUR", 3_600_000_000), ("MINUTE", 60_000_000))
_SECOND = 1_000_000
_LONGEST = 10_000 * 86_400 * _SECOND


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A length of time in microseconds."""

    micros: int

    @property
    def sql(self) -> str:
        """The interval as a literal of both engines."""
        for unit, micros in _UNITS:
            if self.micros % micros == 0:
                return f"INTERVAL '{self.micros // micros}' {unit}"
        whole, rest = divmod(self.micros, _SECOND)
        return f"INTERVAL '{whole}{f'.{rest:06}'.rstrip('0') if rest else ''}' SECOND"


def read_size(tokens: Sequence[Token]) -> Size:
    """The length that an argument stands for; InvalidStatement if it has none or is no constant."""
    behind = tokens[1:] if tokens[0].keyword == "INTERVAL" else tokens
    text = " ".join(token.value for token in behind)
    if _UNFIXED.search(text):
        raise InvalidStatement(
            f'interval "{shown(text)}" has no fixed length', detail="Months and years differ in length.", hint=_TAKEN
        )
    try:
        exact = parse_duration(text) * _SECOND if re.search("[A-Za-z]", text) else 0.0
    except InvalidInput:
        exact = 0.0
    if not exact or exact != round(exact) or exact > _LONGEST:
        raise InvalidStatement(f'interval "{shown(text)}" is not understood', detail=_TAKEN)
    return Size(round(exact))
