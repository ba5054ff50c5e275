"""From a query's text to a tree of relational operators, or to the reason why it cannot be taken apart. Pure.

Nothing here needs to know every construct of Spark SQL: what is not understood is `Opaque`, and the view recomputes.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot import errors, exp

from headwater.views.analyse.functions import pinned
from headwater.views.analyse.scope import Namer, Opaque
from headwater.views.analyse.select import Open, Reader, open_tables
from headwater.views.analyse.verbatim import VERBATIM
from headwater.views.narrow import narrowed
from headwater.views.relation import Analysed

__all__ = ["Opaque", "Open", "analyse", "open_tables", "parsed"]


def parsed(text: str) -> exp.Expression:
    """The text as a sqlglot tree; Opaque if it is not one query that sqlglot reads."""
    try:
        found = sqlglot.parse(text, read=VERBATIM)
    except (errors.SqlglotError, RecursionError) as failed:
        raise Opaque("the text is not understood") from failed
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise Opaque("the text is not one query")
    tree = found[0].transform(_lower_name)
    assert isinstance(tree, exp.Expression)
    return tree


def _lower_name(node: exp.Expr) -> exp.Expr:
    """Function names in one case, so that two spellings of an expression are equal."""
    return exp.Anonymous(this=node.name.lower(), expressions=node.expressions) if type(node) is exp.Anonymous else node


def analyse(text: str, open_with: Callable[[set[str]], Open]) -> Analysed:
    """The query as a tree of operators; Opaque with a reason otherwise."""
    required: set[str] = set()
    reader = Reader(open_with(required), Namer(), required)
    answer = reader.query(pinned(parsed(text)))
    return narrowed(Analysed(answer.root, tuple(tree for _, tree in answer.columns), answer.on_read))
