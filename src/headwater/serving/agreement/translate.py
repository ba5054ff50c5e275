"""Decides whether DuckDB would answer a query exactly as Spark does, and translates it if so. No engine runs here."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from sqlglot import exp

from headwater.serving.agreement.folds import mentioned
from headwater.serving.agreement.growth import check_growth, check_width
from headwater.serving.agreement.mistakes import mistake
from headwater.serving.agreement.parsing import check_unfolded, parse
from headwater.serving.agreement.queries import Queries
from headwater.serving.agreement.reaching import reaching
from headwater.serving.agreement.relations import Query, Reads
from headwater.serving.agreement.values import (
    CHECK,
    Agreed,
    Mistake,
    NotProven,
    OutputColumn,
    ScanNeeds,
    Tables,
    Unproven,
)


def agree(text: str, tables: Tables) -> Agreed | Mistake | Unproven:
    """The translation of a Spark query over `tables`, or the reason why DuckDB must not answer it: a mistake if it is
    certain that no engine can."""
    try:
        tree = parse(text)
        check_unfolded(tree)
        try:
            return _translated(tree, tables)
        except NotProven as verdict:
            return mistake(tree, tables) or Unproven(str(verdict))
    except NotProven as verdict:
        return Unproven(str(verdict))
    except RecursionError:
        return Unproven("the statement is nested too deeply")


def _translated(tree: exp.Expression, tables: Tables) -> Agreed:
    growth = check_growth(tree)
    query, reads = _query(tree, tables, whole_structs=tree.find(exp.Order) is not None)
    if reads.sorts:
        query, reads = _query(tree, tables, whole_structs=True)
    check_width(len(query.columns), sum(len(columns) for columns in reads.columns.values()), growth)
    found = reaching(tree, tables)
    needs = {
        name: ScanNeeds(frozenset(columns), found[name].filter if name in found else AlwaysTrue())
        for name, columns in sorted(reads.columns.items())
    }
    output = tuple(_output(name, of) for name, of in query.columns)
    return Agreed(query.sql, output, needs, query.ordered, CHECK in query.sql, growth)


def _query(tree: exp.Expression, tables: Tables, *, whole_structs: bool) -> tuple[Query, Reads]:
    reads = Reads()
    queries = Queries(tables, reads, whole_structs, mentioned(tree))
    query = queries.query(tree)
    queries.prove_unread()
    return query, reads


def _output(name: str | None, of: pa.DataType) -> OutputColumn:
    if name is None:
        raise NotProven("an expression without an alias is not proven to be named alike")
    return OutputColumn(name, of)


def scan_needs(text: str, tables: Tables) -> Mapping[str, ScanNeeds]:
    """What any query needs of each stored table it names, proven or not; nothing is said of a text that cannot be
    parsed."""
    verdict = agree(text, tables)
    if isinstance(verdict, Agreed):
        return verdict.tables
    try:
        tree = parse(text)
    except NotProven:
        return {}
    return {
        name: ScanNeeds(frozenset(column.name for column in read.schema.fields), read.filter)
        for name, read in reaching(tree, tables).items()
    }
