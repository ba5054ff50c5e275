"""The relations of a query under plain names: `topic('orders')`, `topics.orders`, `mv('v')` and `views.v` become names.

A relation that is read fresh or AS OF, or whose changes are, gets a name of its own, under which the engines are given
exactly that; it can still be called by its old name in the rest of the query. Nothing else in the text changes, and
what is shorter is padded, so that the line and column of an error are those of the text that the user wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import InvalidStatement
from headwater.sql.cursor import Cursor
from headwater.sql.mentions import FUNCTIONS, Kind, Mention, scan
from headwater.sql.moments import AsOf
from headwater.sql.tokens import tokenise
from headwater.types import TOPICS, VIEWS


@dataclass(frozen=True, slots=True)
class Relation:
    """A topic or a view as a query reads it; `alias_in_text` is what the normalised text calls it."""

    name: str
    kind: Kind
    alias_in_text: str
    fresh: bool = False
    version: int | None = None
    timestamp: str | None = None
    ref: str | None = None
    changes: tuple[AsOf, AsOf] | None = None

    @property
    def as_of(self) -> AsOf:
        return AsOf(self.version, self.timestamp, self.ref)


@dataclass(frozen=True, slots=True)
class Normalised:
    """A query under plain names, and what it reads of the lake, each once, in the order of the text."""

    text: str
    relations: tuple[Relation, ...]


def normalise(text: str) -> Normalised:
    """The query with plain names only, and the relations that it names."""
    cursor = Cursor(text, tokenise(text), context="query")
    mentions, ctes = scan(cursor)
    names = _Names({token.value.lower() for token in cursor.tokens if token.kind in ("word", "quoted")})
    edits: list[tuple[int, int, str]] = []
    relations: list[Relation] = []
    for mention in mentions:
        relation = names.relation(mention)
        relations.append(relation)
        if mention.fresh or mention.as_of or mention.changes:
            edits += _renamed(mention, relation.alias_in_text, text)
        elif mention.kind != "any":
            _check_shadowed(cursor, mention, ctes)
            edits.append((mention.start, mention.end, _padded(mention.written, text[mention.start : mention.end])))
    return Normalised(_edited(text, edits), tuple(dict.fromkeys(relations)))


def normalise_topics(text: str) -> str:
    """The query with every relation as its plain name, at unchanged lines and columns; AS OF stays in the text."""
    lowered = text.lower()
    if not any(word in lowered for word in (*FUNCTIONS, TOPICS, VIEWS)):
        return text
    cursor = Cursor(text, tokenise(text), context="query")
    mentions, ctes = scan(cursor)
    edits = []
    for mention in (each for each in mentions if each.kind != "any"):
        _check_shadowed(cursor, mention, ctes)
        edits.append((mention.start, mention.end, _padded(mention.written, text[mention.start : mention.end])))
    return _edited(text, edits)


class _Names:
    """Names for states of relations that no topic or view can have, and that nothing in the query has."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._numbered: dict[str, list[object]] = {}

    def relation(self, mention: Mention) -> Relation:
        as_of = mention.as_of or AsOf()
        suffix = "fresh" if mention.fresh else self._suffix(as_of, mention.changes)
        alias = self._free(f"_{mention.name}__{suffix}") if suffix else mention.name
        moment = (as_of.version, as_of.timestamp, as_of.ref)
        return Relation(mention.name, mention.kind, alias, mention.fresh, *moment, mention.changes)

    def _suffix(self, as_of: AsOf, changes: tuple[AsOf, AsOf] | None) -> str:
        if changes is not None:
            return self._number("changes", changes)
        if as_of.version is not None:
            return f"at_{as_of.version}"
        if as_of.ref is not None:
            return self._number("at_r", as_of.ref)
        return "" if as_of.timestamp is None else self._number("at_t", as_of.timestamp)

    def _number(self, word: str, named: object) -> str:
        """The word and a number: what cannot be part of a name is numbered in the order of the text."""
        seen = self._numbered.setdefault(word, [])
        if named not in seen:
            seen.append(named)
        return f"{word}{seen.index(named) + 1}"

    def _free(self, name: str) -> str:
        # Names of topics and views start with a letter; an alias or a common table expression may still be called so.
        while name in self._taken:
            name += "_"
        return name


def _renamed(mention: Mention, alias: str, text: str) -> list[tuple[int, int, str]]:
    """The edits that put `alias` where the mention and its AS OF clause are, still called by its own name."""
    replaced = text[mention.start : mention.stop]
    if mention.alias_at is None:
        return [(mention.start, mention.stop, _padded(alias, replaced))]
    called = f" AS {mention.written}"
    if mention.alias_at == mention.stop:
        return [(mention.start, mention.stop, _padded(alias + called, replaced))]
    return [(mention.start, mention.stop, _padded(alias, replaced)), (mention.alias_at, mention.alias_at, called)]


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    pieces, position = [], 0
    for start, end, replacement in edits:
        pieces += [text[position:start], replacement]
        position = end
    return "".join((*pieces, text[position:]))


def _padded(name: str, replaced: str) -> str:
    """The name, then as much space as keeps everything behind it where it was, if it is not longer."""
    lines = replaced.split("\n")
    if len(lines) == 1:
        return name.ljust(len(replaced))
    return name + "\n" * (len(lines) - 1) + " " * len(lines[-1])


def _check_shadowed(cursor: Cursor, mention: Mention, ctes: set[str]) -> None:
    """A plain name would mean the common table expression, and silently read something else."""
    if mention.name not in ctes:
        return
    shown = "a topic" if mention.kind == "topic" else "a materialized view"
    raise cursor.located(
        InvalidStatement(
            f'name "{mention.token.value}" is both {shown} and a common table expression in this query',
            hint=f"Rename the expression in WITH {mention.written} AS (...).",
        ),
        mention.token,
    )
