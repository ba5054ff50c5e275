"""What docs/reference says about options, settings, errors, metrics and functions is what the code says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.reference import stale


def test_generated_pages_are_current() -> None:
    assert stale() == [], "run `make docs`"
