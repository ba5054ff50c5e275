"""Operators, conditions and choices; the two engines must group, compare and convert alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from sqlglot import exp

from headwater.serving.agreement import types as t
from headwater.serving.agreement.arithmetic import arithmetic
from headwater.serving.agreement.casts import coerce
from headwater.serving.agreement.functions import common, concatenated
from headwater.serving.agreement.intervals import is_micros, moved, moved_by_micros
from headwater.serving.agreement.parsing import only
from headwater.serving.agreement.values import NotProven, Typed, spelled

if TYPE_CHECKING:
    from headwater.serving.agreement.expressions import Expressions

COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
ARITHMETIC: dict[type[exp.Expression], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}


def comparison(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expression")
    if (tested := _minus_zero(self, node)) is not None:
        return tested
    operator = COMPARISONS[type(node)]
    written = [self.operand(node.this), self.operand(node.expression)]
    left, right = compared(written)
    if _is_cut(*written) or _is_cut(*reversed(written)):
        left = replace(left, name=None)
    constant = left.constant and right.constant
    if operator == "<>":
        return Typed(f"({left.sql} <> {right.sql})", t.BOOLEAN, spelled("(NOT ({} = {}))", left, right), constant)
    name = spelled(f"({{}} {operator} {{}})", left, right)
    duck = "IS NOT DISTINCT FROM" if operator == "<=>" else operator
    return Typed(f"({left.sql} {duck} {right.sql})", t.BOOLEAN, name, constant)


def _minus_zero(self: Expressions, node: exp.Expression) -> Typed | None:
    """`CAST(value AS STRING) = '-0.0'` of a float, by which views tell the two zeros apart; None for all else."""
    text, written = node.this, node.expression
    if not (isinstance(node, exp.EQ) and isinstance(text, exp.Cast) and written.is_string and written.name == "-0.0"):
        return None
    value = self.operand(text.this)
    if not t.is_fractional(value.type) or text.to.sql(dialect="spark") != "STRING":
        return None
    return Typed(f"({value.sql} = 0 AND signbit({value.sql}))", t.BOOLEAN, None, value.constant)


def _is_cut(value: Typed, other: Typed) -> bool:
    # Spark rewrites `i > 1.5` to `i > 1`, in the name as well.
    return t.is_integral(value.type) and isinstance(other.literal, Decimal)


def compared(args: Sequence[Typed]) -> list[Typed]:
    """Values brought to one comparable type; a string literal beside dates or timestamps becomes one."""
    moments = [a.type for a in args if a.type in t.DATETIMES]
    if moments and any(a.type == t.STRING for a in args):
        if len(set(moments)) > 1:
            raise NotProven("strings beside dates and timestamps are not proven to agree")
        args = [coerce(a, moments[0]) if a.type == t.STRING else a for a in args]
    unified = common(args)
    if not t.is_comparable(unified[0].type):
        raise NotProven(f'comparison of "{unified[0].type}" is not proven to agree')
    return unified


def arithmetic_operation(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expression", "typed", "safe")
    operator = ARITHMETIC[type(node)]
    if _mixes_concatenation(node):
        raise NotProven("operators without parentheses are not proven to group alike")
    if isinstance(node.expression, exp.Interval) or isinstance(node.this, exp.Interval):
        return moved(operator, node, self.operand)
    if is_micros(node.expression):
        return moved_by_micros(operator, self.operand(node.this), self.operand(node.expression.expression))
    left, right = self.operand(node.this), self.operand(node.expression)
    if left.type == t.DATE and right.type == t.INT and operator in "+-":
        verb = "date_add" if operator == "+" else "date_sub"
        sql = f"({left.sql} {operator} {right.sql})"
        return Typed(sql, t.DATE, spelled(f"{verb}({{}}, {{}})", left, right), left.constant and right.constant)
    sql, of = arithmetic(operator, left, right)
    return Typed(sql, of, spelled(f"({{}} {operator} {{}})", left, right), left.constant and right.constant)


def _mixes_concatenation(node: exp.Expression) -> bool:
    kinds = {type(child) for child in (node, node.this, node.expression)}
    return exp.DPipe in kinds and bool(kinds & ARITHMETIC.keys())


def concatenation(self: Expressions, node: exp.Expression) -> Typed:
    if _mixes_concatenation(node):
        raise NotProven("operators without parentheses are not proven to group alike")
    args = [self.operand(node.this), self.operand(node.expression)]
    sql, of = concatenated(args)
    return Typed(sql, of, spelled("concat({}, {})", *args), all(a.constant for a in args))


def connected(word: str) -> Callable[[Expressions, exp.Expression], Typed]:
    def build(self: Expressions, node: exp.Expression) -> Typed:
        only(node, "this", "expression")
        left, right = self.expr(node.this), self.expr(node.expression)
        if left.type != t.BOOLEAN or right.type != t.BOOLEAN:
            raise NotProven(f'operator "{word}" on this type is not proven to agree')
        name = spelled(f"({{}} {word} {{}})", left, right)
        return Typed(f"({left.sql} {word} {right.sql})", t.BOOLEAN, name, left.constant and right.constant)

    return build


def negation(self: Expressions, node: exp.Expression) -> Typed:
    if isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
        return null_test(self, node.this, negated=True)
    value = self.expr(node.this)
    if value.type != t.BOOLEAN:
        raise NotProven('operator "not" on this type is not proven to agree')
    return Typed(f"(NOT {value.sql})", t.BOOLEAN, spelled("(NOT {})", value), value.constant)


def null_test(self: Expressions, node: exp.Expression, negated: bool = False) -> Typed:
    only(node, "this", "expression")
    if not isinstance(node.expression, exp.Null):
        raise NotProven('operator "is" with anything but null is not proven to agree')
    value = self.operand(node.this)
    test = "IS NOT NULL" if negated else "IS NULL"
    # `NOT x IS NULL` and `x IS NOT NULL` are one tree, but two names.
    name = None if negated else spelled("({} IS NULL)", value)
    return Typed(f"({value.sql} {test})", t.BOOLEAN, name, value.constant)


def between(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "low", "high")
    value, low, high = (self.operand(node.args[key]) for key in ("this", "low", "high"))
    (a, b), (c, d) = compared([value, low]), compared([value, high])
    name = spelled("between({}, {}, {})", value, low, high)
    sql = f"({a.sql} >= {b.sql} AND {c.sql} <= {d.sql})"
    return Typed(sql, t.BOOLEAN, name, value.constant and low.constant and high.constant)


def membership(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expressions", "query")
    value = self.operand(node.this)
    if node.args.get("query"):
        raise NotProven("in with a subquery is proven to agree as a condition of where only")
    args = compared([value, *(self.operand(item) for item in node.expressions)])
    items = ", ".join(a.sql for a in args[1:])
    names = None if any(a.name is None for a in args) else ", ".join(a.name or "" for a in args[1:])
    name = None if names is None else f"({value.name} IN ({names}))"
    return Typed(f"({args[0].sql} IN ({items}))", t.BOOLEAN, name, all(a.constant for a in args))


def in_query(self: Expressions, node: exp.In) -> Typed:
    """`x IN (SELECT ...)` as a condition of its own: elsewhere Spark gives false where SQL says null."""
    only(node, "this", "query")
    value = self.operand(node.this)
    sql, columns = self.subquery(node.args["query"])
    if len(columns) != 1:
        raise NotProven("a subquery of several columns is not proven to agree")
    found = Typed("c0", columns[0][1], None)
    left, right = compared([value, found])
    text = f"({left.sql} IN (SELECT {right.sql} FROM ({sql}) AS q))"  # noqa: S608  of translated parts
    return Typed(text, t.BOOLEAN, None, value.constant)


def like(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "expression", "negate")
    value, pattern = self.operand(node.this), self.operand(node.expression)
    if value.type != t.STRING or not isinstance(pattern.literal, str):
        raise NotProven("like with a pattern that is no literal is not proven to agree")
    name = spelled("{} LIKE {}", value, pattern)
    if not node.args.get("negate"):
        return Typed(f"({value.sql} LIKE {pattern.sql})", t.BOOLEAN, name, value.constant)
    return Typed(f"({value.sql} NOT LIKE {pattern.sql})", t.BOOLEAN, name and f"(NOT {name})", value.constant)


def case(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "ifs", "default")
    tests = [_case_test(self, node.this, branch.this) for branch in node.args["ifs"]]
    written = [self.expr(branch.args["true"]) for branch in node.args["ifs"]]
    if default := node.args.get("default"):
        written.append(self.expr(default))
    values = common(written)
    branches = "".join(f" WHEN {a.sql} THEN {b.sql}" for a, b in zip(tests, values, strict=False))
    names = [f" WHEN {a.name} THEN {b.name}" for a, b in zip(tests, values, strict=False)]
    last = values[-1] if default else None
    sql = f"(CASE{branches}{f' ELSE {last.sql}' if last else ''} END)"
    known = all(x.name is not None for x in (*tests, *values))
    name = f"CASE{''.join(names)}{f' ELSE {last.name}' if last else ''} END" if known else None
    return Typed(sql, values[0].type, name, all(x.constant for x in (*tests, *values)))


def _case_test(self: Expressions, base: exp.Expression | None, test: exp.Expression) -> Typed:
    if base is not None:
        return comparison(self, exp.EQ(this=base.copy(), expression=test.copy()))
    return boolean_only(self.expr(test))


def boolean_only(value: Typed) -> Typed:
    if value.type != t.BOOLEAN:
        raise NotProven("a condition that is not boolean is not proven to agree")
    return value


def conditional(self: Expressions, node: exp.Expression) -> Typed:
    only(node, "this", "true", "false")
    if not node.args.get("false"):
        raise NotProven('function "if" with 2 arguments is not proven to agree')
    test = _case_test(self, None, node.this)
    yes, no = common([self.expr(node.args["true"]), self.expr(node.args["false"])])
    sql = f"(CASE WHEN {test.sql} THEN {yes.sql} ELSE {no.sql} END)"
    constant = test.constant and yes.constant and no.constant
    return Typed(sql, yes.type, spelled("(IF({}, {}, {}))", test, yes, no), constant)
