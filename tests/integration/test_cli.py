"""The real command line as a subprocess on real lakes: results, mistakes, exit codes, and what goes to which stream."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ORDERS = "order_id BIGINT NOT NULL, customer STRING, total DECIMAL(12,2), placed_at TIMESTAMP"
COMMAND = (sys.executable, "-c", "from headwater.cli.main import run; run()")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or "CACHE" in name}


class Ran:
    """How a command ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out.decode(errors="replace")
        self.err = err.decode()
        self.raw = out

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """The one document on stderr, with nothing on stdout."""
        assert self.out == ""
        return json.loads(self.err)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


IMPORTED = """
import sys
from headwater.cli.main import main

code = main(sys.argv[1:])
imported = [name for name in {heavy} if name in sys.modules]
sys.exit(str(imported) if imported or code else 0)
"""

NURSERY = """
import json, os, sys
import headwater.cli.formats, headwater.cli.main, headwater.cli.work, headwater.engine

for line in iter(lambda: os.read(0, 1 << 20), b""):
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(job["cwd"])
        os.environ.clear()
        os.environ.update(job["env"])
        for number, mode in enumerate((os.O_RDONLY, os.O_CREAT | os.O_WRONLY, os.O_CREAT | os.O_WRONLY)):
            os.dup2(os.open(job["files"][number], mode), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
        sys.argv = ["headwater", *job["arguments"]]
        headwater.cli.main.run()
    os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""A process that has imported Headwater and forks for each command: real processes without a second of imports each."""


