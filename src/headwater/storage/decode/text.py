"""The text forms of scalar values, one rule each, in Python.

They mirror exactly what the vectorised conversions in `leaves` accept, so that the two ways into a topic agree. Every
function returns the value, or raises ValueError when the text is not of that form or the value does not fit.
"""

from __future__ import annotations

import binascii
import math
import re
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from headwater.storage.decode.shapes import DECIMAL_DIGITS

MAX_EXPONENT_SCALE = 76
"""Arrow's table of powers of ten ends here, and it reads beyond its end for smaller numbers."""

_LONGEST_EXPONENT = 9

_DECIMAL = re.compile(r"([+-]?)(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?\d+))?", re.ASCII)
_CLOCK = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?"
_TIME = re.compile(_CLOCK, re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIMESTAMP = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[ T]({_CLOCK})(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class DoesNotFit(ValueError):
    """The text has the right form, but its value is out of the type's range."""


def is_integer(text: str) -> bool:
    """Whether the text is a JSON integer."""
    return _INTEGER.fullmatch(text) is not None


def parse_float(text: str) -> float:
    """The double nearest to a JSON number, or to NaN, Infinity and -Infinity."""
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    if (match := _NUMBER.fullmatch(text)) is None:
        raise ValueError(text)
    # The JSON reader refuses such an exponent even on a zero.
    if math.isinf(value := float(text)) or _exponent(match[2]) > 308 + len(match[1] or ""):
        raise DoesNotFit(text)
    return value


def _exponent(digits: str | None) -> float:
    return float(digits or 0)


def parse_decimal(text: str, precision: int, scale: int) -> Decimal:
    """The decimal of exactly this value; at most 38 significant digits, an exponent is allowed."""
    if (match := _DECIMAL.fullmatch(text)) is None:
        raise ValueError(text)
    if len(match[5] or "") > _LONGEST_EXPONENT:
        raise DoesNotFit(text)
    sign, whole, fraction = match[1], match[2] or "", match[3] or match[4] or ""
    text_scale = len(fraction) - int(match[5] or 0)
    digits = len(whole.lstrip("0")) + len(fraction) + max(0, -text_scale)
    if digits > DECIMAL_DIGITS or text_scale > MAX_EXPONENT_SCALE:
        raise DoesNotFit(text)
    unscaled, rest = int((whole + fraction).lstrip("0") or "0"), 0
    if text_scale <= scale:
        unscaled *= 10 ** (scale - text_scale)
    else:
        unscaled, rest = divmod(unscaled, 10 ** (text_scale - scale))
    if rest or unscaled >= 10**precision:
        raise DoesNotFit(text)
    return Decimal(f"{sign}{unscaled}E-{scale}")


def parse_date(text: str) -> date:
    """A date as YYYY-MM-DD, from year 1 on."""
    if (match := _DATE.fullmatch(text)) is None:
        raise ValueError(text)
    return date(int(match[1]), int(match[2]), int(match[3]))


def parse_time(text: str) -> time:
    """A time of day as HH[:MM[:SS[.ffffff]]], without a zone."""
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError(text)
    hour, minute, second, fraction = match.groups()
    return time(int(hour), int(minute or 0), int(second or 0), int((fraction or "").ljust(6, "0")))


def parse_timestamp(text: str, *, zoned: bool) -> datetime:
    """A timestamp as YYYY-MM-DD[(T| )HH[:MM[:SS[.ffffff]]][zone]]; a zone only when `zoned`, and then UTC if none."""
    if (match := _TIMESTAMP.fullmatch(text)) is None:
        raise ValueError(text)
    day, clock, zone = parse_date(match[1]), match[2], match[7]
    moment = datetime.combine(day, parse_time(clock) if clock else time())
    if not zoned:
        if zone is not None:
            raise ValueError(text)
        return moment
    try:
        return (moment - _offset(zone)).replace(tzinfo=UTC)
    except OverflowError:
        raise DoesNotFit(text) from None


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset


def parse_uuid(text: str) -> bytes:
    """The 16 bytes of a uuid in its canonical form with hyphens, in either case."""
    if _UUID.fullmatch(text) is None:
        raise ValueError(text)
    return uuid.UUID(text).bytes


def parse_base64(text: str) -> bytes:
    """The bytes of a padded base64 text in the standard alphabet."""
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError(text) from None
