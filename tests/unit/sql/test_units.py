from __future__ import annotations

import pytest

from headwater.errors import InvalidInput
from headwater.sql.units import parse_duration, parse_size, render_duration, render_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 minutes", 300.0),
        ("10s", 10.0),
        ("1 hour", 3600.0),
        ("500 ms", 0.5),
        (300, 300.0),
        (0.25, 0.25),
        ("300", 300.0),
        ("1.5h", 5400.0),
        ("1h 30m", 5400.0),
        ("1 day 2 hours 3 minutes 4 seconds", 93784.0),
        ("2 WEEKS", 1209600.0),
        ("250us", 0.00025),
        ("  7 secs ", 7.0),
        ("1e3 ms", 1.0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "5 parsecs",
        "-1",
        -1,
        "1h 2h",
        "1h 30",
        "5 minutes!",
        "1 2",
        "..",
        True,
        None,
        [1],
        float("nan"),
        "5 MB",
    ],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"^duration "):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128 MB", 128 * 1024**2),
        ("128 MiB", 128 * 1024**2),
        ("50 GB", 50 * 1024**3),
        ("1 GiB", 1024**3),
        ("1.5 mb", 1536 * 1024),
        ("64k", 65536),
        ("7 bytes", 7),
        ("134217728", 128 * 1024**2),
        (42, 42),
        (42.0, 42),
        ("2 TB", 2 * 1024**4),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "1 XB", "0.3 B", 0.5, -1, False, None, "5 minutes"])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"^size "):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300.0, "5 minutes"),
        (3600.0, "1 hour"),
        (10.0, "10 seconds"),
        (0.5, "500 ms"),
        (0.1, "100 ms"),
        (86400.0, "1 day"),
        (0.0, "0 seconds"),
        (90.0, "90 seconds"),
        (0.0001, "0.0001 seconds"),
        (1e300, "1e+300 seconds"),
    ],
)
def test_durations_are_rendered_in_the_largest_unit(seconds: float, text: str) -> None:
    assert render_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"), [(128 * 1024**2, "128 MB"), (1024, "1 KB"), (1000, "1000 bytes"), (1, "1 byte"), (0, "0 bytes")]
)
def test_sizes_are_rendered_in_the_largest_unit(size: int, text: str) -> None:
    assert render_size(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [float("inf"), -float("inf"), "9" * 5000, "1e999 s", "١ hour"])
def test_extreme_durations(text: object) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text)


def test_huge_numbers_are_not_written_out() -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(InvalidInput, match='"a huge number"'):
            parse(10**5000)
