from __future__ import annotations

import pytest

from headwater.spark.jobs import failure, reason_of
from headwater.spark.plans import read_parts


def test_lines_become_parts() -> None:
    parts = read_parts(
        "root\torg.Project\nnode\torg.Project\nnode\torg.Filter\nvalue\tjava.lang.String\nrelation\ta\trelation\n"
        "function\tupper\ncte\tx\nrecursive\n"
    )
    assert parts.root == "org.Project"
    assert parts.nodes == {"org.Project", "org.Filter"}
    assert parts.relations == {("a", "relation")}
    assert (parts.functions, parts.ctes, parts.flags) == ({("upper",)}, {"x"}, {"recursive"})


def test_a_name_cannot_forge_a_line() -> None:
    parts = read_parts("root\tP\nrelation\torders\\nnode\\tForged\\\\n\n")
    assert parts.relations == {("orders\nnode\tForged\\n",)}
    assert parts.nodes == frozenset()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL ==",
            ("Syntax error at or near 'FORM'", 1, 10),
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. SQLSTATE: 42703; "
            "line 2 pos 7;\n'Project ['x]\n+- OneRowRelation\n",
            ("A column with name `x` cannot be resolved", 2, 8),
        ),
        (
            '[DIVIDE_BY_ZERO] Division by zero. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this '
            "error. SQLSTATE: 22012\n== SQL (line 1, position 8) ==\nselect 1/0",
            ("Division by zero", None, None),
        ),
        (
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted due to stage "
            "failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) "
            "(127.0.0.1 executor driver): java.lang.RuntimeException: boom\n\tat x.y(Z.scala:1)",
            ("boom", None, None),
        ),
    ],
)
def test_reasons_are_free_of_decoration(message: str, reason: tuple[str, int | None, int | None]) -> None:
    assert reason_of(message) == reason


def test_a_cancelled_job_is_told_from_a_failed_one() -> None:
    assert failure("x: [SPARK_JOB_CANCELLED] Job 1 cancelled part of cancelled job group q").code == "query_cancelled"
    assert failure("[DIVIDE_BY_ZERO] Division by zero.").code == "query_failed"


def test_a_damaged_page_is_told_from_a_failed_query() -> None:
    damaged = failure(
        "x (127.0.0.1 executor driver): could not verify page integrity, CRC checksum verification failed"
    )
    assert (damaged.code, damaged.detail) == ("corrupt", "A page does not match its checksum.")
