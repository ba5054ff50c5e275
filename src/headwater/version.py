"""The version of this Headwater, and the refusal of what a newer one wrote."""

from __future__ import annotations

from headwater.errors import NewerVersion

__version__ = "0.1.0"


def newer_version(what: str, kind: str, found: str | int, supported: int, written_by: str | None) -> NewerVersion:
    """The error for something whose format has a number that this version does not know."""
    writer = f", written by Headwater {written_by}" if written_by else ""
    return NewerVersion(
        f"{what} was written by a newer Headwater",
        detail=f"It has {kind} {found}{writer}; this is Headwater {__version__}, which supports up to {supported}.",
        hint=f"Use Headwater {written_by} or later." if written_by else "Upgrade Headwater.",
    )
