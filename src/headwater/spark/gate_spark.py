"""The gate in front of Spark for everything that reads: nothing is analysed before all of it has been looked at.

Analysis alone can read files and run procedures, so the order is fixed: Spark's own parser, then the allowlist over
the parsed plan, then analysis of that same plan in a session of its own, then a check that what it reads is what was
registered there. The text is parsed once; what was checked is what runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, InvalidStatement, StatementNotAllowed
from headwater.spark.gate_rules import check_parts, check_reads
from headwater.spark.jobs import reason_of
from headwater.spark.plans import parse_plan, plan_parts, plan_reads
from headwater.sql.limits import too_deep
from headwater.sql.tokens import tokenise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_CONF = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.eagerEvalOfUnresolvedInlineTable": "false",
    "spark.sql.runSQLOnFiles": "false",
}
"""What a session for queries must have; set again here because a user may have changed the lake's own session."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that passed the gate.

    `relations` are the names it may read, in lower case; `ctes` the names it defines itself. A name in both is read as
    a topic if there is one. `plan` is the parsed plan inside the JVM: `analyze` runs exactly that.
    """

    text: str
    relations: frozenset[str]
    ctes: frozenset[str]
    plan: Any


def isolated(session: SparkSession) -> SparkSession:
    """A session for one query: same JVM and catalogs, with temporary views and settings of its own."""
    own = session.newSession()
    for key, value in QUERY_CONF.items():
        own.conf.set(key, value)
    return own


def inspect(session: SparkSession, text: str) -> ParsedQuery:
    """`text` as a query that is safe to analyse; StatementNotAllowed or InvalidStatement otherwise."""
    tokenise(text)  # refuses what is too large: with thousands of brackets Spark's parser takes all memory
    if "${" in text and session.conf.get("spark.sql.variable.substitute") != "false":
        raise StatementNotAllowed("variable substitution is not allowed in queries")
    with _refusals():
        plan = parse_plan(session, text)
    names = check_parts(plan_parts(session, plan))
    return ParsedQuery(text, names.relations, names.ctes, plan)


def check_expression(session: SparkSession, text: str) -> None:
    """InvalidStatement unless `text` is one whole expression, so that it stays one between parentheses."""
    tokenise(text)
    with _refusals():
        session._jsparkSession.sessionState().sqlParser().parseExpression(text)


def analyze(session: SparkSession, query: ParsedQuery, allowed: Set[tuple[str, str]]) -> DataFrame:
    """The query as a frame of `session`, after checking that it reads only `allowed`; nothing has run yet."""
    from pyspark.sql import DataFrame

    jvm = session.sparkContext._gateway.jvm
    with _refusals():
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, query.plan.clone())
    frame = DataFrame(rows, session)
    check_analyzed(frame, allowed)
    return frame


def check_analyzed(frame: DataFrame, allowed: Set[tuple[str, str]]) -> None:
    """StatementNotAllowed unless all that the frame reads is in `allowed`: the `sources` of what was registered."""
    check_reads(plan_reads(frame), allowed)


def sources(*frames: DataFrame) -> frozenset[tuple[str, str]]:
    """What `frames` read, in the form that `analyze` takes: pass every frame that was registered as a view."""
    return frozenset[tuple[str, str]]().union(*(plan_reads(frame).leaves for frame in frames))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn Spark's refusal of a statement into InvalidStatement."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise invalid(error) from error
    except Py4JJavaError as error:
        if "StackOverflowError" in str(error.java_exception):
            raise too_deep() from error
        raise


def invalid(error: Exception) -> HeadwaterError:
    """Spark's refusal of a statement as an InvalidStatement with its reason, without stack, plan or class names."""
    reason, line, position = reason_of(str(error))
    place = f" (line {line}, position {position})" if line is not None else ""
    data: dict[str, Any] = {"line": line, "position": position} if line is not None else {}
    return InvalidStatement("statement is not valid", detail=f"{reason}{place}.", **data)
