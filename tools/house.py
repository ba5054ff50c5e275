"""Measure how large and how tangled the source tree is: `make house` prints one row per measure.

The static rows parse `src`; the dynamic ones open a lake and count, with `sys.setprofile`, what a query and an append
run. Numbers describe; nothing here fails a build.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import json
import re
import statistics
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SRC = Path(__file__).parents[1] / "src" / "headwater"
PARTICIPLES = re.compile(
    r"^_*(?:[a-z0-9]+_)*(?:[a-z]+ed|told|said|made|kept|given|begun|found|held|read|sent|left|known)$"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    measure: str
    value: str
    target: str


@dataclass(slots=True)
class CallCount:
    """The functions of `src` that ran, and how often control moved from one file to another."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    switches: int = 0
    _last: str = ""

    @property
    def files(self) -> int:
        return len({file for file, _ in self.functions})

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(SRC)) or code.co_name.startswith("<"):
            return
        self.functions.add((code.co_filename, code.co_qualname))
        if code.co_filename != self._last:
            self.switches += self._last != ""
            self._last = code.co_filename


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--static", action="store_true", help="only parse the source; open no lake")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--names", action="store_true", help="list the names that the last rows count")
    options = parser.parse_args()
    sources = {path: path.read_text() for path in sorted(SRC.rglob("*.py"))}
    rows = [*measure_source(sources)] if options.static else [*measure_runs(), *measure_source(sources)]
    if options.json:
        print(
            json.dumps([{"measure": row.measure, "value": row.value, "target": row.target} for row in rows], indent=1)
        )
    else:
        widths = [max(len(getattr(row, name)) for row in rows) for name in ("measure", "value", "target")]
        for row in rows:
            print(f"{row.measure:<{widths[0]}}  {row.value:<{widths[1]}}  target: {row.target}")
    if options.names:
        trees = [ast.parse(text) for text in sources.values()]
        print("\nclasses:", ", ".join(f"{name} ({count})" for name, count in repeated_classes(trees)))
        print("\nparticiples:", ", ".join(sorted(participles(trees))))


# -- the source -------------------------------------------------------------------------------------------------------


def measure_source(sources: dict[Path, str]) -> Iterator[Row]:
    trees = [ast.parse(text) for text in sources.values()]
    lines = [text.count("\n") for text in sources.values()]
    code, comments = 0, 0
    for text in sources.values():
        file_code, file_comments = count_lines(text)
        code, comments = code + file_code, comments + file_comments
    once, functions = used_once(trees)
    share = f"{once / functions:.1%} of {functions:,} functions"
    yield Row("private functions used exactly once", share, "at most 12 %")
    yield Row("files", str(len(sources)), "about 250")
    yield Row("median lines of a file", f"{statistics.median(lines):.0f}", "about 200")
    yield Row("code lines", f"{code:,}", "at most 40,000")
    yield Row("comment lines", f"{comments / (code + comments):.1%}", "where they say why")
    yield Row("class names defined more than once", str(len(repeated_classes(trees))), "none that confuse")
    yield Row("functions and classes named by a bare participle", str(len(participles(trees))), "none")


def count_lines(text: str) -> tuple[int, int]:
    """Lines with code, docstrings left out, and lines that are only a comment."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                docstrings.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in skipped:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings), len(comments - code)


def used_once(trees: list[ast.Module]) -> tuple[int, int]:
    """Private functions and methods that their module mentions exactly once besides the definition; and all functions."""
    once = functions = 0
    for tree in trees:
        nodes = list(ast.walk(tree))
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        used += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
        once += sum(used[name] == 1 for name in names if is_private(name))
        functions += len(names)
    return once, functions


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def repeated_classes(trees: list[ast.Module]) -> list[tuple[str, int]]:
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [(name, count) for name, count in names.most_common() if count > 1]


def participles(trees: list[ast.Module]) -> list[str]:
    """Names that say in which state something is, not what it is or what a function does."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, kinds) and not is_property(node) and is_participle(node.name):
                found.append(node.name)
    return found


def is_participle(name: str) -> bool:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().lstrip("_").split("_")
    return len(words) == 1 and PARTICIPLES.match(words[0]) is not None


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id == "property" for each in decorators)


# -- what runs --------------------------------------------------------------------------------------------------------


def measure_runs() -> Iterator[Row]:
    import headwater

    with tempfile.TemporaryDirectory() as folder, headwater.init(Path(folder) / "lake") as lake:
        lake.sql("CREATE TOPIC events (id BIGINT, name STRING, amount DECIMAL(12,2))")
        topic = lake.topic("events")
        rows = [{"id": number, "name": "a", "amount": "1.50"} for number in range(10)]
        topic.append(rows)
        lake.flush("events")
        select = "SELECT name, count(*) AS n, sum(amount) AS total FROM events WHERE id > 3 GROUP BY name"
        lake.sql(select).rows()
        query = count_calls(lambda: lake.sql(select).rows())
        append = count_calls(lambda: topic.append(rows))
        yield Row("SELECT on DuckDB", spell(query), "150 functions in 25 files")
        yield Row("append", spell(append), "43 functions in 10 files")
        yield Row("objects of an open lake", objects_of_a_lake(), "1 state store, 1 catalog, 1 manifest cache")


def count_calls(work: Callable[[], object]) -> CallCount:
    count = CallCount()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def spell(count: CallCount) -> str:
    return f"{len(count.functions)} functions in {count.files} files, {count.switches} switches"


def objects_of_a_lake() -> str:
    names = Counter(type(each).__name__ for each in gc.get_objects())
    return ", ".join(f"{names[name]} {name}" for name in ("Engine", "Connection", "ManifestCache"))


if __name__ == "__main__":
    main()
