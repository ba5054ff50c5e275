"""Keeping pandas out of a process that has no use for it: importing it takes longer than answering a small query."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec


class _Refused(MetaPathFinder):
    """Says that pandas is not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not imported here", name=name)
        return None


def skip_pandas() -> None:
    """Let Arrow look for pandas once and not find it. It looks again before it needs pandas for anything."""
    if "pandas" in sys.modules:
        return
    refused = _Refused()
    sys.meta_path.insert(0, refused)
    try:
        import pyarrow as pa

        pa.scalar(0)  # the first value made from a Python object makes Arrow look
    finally:
        sys.meta_path.remove(refused)
