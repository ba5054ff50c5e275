"""What the agreement checker answers: a proven translation, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from headwater.errors import HeadwaterError


@dataclass(frozen=True, slots=True)
class Folded:
    """A view: Spark SQL that makes its rows of the stored table `states`, which it calls STATES."""

    sql: str
    states: str
    schema: Schema = field(hash=False)


Tables = Mapping[str, Schema | Folded]
"""What a query may name: stored tables by their schemas, and views. It may read a table when it is asked for it."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A result column with Spark's name, and Spark's type as Arrow."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ScanNeeds:
    """What a query needs of one stored table: top-level columns, and a filter no stricter than the query."""

    columns: frozenset[str]
    filter: BooleanExpression


CHECK = "left to spark: "
"""How DuckDB's error begins when the SQL itself found values on which the engines differ."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """DuckDB SQL that gives Spark's answer, or raises.

    `sql` names stored tables by quoted identifiers; its columns are `output` by position. Where the engines differ for
    some values only, the text checks the values and raises: after any error of DuckDB, Spark is to be asked. `checked`
    says that there are such checks, so that a caller can wait for the last row before it passes on the first one.
    `growth` says how many times larger than stored values those of a column may be.
    """

    sql: str
    output: tuple[OutputColumn, ...]
    tables: Mapping[str, ScanNeeds]
    ordered: bool
    checked: bool
    growth: int = 1


@dataclass(frozen=True, slots=True)
class Unproven:
    """DuckDB might answer differently; `reason` says why, for EXPLAIN."""

    reason: str


@dataclass(frozen=True, slots=True)
class Mistake:
    """What the user got wrong, which Spark would refuse as well; `[start, end)` is where in the text, if known."""

    error: HeadwaterError
    start: int | None = None
    end: int | None = None


class NotProven(Exception):
    """Ends a translation; its message becomes the reason of `Unproven`."""


class Ambiguous(NotProven):
    """The same, for a name that two tables have: no alias of that name is then looked at."""


MAX_TEXT = 100_000
"""A check repeats the operands that it checks and so doubles the text at each level of nesting, which must end."""

MAX_ALL_TEXT = 1_000_000
"""Characters of all parts of a translation together: ORDER BY repeats items of the select list, and a name that WITH
defines stands for its whole text wherever it is used."""

MAX_RELATIONS = 100
"""Tables, subqueries and groups of a query: DuckDB plans joins of hundreds for minutes, and no interrupt ends that."""

MAX_COLUMNS = 5_000
"""Columns of a query at any level: nested `SELECT *, *` doubles them at each. No topic has more."""


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression in DuckDB's SQL, whose DuckDB type is the counterpart of its Spark type.

    `name` is the expression as Spark writes it in names, None where that is not known. `attribute` is the name of the
    result column where that differs: a struct's field goes by its own name, a column keeps its name through a cast.
    `literal` is a literal's value.
    """

    sql: str
    type: pa.DataType
    name: str | None
    constant: bool = False
    attribute: str | None = None
    literal: object = None

    def __post_init__(self) -> None:
        if len(self.sql) > MAX_TEXT:
            raise NotProven("the statement is too long")


def written_call(name: str, args: Sequence[str | None]) -> str | None:
    """A call as Spark writes it, when all its arguments are known; `name` may say where they go."""
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    return name.format(*known) if "{}" in name else f"{name}({', '.join(known)})"


def spelled(form: str, *parts: Typed) -> str | None:
    """Expressions in a form of words, as Spark writes them, when all of them are known."""
    return None if any(p.name is None for p in parts) else form.format(*(p.name for p in parts))
