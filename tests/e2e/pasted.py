"""Documents whose commands are run in order, and whose outputs are compared with what the commands print.

A ```bash or ```python block is what a reader pastes; a ```text block right behind it is what comes of it, stderr
included. What differs from run to run (ids, times, sizes, the width of columns) is not compared. A line that ends with
… stands for every line that begins so. HEADWATER_REWRITE=1 writes the outputs into the document; a person reads the
diff.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WIDE = 140
FENCE = re.compile(r"^```(bash|python|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"^@@ (\d+)\n", re.MULTILINE)
FAILED = re.compile(r"\n?^@@ failed$\n?", re.MULTILINE)
MEASURED = ("seconds", "bytes", "bytes_before", "bytes_after", "compressed", "ratio", "share")
SAME = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(Z|\+00:00)?"), "<time>"),
    (re.compile(r"(of|older than) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), r"\1 <time>"),
    (re.compile(r"\b\d{15,}\b"), "<id>"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "<ulid>"),
    (re.compile(r"[\d,.]+ (bytes|B|KB|MB|ms|s|rows/s)(?![a-z])"), "<amount>"),
    (re.compile(r'("(?:bytes\w*|seconds)": ?)[\d.]+'), r"\1<amount>"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A block, and the output that the document shows for it; None if it shows none."""

    language: str
    text: str
    shown: str | None
    place: tuple[int, int]  # of the shown output in the document


def steps(document: str) -> list[Step]:
    """The document's blocks in order, each with the output behind it."""
    found: list[Step] = []
    end = 0
    for block in FENCE.finditer(document):
        language, text = block.groups()
        if language != "text":
            found.append(Step(language, text, None, (0, 0)))
        elif found and found[-1].shown is None and not document[end : block.start()].strip():
            found[-1] = Step(found[-1].language, found[-1].text, text, block.span(2))
        end = block.end()
    return found


def run(taken: list[Step], folder: Path) -> list[str]:
    """What each block prints; a service of the document listens on a free port."""
    parts = ["trap 'echo; echo \"@@ failed\"' ERR", "trap 'trap - ERR; kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for number, step in enumerate(taken):
        text = step.text if step.language == "bash" else f"python - <<'PYTHON'\n{step.text}PYTHON\n"
        parts.append(f"echo; echo '@@ {number}'\n{text}")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    port = str(_free_port())
    script = "\n".join(parts).replace("8420", port).replace("headwater serve", f"headwater serve --port {port}")
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=540, check=False,
    )  # fmt: skip
    said = MARK.split(done.stdout.replace(port, "8420"))[2::2]
    assert len(said) == len(taken), done.stdout
    return [each.removesuffix("\n") for each in said]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def failures(taken: list[Step], said: list[str]) -> list[str]:
    """Blocks that failed although their document shows no error."""
    return [
        f"{step.text}\nfailed:\n{output}"
        for step, output in zip(taken, said, strict=True)
        if FAILED.search(output) and not (step.shown and "error" in step.shown)
    ]


def differences(taken: list[Step], said: list[str]) -> list[str]:
    """Outputs that are not those of the document."""
    return [
        f"{step.text}\nis shown as\n{step.shown}\nand printed\n{_clean(output)}"
        for step, output in zip(taken, said, strict=True)
        if step.shown is not None and not _alike(step.shown, output)
    ]


def rewritten(document: str, taken: list[Step], said: list[str]) -> str:
    """The document with the outputs that were printed."""
    for step, output in reversed(list(zip(taken, said, strict=True))):
        if step.shown is not None and not _alike(step.shown, output):
            lines = [line if len(line) <= WIDE else line[: WIDE - 1] + "…" for line in _clean(output).splitlines()]
            start, end = step.place
            document = document[:start] + "".join(f"{line.rstrip()}\n" for line in lines) + document[end:]
    return document


def _clean(output: str) -> str:
    return FAILED.sub("", output).rstrip("\n") + "\n"


def _alike(shown: str, printed: str) -> bool:
    ours, theirs = (_masked(text).splitlines() for text in (shown, _clean(printed)))
    if len(ours) != len(theirs):
        return False
    return all(b.startswith(a[:-1]) if a.endswith("…") else a == b for a, b in zip(ours, theirs, strict=True))


def _masked(text: str) -> str:
    text = "\n".join(_without_measures(text.splitlines()))
    for pattern, same in SAME:
        text = pattern.sub(same, text)
    return "\n".join(line.strip() for line in text.splitlines())


def _without_measures(lines: list[str]) -> Iterator[str]:
    """The lines without the values of a table's columns that are measured."""
    heads: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        cells = [cell.strip() for cell in line.split("│")]
        if "┼" in below:
            heads = cells
        elif len(cells) != len(heads) and "┼" not in line:
            heads = []
        if len(cells) == len(heads):
            columns = zip(cells, heads, strict=True)
            line = " │ ".join("" if head in MEASURED and cell != head else cell for cell, head in columns)
        yield line