class Nursery:
    """Runs commands in processes forked from one that is warm."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN
        )

    def run(self, arguments: Sequence[str], cwd: Path, stdin: bytes, env: dict[str, str]) -> Ran:
        with tempfile.TemporaryDirectory() as name:
            files = [Path(name) / stream for stream in ("in", "out", "err")]
            files[0].write_bytes(stdin)
            job = {"arguments": arguments, "cwd": str(cwd), "env": env, "files": [str(file) for file in files]}
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return Ran(code, files[1].read_bytes(), files[2].read_bytes())

    def close(self) -> None:
        self._process.communicate()


_nursery: Nursery | None = None


@pytest.fixture(scope="module", autouse=True)
def nursery() -> Iterator[None]:
    global _nursery
    _nursery = Nursery()
    yield
    _nursery.close()


def run(*arguments: str, cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ran:
    """Run `headwater` to its end."""
    assert _nursery is not None
    return _nursery.run(arguments, cwd, stdin, {**CLEAN, "XDG_STATE_HOME": str(cwd / ".state"), **(env or {})})


def ok(*arguments: str, cwd: Path, **more: Any) -> Ran:
    """Run `headwater`, which must succeed."""
    done = run(*arguments, cwd=cwd, **more)
    assert done.code == 0, done
    return done


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "order_id": number,
        "customer": f"c{number % 7}",
        "total": f"{number}.50",
        "placed_at": "2024-05-01T10:00:00Z",
    } | more


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with an empty topic `orders`."""
    import headwater

    with headwater.init(tmp_path / "lake") as made:
        made.sql(f"CREATE TOPIC orders ({ORDERS})")
    return tmp_path / "lake"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that tests only read: 500 orders in the log."""
    import headwater

    folder = tmp_path_factory.mktemp("cli") / "lake"
    with headwater.init(folder) as made:
        made.sql(f"CREATE TOPIC orders ({ORDERS})")
        made.topic("orders").append(lines([order(n) for n in range(499)] + [{"order_id": 499, "customer": 'a,"b"'}]))
    return folder


# -- lakes ------------------------------------------------------------------------------------------------------


def test_init_makes_a_lake_once(tmp_path: Path) -> None:
    made = ok("init", "lake", cwd=tmp_path)
    assert made.out == f"lake created in {tmp_path / 'lake'}\n"
    again = run("init", "lake", cwd=tmp_path)
    assert again.code == 1
    assert again.out == ""
    assert again.err.startswith('error: "lake" is a lake already\n')
    assert "hint: Open it" in again.err
    assert ok("init", "other", "--json", cwd=tmp_path).json == {"lake": str(tmp_path / "other")}


def test_the_lake_is_found_by_option_variable_and_folder(lake: Path, tmp_path: Path) -> None:
    inside = lake / "a" / "b"
    inside.mkdir(parents=True)
    for place in (
        ok("topic", "list", "--json", cwd=inside),
        ok("-C", str(lake), "--json", "topic", "list", cwd=tmp_path),
        ok("topic", "list", "--json", cwd=tmp_path, env={"HEADWATER_LAKE": str(lake)}),
    ):
        assert [topic["topic"] for topic in place.json] == ["orders"]
    lost = run("topic", "list", cwd=tmp_path)
    assert lost.code == 1
    assert "no lake in" in lost.err
    assert "headwater init" in lost.err


def test_wrong_usage_is_two_and_says_how(lake: Path) -> None:
    wrong = run("topic", "make", cwd=lake)
    assert wrong.code == 2
    assert wrong.out == ""
    assert "make" in wrong.err
    assert "Usage: headwater topic" in wrong.err
    assert run("query", cwd=lake).code == 2
    assert run("query", "SELECT 1", "--csv", "--ndjson", cwd=lake).code == 2
    problem = run("query", "SELECT 1", "--engine", "mysql", "--json", cwd=lake)
    assert problem.code == 2
    assert problem.problem["code"] == "usage"


def test_help_and_version_import_nothing_heavy(tmp_path: Path) -> None:
    program = IMPORTED.format(heavy=("pyarrow", "pyiceberg", "duckdb", "pyspark", "pandas", "rich", "sqlglot"))
    for words in (["--help"], ["version"], ["--version"], ["topic", "create", "--help"]):
        done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, env=CLEAN)
        assert done.returncode == 0, done
        assert done.stdout
    assert ok("--version", cwd=tmp_path).out == "headwater 0.1.0\n"
    assert ok("version", "--json", cwd=tmp_path).json["headwater"] == "0.1.0"


def test_a_small_query_imports_neither_spark_nor_pandas_nor_the_service(filled: Path) -> None:
    program = IMPORTED.format(heavy=("pyspark", "pandas", "fastapi", "uvicorn", "prompt_toolkit", "rich"))
    words = ["query", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", "--engine", "duckdb"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=filled, capture_output=True, env=CLEAN)
    assert done.returncode == 0, done


# -- topics -----------------------------------------------------------------------------------------------------


def test_topics_are_created_listed_described_and_dropped(lake: Path) -> None:
    made = ok(
        "topic", "create", "events", "id BIGINT NOT NULL, at TIMESTAMP", "--partition-by", "days(at)",
        "--option", "compression=snappy", "--option", "description=what happened", cwd=lake,
    )  # fmt: skip
    assert made.out == 'topic "events" created\n'
    about = ok("topic", "describe", "events", "--json", cwd=lake).json
    assert about["partitioned_by"] == ["days(at)"]
    assert about["options"]["compression"] == "snappy"
    assert [column["name"] for column in about["columns"]] == ["id", "at", "_offset", "_timestamp"]
    text = ok("topic", "describe", "events", cwd=lake).out
    assert "partitioned by: days(at)" in text
    assert (
        ok("topic", "create", "events", "id INT", "--if-not-exists", cwd=lake).out == 'topic "events" exists already\n'
    )
    twice = run("topic", "create", "events", "id INT", "--json", cwd=lake)
    assert (twice.code, twice.problem["code"], twice.problem["status"]) == (1, "topic_exists", 409)
    listed = ok("topic", "list", cwd=lake).out.splitlines()
    assert [line.split("│")[0].strip() for line in listed[2:]] == ["events", "orders"]
    assert ok("topic", "drop", "events", "--yes", "--json", cwd=lake).json["status"] == 'topic "events" dropped'
    gone = run("topic", "describe", "evnts", cwd=lake)
    assert gone.code == 1
    assert 'topic "evnts" does not exist' in gone.err


def test_drop_is_refused_where_nobody_can_be_asked(lake: Path) -> None:
    refused = run("topic", "drop", "orders", cwd=lake)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert len(ok("topic", "list", "--json", cwd=lake).json) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("s.sql", "id BIGINT NOT NULL, name STRING"),
        (
            "s.json",
            '{"columns": [{"name": "id", "type": "BIGINT", "nullable": false}, {"name": "name", "type": "STRING"}]}',
        ),
        (
            "s.avsc",
            '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"},'
            ' {"name": "name", "type": ["null", "string"]}]}',
        ),
    ],
)
def test_schemas_come_from_files(lake: Path, file: str, text: str) -> None:
    (lake / file).write_text(text)
    ok("topic", "create", "people", "--schema", file, cwd=lake)
    columns = ok("topic", "describe", "people", "--json", cwd=lake).json["columns"]
    assert [(each["name"], each["type"], each["nullable"]) for each in columns[:2]] == [
        ("id", "BIGINT", False),
        ("name", "STRING", True),
    ]


def test_mistakes_in_definitions_are_named(lake: Path) -> None:
    def message(*words: str) -> str:
        done = run("topic", "create", *words, cwd=lake)
        assert done.code == 1, done
        assert "Traceback" not in done.err
        return done.err

    assert "^" in message("t", "id BIGNT")
    assert 'option "compresion" is not known' in message("t", "id INT", "--option", "compresion=zstd")
    assert 'Did you mean "compression"?' in message("t", "id INT", "--option", "compresion=zstd")
    assert 'topic name "Big Topic" is not allowed' in message("Big Topic", "id INT")
    assert 'schema file "x.yaml" is of no known kind' in message("t", "--schema", "x.yaml")
    assert 'schema file "no.sql" cannot be read' in message("t", "--schema", "no.sql")
    assert run("topic", "create", "t", cwd=lake).code == 2
    assert run("topic", "create", "t", "id INT", "--option", "compression", cwd=lake).code == 2


# -- produce ----------------------------------------------------------------------------------------------------


def count(lake: Path, topic: str = "orders") -> int:
    import headwater

    with headwater.open(lake) as opened:
        return int(opened.sql(f"SELECT count(*) AS n FROM {topic}").rows()[0]["n"])


def test_every_format_arrives(lake: Path) -> None:
    rows = [order(n) for n in range(10)]
    table = pa.Table.from_pylist([{"order_id": n, "customer": "x"} for n in range(10)])
    (lake / "a.ndjson").write_bytes(lines(rows))
    (lake / "b.json").write_text(json.dumps(rows, indent=2))
    (lake / "c.csv").write_text("order_id,customer\n" + "".join(f'{n},"two\nlines"\n' for n in range(10)))
    pq.write_table(table, lake / "d.parquet")
    with pa.OSFile(str(lake / "e.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    (lake / "f.ndjson.gz").write_bytes(gzip.compress(lines(rows)))
    for number, file in enumerate(("a.ndjson", "b.json", "c.csv", "d.parquet", "e.arrow", "f.ndjson.gz")):
        sent = ok("produce", "orders", file, "--json", cwd=lake)
        assert sent.json["rows"] == 10, file
        assert sent.json["offsets"] == [number * 10, number * 10 + 10]
        assert sent.err == ""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    for number, (form, body) in enumerate((("arrow", stream), ("parquet", (lake / "d.parquet").read_bytes()))):
        piped = ok("produce", "orders", "-", "--format", form, cwd=lake, stdin=body)
        assert f"10 records (offsets {60 + 10 * number} to {69 + 10 * number})" in piped.out
    assert count(lake) == 80


def test_large_inputs_go_in_several_requests(lake: Path) -> None:
    (lake / "many.ndjson").write_bytes(lines([order(n) for n in range(1000)]))
    sent = ok("produce", "orders", "many.ndjson", "--batch-bytes", "10KB", "--json", cwd=lake).json
    assert sent["requests"] > 5
    assert (sent["rows"], sent["offsets"], sent["bytes"]) == (1000, [0, 1000], (lake / "many.ndjson").stat().st_size)
    (lake / "many.json").write_text(json.dumps([order(n) for n in range(1000)]))
    assert ok("produce", "orders", "many.json", "--batch-bytes", "10KB", "--json", cwd=lake).json["requests"] > 5
    assert count(lake) == 2000


def test_a_refused_request_names_lines_of_the_file_and_what_was_stored(lake: Path) -> None:
    rows = lines([order(n) for n in range(200)])
    bad = b'\n{"order_id": 1, "total": "x"}\n\n{"order_id": "one"}\n'
    (lake / "bad.ndjson").write_bytes(rows + bad)
    refused = run("produce", "orders", "bad.ndjson", "--batch-bytes", "4KB", cwd=lake)
    assert (refused.code, refused.out) == (1, "")
    assert 'error: bad.ndjson: topic "orders" rejected 2 of' in refused.err
    assert 'line 202, field "total"' in refused.err
    assert 'line 204, field "order_id"' in refused.err
    stored = count(lake)
    assert 0 < stored < 200
    assert f"Before that, {stored} records (offsets 0 to {stored - 1}) of bad.ndjson had been stored." in refused.err
    problem = run("produce", "orders", "bad.ndjson", "--json", cwd=lake).problem
    assert problem["code"] == "records_rejected"
    assert [reject["place"] for reject in problem["rejects"]] == ["line 202", "line 204"]
    assert count(lake) == stored


def test_csv_lines_are_counted_as_an_editor_counts_them(lake: Path) -> None:
    good = "".join(f'{n},"two\nlines"\n' for n in range(300))
    (lake / "bad.csv").write_text("order_id,customer\n" + good + "x,y\n")
    refused = run("produce", "orders", "bad.csv", "--batch-bytes", "1KB", cwd=lake)
    assert refused.code == 1
    assert 'line 602, field "order_id"' in refused.err


def test_other_mistakes_of_a_producer(lake: Path) -> None:
    def failing(*words: str, stdin: bytes = b"") -> str:
        done = run("produce", *words, cwd=lake, stdin=stdin)
        assert done.code == 1, done
        assert "Traceback" not in done.err
        return done.err

    assert 'topic "order" does not exist' in failing("order", stdin=b'{"order_id": 1}\n')
    assert 'Did you mean "orders"?' in failing("order", stdin=b'{"order_id": 1}\n')
    assert 'file "missing.csv" cannot be read' in failing("orders", "missing.csv")
    assert "input is not Parquet" in failing("orders", "-", "--format", "parquet", stdin=b"not parquet at all")
    assert "input is not a JSON array" in failing("orders", "-", "--format", "json", stdin=b'[{"order_id": 1}')
    assert "column" in failing("orders", "-", "--format", "csv", stdin=b"order,customer\n1,2\n").lower()
    assert run("produce", "orders", "file.xyz", cwd=lake).code == 2
    assert run("produce", "orders", "--batch-bytes", "many", cwd=lake).code == 2
    nothing = ok("produce", "orders", "--json", cwd=lake)
    assert (nothing.json["rows"], nothing.json["offsets"]) == (0, None)
    assert count(lake) == 0


def test_a_named_producer_stores_a_file_once(lake: Path) -> None:
    (lake / "many.ndjson").write_bytes(lines([order(n) for n in range(300)]))
    words = ("produce", "orders", "many.ndjson", "--producer", "p1", "--batch-bytes", "4KB", "--json")
    first, second = ok(*words, cwd=lake).json, ok(*words, cwd=lake).json
    assert (first["rows"], first["repeated"]) == (300, 0)
    assert (second["rows"], second["repeated"], second["offsets"]) == (300, 300, [0, 300])
    assert count(lake) == 300


def test_ctrl_c_says_what_was_acknowledged(lake: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "produce", "orders"], cwd=lake, env=CLEAN,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin and process.stderr
        process.stdin.write(lines([order(n) for n in range(25)]))
        process.stdin.flush()
        wait_until(lambda: count(lake) == 25)  # a live pipe is sent without waiting for more
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"interrupted: 25 records (offsets 0 to 24) had been acknowledged" in process.stderr.read()


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)


# -- query and sql ----------------------------------------------------------------------------------------------


def test_a_query_prints_a_table(filled: Path) -> None:
    done = ok(
        "query", "SELECT order_id, customer, total FROM orders WHERE order_id >= 498 ORDER BY order_id", cwd=filled
    )
    assert done.out == (
        " order_id │ customer │  total\n"
        "──────────┼──────────┼────────\n"
        "      498 │ c1       │ 498.50\n"
        '      499 │ a,"b"    │   NULL\n'
    )
    assert done.err == ""


def test_query_results_in_every_form(filled: Path, tmp_path: Path) -> None:
    text = "SELECT order_id, customer, total FROM orders WHERE order_id >= 498 ORDER BY order_id"
    rows = [
        {"order_id": 498, "customer": "c1", "total": "498.50"},
        {"order_id": 499, "customer": 'a,"b"', "total": None},
    ]
    assert ok("query", text, "--json", cwd=filled).json == rows
    assert ok("--json", "query", text, cwd=filled).json == rows
    assert [json.loads(line) for line in ok("query", text, "--ndjson", cwd=filled).out.splitlines()] == rows
    assert ok("query", text, "--csv", cwd=filled).out == 'order_id,customer,total\n498,c1,498.50\n499,"a,""b""",\n'
    written = ok("query", text, "--arrow", str(tmp_path / "out.arrow"), cwd=filled)
    assert (written.out, written.err) == ("", f"2 rows written to {tmp_path / 'out.arrow'}\n")
    assert pa.ipc.open_file(tmp_path / "out.arrow").read_all().num_rows == 2
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []
    streamed = ok("query", text, "--arrow", "-", cwd=filled)
    assert pa.ipc.open_stream(streamed.raw).read_all().num_rows == 2
    piped = ok("query", "-", "--csv", cwd=filled, stdin=b"SELECT count(*) AS n FROM orders")
    assert piped.out == "n\n500\n"


