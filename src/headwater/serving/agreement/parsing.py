"""Spark SQL text as a sqlglot tree in which every function keeps the name that was written.

sqlglot usually replaces a function by a canonical one (`nvl` becomes COALESCE). Spark derives result names from what
was written, and the table of proven functions speaks about Spark's functions, so calls stay calls here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from headwater.serving.agreement.values import NotProven

WRITTEN_CAST = "written_cast"
"""Marks `CAST(x AS t)` and `x::t`, as distinct from a literal's suffix (`3L`)."""

MAX_UNFOLDED = 1000
"""Tables and SELECTs that a query may have once its WITH clauses are put in: a translation visits every one of them."""

_SUFFIXES = {"L", "S", "Y", "D", "F", "BD"}
_TRAILING_COMMA = re.compile(r",\s*(?:from\b|\))", re.IGNORECASE)
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SPARK: Any = Dialect.get_or_raise("spark").__class__


# sqlglot warns of what it does not understand, on a user's terminal. Here that is an answer: Spark gets the query.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def _explicit_cast(parser: Any) -> exp.Expression:
    node: exp.Expression = parser._parse_cast(False)
    node.meta[WRITTEN_CAST] = True
    return node


def _postfix_cast(parser: Any, this: exp.Expression, to: exp.Expression) -> exp.Expression:
    node: exp.Expression = parser.build_cast(strict=False, this=this, to=to)
    # The tokenizer spells the suffix of `3L` as a cast, too; its last token then is the suffix.
    if parser._prev.text.upper() not in _SUFFIXES:
        node.meta[WRITTEN_CAST] = True
    return node


def _dialect() -> type[Dialect]:
    spark_parser: Any = _SPARK.Parser

    class HeadwaterCalls(_SPARK):  # type: ignore[misc]
        class Parser(spark_parser):  # type: ignore[misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                "CAST": _explicit_cast,
                "EXTRACT": spark_parser.FUNCTION_PARSERS["EXTRACT"],
            }
            COLUMN_OPERATORS: ClassVar[dict[Any, Any]] = {
                **spark_parser.COLUMN_OPERATORS,
                TokenType.DCOLON: _postfix_cast,
            }

    return HeadwaterCalls


_CALLS = _dialect()


def parse(text: str) -> exp.Expression:
    """The tree of the one statement in `text`; NotProven when it is none, several, or not understood."""
    if "\\" in text:
        raise NotProven("escapes in string literals are not proven to agree")
    if "|>" in text:  # read as clauses of one SELECT, where Spark sees one step after another
        raise NotProven("pipes are not proven to agree")
    if _TRAILING_COMMA.search(text):  # read as if it were not there, where Spark sees a mistake
        raise NotProven("a comma before FROM is not understood")
    try:
        statements: list[Any] = [found for found in sqlglot.parse(text, read=_CALLS) if found is not None]
    except (SqlglotError, RecursionError) as error:
        raise NotProven("the statement is not understood") from error
    if len(statements) != 1:
        raise NotProven("the text is not one statement")
    tree: exp.Expression = statements[0]
    for identifier in tree.find_all(exp.Identifier):
        if not identifier.args.get("quoted") and not PLAIN_NAME.match(identifier.name):
            raise NotProven(f'name "{identifier.name}" must be quoted')
    return tree


def check_unfolded(tree: exp.Expression) -> None:
    """NotProven when a walk that puts WITH clauses in where they are named would take too long."""
    if tree.find(exp.CTE) and _unfolded(tree, {}) > MAX_UNFOLDED:
        raise NotProven("its WITH clauses unfold into too many parts")


def _unfolded(node: exp.Expression, known: Mapping[str, int]) -> int:
    """How many tables and SELECTs the node has when every name that WITH defines is replaced by what it stands for.

    `known` says how many that is for each such name. Two uses of each name in the next double it at every step.
    """
    if isinstance(node, exp.Table):
        return known.get(node.name.lower(), 1)
    defined = node.args.get("with_")
    if isinstance(defined, exp.With):
        known = dict(known)
        for each in defined.expressions:
            known[each.alias.lower()] = _unfolded(each.this, known)
    inside = sum(_unfolded(child, known) for child in node.iter_expressions() if child is not defined)
    return inside + isinstance(node, exp.Select)


def has_only(node: exp.Expression, *allowed: str) -> bool:
    """Whether a node carries nothing but the named arguments."""
    return all(not value or key in allowed for key, value in node.args.items())


def only(node: exp.Expression, *allowed: str) -> None:
    """NotProven when a node carries anything but the named arguments."""
    for key, value in node.args.items():
        if value and key not in allowed:
            raise NotProven(f'"{key.rstrip("_")}" of {type(node).__name__.lower()} is not proven to agree')


def names_alias(where: exp.Expression | None) -> bool:
    """Whether Spark reads `FROM t WHERE (a)` as the alias `where` for t, with a column called a."""
    inner = where.this if where is not None else None
    listed = inner.expressions if isinstance(inner, exp.Tuple) else [inner.this] if isinstance(inner, exp.Paren) else []
    return bool(listed) and all(isinstance(each, exp.Column) and not each.table for each in listed)
