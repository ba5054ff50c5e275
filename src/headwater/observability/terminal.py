"""Texts that cannot steer a terminal, whoever wrote what is in them."""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")


def terminal_text(text: str) -> str:
    """The text with everything replaced that is neither printable nor a line end or a tab.

    That takes away escape sequences, carriage returns that overwrite a line, and marks that reverse its direction.
    """
    if _SUSPECT.search(text) is None:
        return text
    return "".join(
        char if char in "\n\t" or char.isprintable() else "·"
        for char in text.replace("\r\n", "\n")
    )  # fmt: skip
