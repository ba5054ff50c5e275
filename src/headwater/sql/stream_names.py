"""Streams that have another name than their topic, as what they are: some columns of the topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headwater.sql.cursor import Cursor
from headwater.sql.mentions import scan
from headwater.sql.statements import CreateView, Explain, ExplainCreateView, Query, Statement
from headwater.sql.tokens import tokenise


@dataclass(frozen=True, slots=True)
class Named:
    """What a stream's name stands for."""

    topic: str
    columns: Sequence[str]


Find = Callable[[str], Named | None]


def expand_streams(text: str, find: Find) -> str:
    """The query with a subquery in the place of every relation that `find` knows, under the same name."""
    cursor = Cursor(text, tokenise(text), context="query")
    pieces, position = [], 0
    for mention in scan(cursor)[0]:
        named = find(mention.name) if mention.kind == "any" and not (mention.as_of or mention.changes) else None
        if named is None:
            continue
        columns = ", ".join(f"`{name}`" for name in named.columns)
        alias = f" AS {mention.written}" if mention.alias_at is not None else ""
        pieces += [text[position : mention.start], f"(SELECT {columns} FROM {named.topic}){alias}"]  # noqa: S608
        position = mention.end
    return "".join((*pieces, text[position:]))


def expanded(statement: Statement, find: Find) -> Statement | None:
    """The statement with its streams expanded; None if it reads no stream of another name."""
    match statement:
        case Query(text=text):
            changed = expand_streams(text, find)
            return None if changed == text else replace(statement, text=changed)
        case Explain(query=query):
            inner = expanded(query, find)
            return replace(statement, query=inner) if isinstance(inner, Query) else None
        case CreateView(definition=definition) | ExplainCreateView(definition=definition):
            changed = expand_streams(definition.query, find)
            return (
                None
                if changed == definition.query
                else replace(statement, definition=replace(definition, query=changed))
            )
        case _:
            return None
