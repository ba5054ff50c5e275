"""Headwater: an Iceberg lake that behaves like a streaming platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.engine import Lake

__version__ = "0.1.0"
__all__ = ["__version__", "init", "open"]


def open(path: str | Path = ".", **settings: Any) -> Lake:
    """Open the lake in the folder `path`; `settings` override headwater.toml and HEADWATER_* variables."""
    from headwater.engine import Lake

    return Lake.open(path, **settings)


def init(path: str | Path, **settings: Any) -> Lake:
    """Create a lake in the folder `path` and open it."""
    from headwater.engine import Lake

    return Lake.init(path, **settings)
