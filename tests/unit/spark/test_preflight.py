"""What a cluster lacks is said in one sentence, whatever Spark's message looks like."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import headwater
from headwater.errors import InvalidSetting, Unavailable
from headwater.spark.preflight import Probe, _sentence, check_master

PYTHON = sys.version_info[:2]


def probe(tmp_path: Path, **changes: object) -> Probe:
    marker = tmp_path / ".marker"
    marker.write_text(".marker")
    parts = {"python": PYTHON, "version": headwater.__version__, "jars": (__file__,), "marker": str(marker)}
    return Probe(**{**parts, **changes})  # type: ignore[arg-type]


def test_an_executor_that_has_everything(tmp_path: Path) -> None:
    assert list(probe(tmp_path)([])) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "9.9.9"}, f"has headwater {headwater.__version__}, this driver 9.9.9."),
        ({"python": (2, 7)}, "this driver Python 2.7."),
        ({"jars": ("/no/such.jar",)}, "cannot read /no/such.jar, which is on its class path."),
        ({"marker": "/no/such/folder/.marker"}, "does not see the warehouse /no/such/folder of this driver."),
    ],
)
def test_what_an_executor_lacks(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    (sentence,) = probe(tmp_path, **changes)([])
    assert sentence.endswith(said)


def test_a_folder_of_the_same_name_is_not_the_warehouse(tmp_path: Path) -> None:
    looking = probe(tmp_path)
    (tmp_path / ".marker").write_text("another lake's")
    assert "does not see the warehouse" in "".join(looking([]))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding "
            "module specification for 'headwater.spark.daemon' (ModuleNotFoundError: No module named 'headwater')\n"
            "PYTHONPATH was:",
            'The executors\' Python ("/usr/bin/python3") has no module "headwater".',
        ),
        ("ModuleNotFoundError: No module named 'pyarrow.compute'", 'has no module "pyarrow".'),
        (
            'java.io.IOException: Cannot run program "/opt/py/bin/python": error=2, No such file or directory',
            'The executors have no Python at "/opt/py/bin/python".',
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
            "The executors run Python 3.9, this driver Python",
        ),
        ("Job 0 cancelled part of cancelled job group headwater-preflight-1", "No executor has run a task within 120"),
        (
            "An error occurred while calling z:x.\n: java.io.IOException: disk on fire\n\tat x.y(Z.java)",
            "disk on fire.",
        ),
    ],
)
def test_messages_of_spark(message: str, said: str) -> None:
    sentence = _sentence(message, "/usr/bin/python3")
    assert said in sentence
    assert sentence.endswith(".") and "\n" not in sentence


def test_a_master_that_is_not_there_is_noticed_before_a_jvm_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")  # the second one is the leader
    for master in (f"spark://127.0.0.1:{port}", "spark://127.0.0.1:99999"):
        with pytest.raises(Unavailable, match=r"spark master .* cannot be reached"):
            check_master(master)
    with pytest.raises(InvalidSetting, match="spark_master"):
        check_master("spark://nowhere")
    check_master("local[*]")
    check_master("k8s://https://x")
