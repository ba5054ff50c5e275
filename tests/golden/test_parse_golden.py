"""Statements, queries, schemas and error texts against `tests/golden/parse/*.slt`.

A case is a directive (`parse`, `script`, `topics`, `relations`, `windows`, `streaming`, `schema json|sql|avsc`), the
text, `----`, and what came of it, up to `====`. With HEADWATER_REWRITE=1 the files are rewritten; a person reads the
diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError
from headwater.sql.definition import notices
from headwater.sql.names import normalise, normalise_topics
from headwater.sql.options import render_options
from headwater.sql.parse import parse, parse_script
from headwater.sql.render import render_create, render_create_stream, render_create_view
from headwater.sql.schema_files import read_schema
from headwater.sql.statements import AlterTopic, CreateStream, CreateTopic, CreateView, Statement
from headwater.sql.view_options import view_notices
from headwater.sql.windows import rewrite_windows
from headwater.sql.windows_streaming import streaming_windows
from headwater.types import TopicDefinition

FILES = sorted((Path(__file__).parent / "parse").glob("*.slt"))
REWRITE = os.environ.get("HEADWATER_REWRITE") == "1"


@dataclass(frozen=True, slots=True)
class Case:
    directive: str
    text: str
    expected: str
    line: int


def read_cases(path: Path) -> Iterator[Case | str]:
    """The cases of a file, and the comment lines between them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    place = 0
    while place < len(lines):
        if not lines[place] or lines[place].startswith("#"):
            yield lines[place]
            place += 1
            continue
        middle = lines.index("----", place)
        end = lines.index("====", middle)
        text, expected = "\n".join(lines[place + 1 : middle]), "\n".join(lines[middle + 1 : end])
        yield Case(lines[place], text, expected, place + 1)
        place = end + 1


def run(case: Case) -> str:
    try:
        return evaluate(case.directive, case.text)
    except HeadwaterError as error:
        parts = (f"error {type(error).__name__}: {error.message}", error.detail, error.hint and f"Hint: {error.hint}")
        return "\n".join(part for part in parts if part)


def evaluate(directive: str, text: str) -> str:
    match directive.split():
        case ["parse"]:
            return show(parse(text))
        case ["script"]:
            return "\n".join(show(statement) for statement in parse_script(text))
        case ["topics"]:
            return normalise_topics(text).replace("  ", " ·") + "|"
        case ["relations"]:
            found = normalise(text)
            return "\n".join((found.text.replace("  ", " ·") + "|", *map(repr, found.relations)))
        case ["windows"]:
            return rewrite_windows(text)
        case ["streaming"]:
            made = streaming_windows(text)
            return "\n".join((made.text, *map(repr, made.windows)))
        case ["schema", ("json" | "sql" | "avsc") as kind]:
            return show_definition(TopicDefinition("t", *read_schema(text, kind)))
    raise AssertionError(f"unknown directive {directive!r}")


def show(statement: Statement) -> str:
    match statement:
        case CreateTopic(definition, if_not_exists):
            return f"CreateTopic(if_not_exists={if_not_exists})\n{show_definition(definition)}"
        case CreateView(view, or_replace, if_not_exists):
            said = [f"notice: {notice}" for notice in view_notices(view.options)]
            shown = (f"CreateView(or_replace={or_replace}, if_not_exists={if_not_exists})", repr(view.query))
            return "\n".join((*shown, repr(view.options), *said, render_create_view(view)))
        case CreateStream(stream, if_not_exists, or_replace):
            shown = (f"CreateStream(if_not_exists={if_not_exists}, or_replace={or_replace})", repr(stream.options))
            assert parse(render_create_stream(stream)) == CreateStream(stream)
            return "\n".join((*shown, repr(stream.topic_options), render_create_stream(stream)))
        case AlterTopic(name, changes, dry_run):
            lines = [f"AlterTopic({name}, dry_run={dry_run})", *map(str, changes)]
            again = parse(f"ALTER TOPIC {name} {', '.join(map(str, changes))}{' DRY RUN' if dry_run else ''}")
            assert again == statement
            return "\n".join(lines)
        case _:
            return repr(statement)


def show_definition(definition: TopicDefinition) -> str:
    columns = [f"{field}" for field in definition.schema.fields]
    said = [f"notice: {notice}" for notice in notices(definition)]
    set_options = render_options(definition.options, changed_only=True)
    shown = (*columns, repr(definition.partitioning), repr(set_options), *said, render_create(definition))
    return "\n".join(shown)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    entries = list(read_cases(path))
    cases = [entry for entry in entries if isinstance(entry, Case)]
    assert cases, "a golden file without cases checks nothing"
    if REWRITE:
        written = (
            entry if isinstance(entry, str) else f"{entry.directive}\n{entry.text}\n----\n{run(entry)}\n===="
            for entry in entries
        )
        path.write_text("\n".join(written) + "\n", encoding="utf-8")
        return
    failed = [
        (path.name, case.line, case.text, run(case), case.expected) for case in cases if run(case) != case.expected
    ]
    for name, line, text, got, expected in failed[:1]:
        assert got == expected, f"{name}:{line}\n{text}"


def test_there_are_golden_files() -> None:
    expected = (
        "alter care create errors parquet queries relations rows schema_files snapshots "
        "statements stream_errors streams topics view_errors views windows windows_streaming"
    )
    assert {path.stem for path in FILES} == set(expected.split())