def test_empty_results_are_still_results(filled: Path) -> None:
    text = "SELECT order_id FROM orders WHERE order_id < 0"
    assert ok("query", text, "--json", cwd=filled).json == []
    assert ok("query", text, "--csv", cwd=filled).out == "order_id\n"
    assert ok("query", text, cwd=filled).out == " order_id\n──────────\n"


def test_rows_are_limited_on_request_and_never_silently(filled: Path) -> None:
    cut = ok("query", "SELECT order_id FROM orders ORDER BY order_id", "--json", "--max-rows", "3", cwd=filled)
    assert [row["order_id"] for row in cut.json] == [0, 1, 2]
    assert "only the first 3 rows" in cut.err
    whole = ok("query", "SELECT order_id FROM orders", "--csv", cwd=filled)
    assert (len(whole.out.splitlines()), whole.err) == (501, "")


def test_the_plan_is_shown_instead(filled: Path) -> None:
    text = "SELECT customer, count(*) FROM orders GROUP BY customer"
    assert "engine: duckdb" in ok("query", text, "--explain", cwd=filled).out
    plan = ok("query", text, "--explain", "--json", cwd=filled).json
    assert (plan["engine"], plan["scans"][0]["tail"]) == ("duckdb", [0, 500])
    assert ok("query", text, "--explain", "--no-tail", "--json", cwd=filled).json["scans"][0]["tail"] is None
    assert ok("query", "SELECT count(*) AS n FROM orders", "--no-tail", "--json", cwd=filled).json == [{"n": 0}]


