"""The runner of documents: what it compares, what it does not, and that it notices."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.pasted import differences, failures, rewritten, run, steps

DOCUMENT = """\
# A page

```bash
name=lake
echo "$name has 3 rows"
```

```text
lake has 3 rows
```

Prose between.

```python
print("snapshot 7410693674703323051 took 12 ms")
```

```text
snapshot 1000000000000000001 took 3.5 ms
```

```bash
false
```

```bash
echo 'error: no' && false
```

```text
error: no
```
"""


def test_outputs_belong_to_the_block_before_them() -> None:
    found = steps(DOCUMENT)
    assert [(step.language, step.shown) for step in found] == [
        ("bash", "lake has 3 rows\n"),
        ("python", "snapshot 1000000000000000001 took 3.5 ms\n"),
        ("bash", None),
        ("bash", "error: no\n"),
    ]


def test_a_run_tells_what_is_not_as_shown(tmp_path: Path) -> None:
    taken = steps(DOCUMENT.replace("has 3 rows\n```\n\nProse", "has 4 rows\n```\n\nProse"))
    said = run(taken, tmp_path)
    (told,) = differences(taken, said)
    assert "is shown as\nlake has 4 rows" in told
    (failed,) = failures(taken, said)
    assert failed.startswith("false\n\nfailed:")


def test_rewriting_puts_the_outputs_in(tmp_path: Path) -> None:
    document = DOCUMENT.replace("has 3 rows\n```\n\nProse", "has 4 rows\n```\n\nProse")
    taken = steps(document)
    assert rewritten(document, taken, run(taken, tmp_path)) == DOCUMENT


def test_a_cut_line_stands_for_what_begins_so() -> None:
    taken = steps("```bash\nx\n```\n\n```text\nsql: SELECT…\n```\n")
    assert differences(taken, ["sql: SELECT 1\n"]) == []
    assert differences(taken, ["sql: INSERT\n"]) != []


TABLE = """\
 view  │ method │ seconds │ rows
───────┼────────┼─────────┼──────
 sales │ append │   1.107 │    3
"""


def test_measured_columns_are_not_compared() -> None:
    taken = steps(f"```bash\nx\n```\n\n```text\n{TABLE}```\n")
    assert differences(taken, [TABLE.replace("1.107", "0.3")]) == []
    assert differences(taken, [TABLE.replace("3\n", "4\n")]) != []
    assert differences(taken, [TABLE.replace("append", "full")]) != []


def test_a_document_without_a_service_does_not_fail_at_its_end(tmp_path: Path) -> None:
    taken = steps("```bash\necho done\n```\n")
    assert failures(taken, run(taken, tmp_path)) == []
