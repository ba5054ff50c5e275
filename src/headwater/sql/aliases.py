"""Whether an alias follows a relation in a query, by Spark's rules.

In Spark nearly every keyword may be an alias, and is one wherever the text is not SQL otherwise: `FROM v limit` has the
alias limit, `FROM v limit 3` has none. Only the words of joins and set operations are never aliases.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.sql.tokens import Token

_NEVER = frozenset(
    (
        *("ANTI", "CROSS", "EXCEPT", "FULL", "INNER", "INTERSECT", "JOIN", "LATERAL", "LEFT", "MINUS", "NATURAL"),
        *("ON", "RIGHT", "SEMI", "SETMINUS", "UNION", "USING"),
    )
)
_BEFORE_BY = frozenset(("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE"))
_CLAUSES = frozenset(
    (
        *("WHERE", "HAVING", "LIMIT", "OFFSET", "WINDOW", "QUALIFY", "SELECT", "PIVOT", "UNPIVOT", "TABLESAMPLE"),
        *("WITH", "WATERMARK", "INSERT", "MAP", "REDUCE", "FROM"),
    )
)


def alias_place(tokens: Sequence[Token], place: int) -> int | None:
    """Where in the text an alias of the relation before `place` would stand; None if one follows."""
    place = _behind_sample(tokens, place)
    if _is_alias(tokens[place], tokens[min(place + 1, len(tokens) - 1)]):
        return None
    return tokens[place - 1].end


def _is_alias(token: Token, following: Token) -> bool:
    word = token.keyword
    if token.kind == "quoted" or word == "AS":
        return True
    if not word or word in _NEVER:
        return False
    if word in _BEFORE_BY:
        return following.keyword != "BY"
    return word not in _CLAUSES or _ends_relation(following)


def _ends_relation(token: Token) -> bool:
    """Whether nothing that a clause needs follows it, so that its word was an alias."""
    return token.kind == "end" or token.text in (")", ",", ";", "|") or token.keyword in ("WHERE", "JOIN")


def _behind_sample(tokens: Sequence[Token], place: int) -> int:
    """The place behind TABLESAMPLE (...) [REPEATABLE (...)], which stand between a relation and its alias."""
    for word in ("TABLESAMPLE", "REPEATABLE"):
        if tokens[place].keyword == word and tokens[place + 1].text == "(":
            place = _behind_brackets(tokens, place + 1)
    return place


def _behind_brackets(tokens: Sequence[Token], place: int) -> int:
    depth = 0
    for index in range(place, len(tokens)):
        depth += (tokens[index].text == "(") - (tokens[index].text == ")")
        if depth == 0:
            return index + 1
    return len(tokens) - 1