def test_queries_that_fail_say_why_on_stderr_only(filled: Path) -> None:
    for text, code, words in (
        ("SELECT 'open FROM orders", "invalid_statement", "string is not closed"),
        ("DROP TOPIC orders", "statement_not_allowed", "only reads"),
        ("", "invalid_statement", "statement is empty"),
    ):
        done = run("query", text, cwd=filled)
        assert (done.code, done.out) == (1, ""), done
        assert words in done.err
        problem = run("query", text, "--json", cwd=filled).problem
        assert problem["type"] == f"urn:headwater:error:{code}"


def test_a_closed_pipe_ends_quietly(filled: Path) -> None:
    big = "SELECT a.order_id, b.customer FROM orders a CROSS JOIN orders b"
    with subprocess.Popen(
        [*COMMAND, "query", big, "--ndjson"], cwd=filled, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN
    ) as process:
        assert process.stdout and process.stderr
        assert b"order_id" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_scripts_run_statement_by_statement(lake: Path) -> None:
    script = "CREATE TOPIC a (x INT); SHOW TOPICS; -- done\nSELECT 1 AS one;"
    (lake / "s.sql").write_text(script)
    done = ok("sql", "-f", "s.sql", cwd=lake)
    assert done.out.startswith('topic "a" created\n\n topic ')
    assert done.out.endswith("one\n─────\n   1\n")
    again = ok("sql", "DROP TOPIC a; SELECT 2 AS two", "--json", cwd=lake).json
    assert [each["rows"] for each in again] == [[{"status": 'topic "a" dropped'}], [{"two": 2}]]
    assert again[1]["columns"] == [{"name": "two", "type": "int32"}]
    assert "two" in ok("sql", cwd=lake, stdin=b"SELECT 2 AS two;\n").out


