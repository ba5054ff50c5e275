"""Decides whether DuckDB would answer a query exactly as Spark does, and translates it if so. No engine runs here."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from sqlglot import exp

from headwater.serving.agreement.parsing import parse
from headwater.serving.agreement.pruning import applying
from headwater.serving.agreement.queries import Queries
from headwater.serving.agreement.relations import Query, Reads, items, matching, topic_name, topic_relation
from headwater.serving.agreement.scope import Relation
from headwater.serving.agreement.values import CHECK, Agreed, NotProven, OutputColumn, ScanNeeds, Unproven


def agree(text: str, schemas: Mapping[str, Schema]) -> Agreed | Unproven:
    """The translation of a Spark query over the topics in `schemas`, or the reason why DuckDB must not answer it."""
    reads = Reads()
    try:
        tree = parse(text)
        query = Queries(schemas, reads, whole_structs=tree.find(exp.Order) is not None).query(tree)
        return _agreed(query, reads)
    except NotProven as verdict:
        return Unproven(str(verdict))
    except RecursionError:
        return Unproven("the statement is nested too deeply")


def _agreed(query: Query, reads: Reads) -> Agreed:
    output = tuple(_output(name, of) for name, of in query.columns)
    return Agreed(query.sql, output, reads.needs(), query.ordered, CHECK in query.sql)


def _output(name: str | None, of: pa.DataType) -> OutputColumn:
    if name is None:
        raise NotProven("an expression without an alias is not proven to be named alike")
    return OutputColumn(name, of)


def scan_needs(text: str, schemas: Mapping[str, Schema]) -> Mapping[str, ScanNeeds]:
    """What any query needs of each topic it names, proven or not; nothing is said of a text that cannot be parsed."""
    verdict = agree(text, schemas)
    if isinstance(verdict, Agreed):
        return verdict.tables
    try:
        tree = parse(text)
    except NotProven:
        return {}
    reads = Reads()
    taken = {common.alias.lower() for common in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if table.name.lower() not in taken:
            _scan(table, schemas, reads)
    return {topic: ScanNeeds(_columns(schemas[topic]), needs.filter) for topic, needs in reads.needs().items()}


def _scan(table: exp.Table, topics: Mapping[str, Schema], reads: Reads) -> None:
    """Records one reference to a topic, with the conditions around it when it stands in a plain FROM."""
    try:
        topic = topic_name(table, topics)
    except NotProven:
        return None
    select = table.find_ancestor(exp.Select)
    listed = items(select) if select else []
    number = next((n for n, item in enumerate(listed) if item is table), None)
    if select is None or number is None or select.args.get("laterals"):
        return reads.scan(topic, AlwaysTrue())
    relations = [_relation(item, topics) for item in listed]
    reads.scan(topic, matching(applying(select)[number], relations, number, topics[topic]))
    return None


def _relation(item: exp.Expression, topics: Mapping[str, Schema]) -> Relation:
    try:
        if isinstance(item, exp.Table):
            topic = topic_name(item, topics)
            return topic_relation(topic, topics[topic], item.alias_or_name or topic, "t")
    except NotProven:
        pass
    return Relation(item.alias_or_name or None, ())


def _columns(schema: Schema) -> frozenset[str]:
    return frozenset(column.name for column in schema.fields)
