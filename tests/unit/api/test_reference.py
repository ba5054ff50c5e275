"""docs/reference/http.md names every route and every error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import headwater
from headwater import errors
from headwater.api import problems
from headwater.api.app import create_app
from headwater.api.records import CODINGS, FORMATS
from headwater.errors import HeadwaterError

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"


@pytest.fixture(scope="module")
def reference() -> str:
    return REFERENCE.read_text()


def test_every_route_is_described(reference: str, tmp_path: Path) -> None:
    with headwater.init(tmp_path / "lake") as lake:
        paths = create_app(lake).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    described = {route.split("?")[0] for route in re.findall(r"^\| `([A-Z]+ /[^`]*)`", reference, re.MULTILINE)}
    assert described == routes


def test_every_error_is_described_with_its_status(reference: str) -> None:
    kinds = [
        kind
        for module in (errors, problems)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, HeadwaterError)
    ]
    rows = dict(re.findall(r"^\| (\d{3}) \| (.*) \|$", reference, re.MULTILINE))
    described = {(int(status), code) for status, codes in rows.items() for code in re.findall(r"`(\w+)`", codes)}
    assert described == {(kind.status, kind.code) for kind in kinds}


def test_every_format_is_described(reference: str) -> None:
    for name in [*FORMATS, *filter(None, CODINGS.values())]:
        assert f"`{name}`" in reference