def test_a_script_with_a_mistake_runs_nothing(lake: Path) -> None:
    wrong = run("sql", "DROP TOPIC orders;\nSHW TOPICS", cwd=lake)
    assert (wrong.code, wrong.out) == (1, "")
    assert "Line 2, column 1:" in wrong.err
    assert "^^^" in wrong.err
    assert len(ok("topic", "list", "--json", cwd=lake).json) == 1
    assert run("sql", "SELECT 1", "-f", "x.sql", cwd=lake).code == 2
    assert run("sql", "-f", "none.sql", cwd=lake).code == 1


# -- doctor and setup -------------------------------------------------------------------------------------------


def checks(lake: Path, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = run("-C", str(lake), "doctor", "--json", *words, cwd=lake.parent)
    assert done.code in (0, 1), done
    assert done.json["ok"] == (done.code == 0)
    return done.code, {check["name"]: check for check in done.json["checks"]}


def test_doctor_finds_a_healthy_lake_healthy(filled: Path) -> None:
    code, found = checks(filled)
    assert code == 0, found
    assert {check["status"] for name, check in found.items() if name not in ("jvm packages", "disk")} == {"ok"}
    assert "the log holds 500 records" in found["offsets of orders"]["message"]
    text = run("doctor", cwd=filled)
    assert "ok    offsets of orders:" in text.out


def broken_entry(lake: Path) -> None:
    with sqlite3.connect(lake / "state.db") as db:
        db.execute("UPDATE log_entries SET payload = zeroblob(length(payload))")


def missing_entry(lake: Path) -> None:
    with sqlite3.connect(lake / "state.db") as db:
        db.execute("DELETE FROM log_entries WHERE id = (SELECT min(id) FROM log_entries)")


def log_behind_table(lake: Path) -> None:
    with sqlite3.connect(lake / "catalog.db") as db:
        location = db.execute("SELECT metadata_location FROM iceberg_tables").fetchone()[0]
    metadata = Path(location.removeprefix("file://"))
    body = json.loads(metadata.read_text())
    body["properties"]["headwater.offset"] = "1000"
    metadata.write_text(json.dumps(body))


def torn_state(lake: Path) -> None:
    state = lake / "state.db"
    state.write_bytes(b"x" * 4096 + state.read_bytes()[4096:])


def no_metadata(lake: Path) -> None:
    for file in (lake / "warehouse").rglob("*.metadata.json"):
        file.unlink()


def no_catalog(lake: Path) -> None:
    (lake / "catalog.db").unlink()


def bad_settings(lake: Path) -> None:
    (lake / "headwater.toml").write_text("prot = 1\n")


@pytest.mark.leaves_damage
@pytest.mark.parametrize(
    ("harm", "check", "words"),
    [
        (broken_entry, "log entries", "do not match their checksum"),
        (missing_entry, "offsets of orders", "not dense"),
        (log_behind_table, "log entries", 'log of topic "orders" is older than its table'),
        (torn_state, "log", "state.db"),
        (no_metadata, "topics.orders", "cannot be read"),
        (no_catalog, "catalog", "catalog.db is missing"),
        (bad_settings, "lake", 'setting "prot" is not valid'),
    ],
)
def test_doctor_finds_what_is_broken(lake: Path, harm: Callable[[Path], None], check: str, words: str) -> None:
    import headwater

    with headwater.open(lake) as opened:
        for number in range(4):
            opened.topic("orders").append([order(number)])
    harm(lake)
    code, found = checks(lake)
    assert code == 1
    assert found[check]["status"] == "fail"
    assert words in found[check]["message"]
    assert found[check]["action"]


@pytest.mark.leaves_damage
def test_doctor_notices_that_a_lake_was_moved(lake: Path) -> None:
    moved = lake.rename(lake.parent / "elsewhere")
    code, found = checks(moved)
    assert code == 1
    assert "was moved" in found["location"]["message"]
    assert str(lake) in found["location"]["message"]
    assert f"headwater -C {moved} relocate" in found["location"]["action"]


def test_doctor_without_a_lake_looks_at_the_machine(tmp_path: Path) -> None:
    done = run("doctor", "--json", cwd=tmp_path)
    assert {check["name"] for check in done.json["checks"]} == {"python", "java", "jvm packages", "disk", "lake"}


def test_setup_says_that_java_is_missing(tmp_path: Path) -> None:
    done = run("setup", cwd=tmp_path, env={"JAVA_HOME": str(tmp_path / "none")})
    assert (done.code, done.out) == (1, "")
    assert "has no bin/java" in done.err
    assert "Install a JDK 17 or later" in done.err
    code = run("doctor", cwd=tmp_path, env={"JAVA_HOME": str(tmp_path / "none")})
    assert code.code == 1
    assert "FAIL  java:" in code.out


def test_nothing_answers_at_a_wrong_url(tmp_path: Path) -> None:
    done = run("--url", "http://127.0.0.1:9", "topic", "list", cwd=tmp_path)
    assert done.code == 1
    assert "no service answers" in done.err
    assert run("--url", "http://127.0.0.1:9", "init", "x", cwd=tmp_path).code == 2


# -- with Spark -------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_query_of_an_unknown_topic_names_the_near_one(filled: Path) -> None:
    done = run("query", "SELECT * FROM ordrs", cwd=filled)
    assert (done.code, done.out) == (1, "")
    assert 'topic or view "ordrs" does not exist' in done.err
    assert 'Did you mean "orders"?' in done.err
    assert run("query", "SELECT * FROM ordrs", "--json", cwd=filled).problem["code"] == "topic_not_found"


@pytest.mark.leaves_damage
@pytest.mark.spark
def test_setup_flush_and_deep_doctor(lake: Path) -> None:
    assert "JVM packages are in place" in ok("setup", cwd=lake).out
    ok("produce", "orders", "-", cwd=lake, stdin=lines([order(n) for n in range(100)]))
    flushed = ok("flush", "orders", "--json", cwd=lake).json
    assert [(each["topic"], each["records"]) for each in flushed] == [("orders", 100)]
    assert ok("flush", cwd=lake).err == "nothing waits in the log\n"
    assert ok("query", "SELECT count(*) AS n FROM orders", "--no-tail", "--json", cwd=lake).json == [{"n": 100}]
    code, found = checks(lake, "--deep")
    assert code == 0, found
    assert "every one matches its checksums" in found["topics.orders"]["message"]
    file = next((lake / "warehouse").rglob("*.parquet"))
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    body = bytearray(file.read_bytes())
    body[start + chunk.total_compressed_size - 1] ^= 1  # the last byte of a page
    file.write_bytes(body)
    assert checks(lake)[0] == 0
    assert checks(lake, "--deep")[0] == 1
    file.unlink()
    assert "is missing" in checks(lake)[1]["topics.orders"]["message"]


@pytest.mark.spark
def test_a_full_log_is_committed_and_said_so(lake: Path) -> None:
    small = {"HEADWATER_MAX_TAIL_BYTES": str(1024**2)}
    body = lines([order(n, customer="x" * 100) for n in range(12_000)])
    sent = ok("produce", "orders", "-", "--batch-bytes", "500KB", cwd=lake, stdin=body, env=small)
    assert "the log is full: committing it to the tables (starts Spark)" in sent.err
    assert "12,000 records (offsets 0 to 11999)" in sent.out
    assert count(lake) == 12_000


@pytest.mark.spark
def test_a_service_answers_the_same_commands(lake: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "-C", str(lake), "serve", "--port", "0", "--json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN,
    ) as service:  # fmt: skip
        assert service.stdout and service.stderr
        try:
            url = json.loads(service.stdout.readline())["url"]
            there = {"HEADWATER_URL": url}
            ok("topic", "create", "remote", "id BIGINT NOT NULL", cwd=tmp_path, env=there)
            sent = ok("produce", "remote", cwd=tmp_path, env=there, stdin=b'{"id": 1}\n{"id": 2}\n')
            assert "2 records (offsets 0 to 1)" in sent.out
            assert ok("query", "SELECT sum(id) AS s FROM remote", "--json", cwd=tmp_path, env=there).json == [{"s": 3}]
            bad = run("produce", "remote", cwd=tmp_path, env=there, stdin=b'\n{"id": "x"}\n')
            assert bad.code == 1
            assert 'line 2, field "id"' in bad.err
            missing = run("--url", url, "topic", "describe", "nothing", "--json", cwd=tmp_path)
            assert (missing.code, missing.problem["code"]) == (1, "topic_not_found")
            ok("topic", "drop", "remote", "--yes", cwd=tmp_path, env=there)
            assert ok("doctor", cwd=tmp_path, env=there).out.count("service:") == 1
            taken = run("-C", str(lake), "serve", "--port", url.rsplit(":", 1)[1], cwd=tmp_path)
            assert taken.code == 1
            assert "cannot be bound" in taken.err
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
        assert service.stderr.read() == b"stopped\n"
