"""Headwater: an Iceberg lake that behaves like a streaming platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.backup.relocate import Relocation
    from headwater.client import RemoteLake
    from headwater.engine import Lake
    from headwater.engine.time_travel import TimeTravelManager

__all__ = ["TimeTravelManager", "__version__", "connect", "init", "open", "relocate", "restore"]


def __getattr__(name: str) -> Any:
    # Importing headwater must cost nothing: commands do it before they know what they need.
    if name == "TimeTravelManager":
        from headwater.engine.time_travel import TimeTravelManager

        return TimeTravelManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open(path: str | Path = ".", **settings: Any) -> Lake:
    """Open the lake in the folder `path`; `settings` override headwater.toml and HEADWATER_* variables."""
    from headwater.engine import Lake

    return Lake.open(path, **settings)


def init(path: str | Path, **settings: Any) -> Lake:
    """Create a lake in the folder `path` and open it."""
    from headwater.engine import Lake

    return Lake.init(path, **settings)


def restore(source: str | Path, place: str | Path, **settings: Any) -> Lake:
    """Make a lake in the new or empty folder `place` from the backup in `source`, and open it."""
    from headwater.engine import Lake

    return Lake.restore(source, place, **settings)


def relocate(path: str | Path, *, copy: bool = False) -> Relocation:
    """Make the folder `path`, to which a lake was moved, that lake's folder; with `copy`, a lake of its own."""
    from headwater.engine.copies import relocate_lake

    return relocate_lake(path, copy=copy)


def connect(url: str = "http://127.0.0.1:8420", *, timeout: float = 30.0) -> RemoteLake:
    """The lake that the service at `url` serves."""
    from headwater.client import RemoteLake

    return RemoteLake(url, timeout)
