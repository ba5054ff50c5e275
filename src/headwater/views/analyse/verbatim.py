"""Spark SQL in which a function call stays what the user wrote: its name, and its arguments in their order.

sqlglot knows many functions as expressions of its own, and writes them back in other words: a unit in another case,
another function of the same meaning, sometimes of nearly the same. Here it knows only calls that have their own syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import TokenType

_SYNTAX = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
"""Calls whose arguments may be separated by words."""
_SUFFIXES = frozenset(("L", "S", "Y", "D", "F", "BD"))
_WITH_UNIT = ("dateadd", "date_add", "datediff", "date_diff", "timediff", "timestampadd", "timestampdiff")


def _call(name: str) -> Callable[[Sequence[Any]], exp.Expression]:
    """A call whose first argument, if there are three, is a unit: a word, not a column."""

    def call(args: Sequence[Any]) -> exp.Expression:
        listed = list(args)
        if len(listed) == 3 and isinstance(listed[0], exp.Column) and not listed[0].table:
            listed[0] = exp.Var(this=str(listed[0].name))
        return exp.Anonymous(this=name, expressions=listed)

    return call


def _cast(parser: Any, this: exp.Expression, to: exp.Expression) -> exp.Expression:
    """`this::to`; or a number with a suffix, which the tokenizer spells as a cast whose last token is the suffix."""
    suffix = str(parser._prev.text)
    if isinstance(this, exp.Literal) and suffix.upper() in _SUFFIXES:
        return exp.Var(this=f"{this.name}{suffix}")
    found: exp.Expression = parser.build_cast(strict=False, this=this, to=to)
    return found


def _plus(parser: Any) -> exp.Expression:
    return exp.Anonymous(this="positive", expressions=[parser._parse_unary()])


def _dialect() -> type[Dialect]:
    spark: Any = Dialect.get_or_raise("spark").__class__
    # An array is known, because brackets after its call would otherwise be read as another array.
    known = {"ARRAY": spark.Parser.FUNCTIONS["ARRAY"]} | {name.upper(): _call(name) for name in _WITH_UNIT}

    class Verbatim(spark):  # type: ignore[misc]
        class Tokenizer(spark.Tokenizer):  # type: ignore[misc]
            STRING_ESCAPES: ClassVar[list[str]] = [*spark.Tokenizer.STRING_ESCAPES, "'", '"']  # 'it''s'

        class Parser(spark.Parser):  # type: ignore[misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = known
            COLUMN_OPERATORS: ClassVar[dict[Any, Any]] = {**spark.Parser.COLUMN_OPERATORS, TokenType.DCOLON: _cast}
            UNARY_PARSERS: ClassVar[dict[Any, Any]] = {**spark.Parser.UNARY_PARSERS, TokenType.PLUS: _plus}
            FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                name: parser for name, parser in spark.Parser.FUNCTION_PARSERS.items() if name in _SYNTAX
            }

    return Verbatim


VERBATIM = _dialect()
"""See the module."""
