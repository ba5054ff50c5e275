"""Which hosts and origins are let in."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from headwater.api.guard import HostRule, refusal
from headwater.errors import HostNotAllowed


def refused(method: str, bound: str, names: tuple[str, ...] = (), **headers: str) -> bool:
    return refusal(method, Headers(headers), HostRule.of(bound, names)) is not None


@pytest.mark.parametrize("host", ["localhost", "localhost:8420", "127.0.0.1:1", "[::1]:8420", "LOCALHOST", "[::1]"])
def test_loopback_names_are_let_in(host: str) -> None:
    assert not refused("POST", "127.0.0.1", host=host)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8420", "", "[::1", "169.254.0.1", "@localhost@x"]
)
def test_other_names_are_not(host: str) -> None:
    assert refused("GET", "127.0.0.1", host=host)


def test_the_bound_name_is_let_in() -> None:
    assert not refused("GET", "lake.internal", host="Lake.Internal:80")
    assert refused("GET", "lake.internal", host="other.internal")


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_all_interfaces_have_any_address_but_no_other_name(bound: str) -> None:
    for host in ("localhost", "192.0.2.7:8420", "[2001:db8::1]:8420", "10.0.0.1"):
        assert not refused("GET", bound, host=host)
    for host in ("rebound.example", "192.0.2.7.rebound.example", "", "0x7f.1", "*"):
        assert refused("GET", bound, host=host)


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "192.0.2.7"])
def test_configured_names_are_let_in(bound: str) -> None:
    names = ("lake.internal", "Other.Internal", "2001:db8::1")
    for host in ("lake.internal:8420", "LAKE.internal", "other.internal", "[2001:db8::1]:80", "localhost"):
        assert not refused("POST", bound, names, host=host)
    assert refused("GET", bound, names, host="sub.lake.internal")
    assert not refused("GET", bound, ("*",), host="any.example")
    assert refused("GET", bound, ("*",), host="")


def test_a_refused_host_is_misdirected() -> None:
    error = refusal("GET", Headers({"host": "evil.example"}), HostRule.of("127.0.0.1"))
    assert isinstance(error, HostNotAllowed)
    assert error.status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9999", "http://[", ""])
def test_other_origins_change_nothing(origin: str) -> None:
    assert refused("POST", "127.0.0.1", host="localhost:8420", origin=origin)
    assert refused("DELETE", "127.0.0.1", host="localhost:8420", origin=origin)
    assert not refused("GET", "127.0.0.1", host="localhost:8420", origin=origin)


def test_the_same_origin_does() -> None:
    assert not refused("POST", "127.0.0.1", host="localhost:8420", origin="http://localhost:8420")
