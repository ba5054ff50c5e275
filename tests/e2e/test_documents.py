"""What the README and the tutorial tell people to paste works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e import pasted

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def script(document: Path) -> str:
    """The document's blocks as one script for a shell; Python blocks are given to Python."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for language, block in BLOCK.findall(document.read_text()):
        parts.append(block if language == "bash" else f"python - <<'PYTHON'\n{block}PYTHON")
    return "\n".join(parts)


def run(text: str, folder: Path) -> str:
    # The environment of `make setup`, as after `source .venv/bin/activate`; nothing else of this process's.
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=570, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_tour(tmp_path: Path) -> None:
    shown = run(script(ROOT / "README.md"), tmp_path)
    assert "grace" in shown
    assert '"rows":1' in shown.replace(" ", "")
    assert "skipped by partition values" in shown
    assert "refresh spent: append the delta" in shown
    assert "updated_to" in shown
    assert 'rolled back topic "orders"' in shown
    assert "ada " not in shown.rsplit("customer │ orders", 1)[-1]  # whose rows were deleted
    assert "order_id: [[1" in shown or "order_id: int64" in shown  # PyIceberg prints the table


def test_the_tutorial(tmp_path: Path) -> None:
    shown = run("source .venv/bin/activate\n" + script(ROOT / "docs" / "tutorial" / "first-topic.md"), tmp_path)
    assert "a lot" in shown  # the dead letter
    assert ".parquet" in shown


PAGES = (
    "guides/views.md",
    "guides/streaming.md",
    "guides/tuning-views.md",
    "guides/storage.md",
    "guides/evolution.md",
    "guides/time-travel.md",
    "guides/maintenance.md",
    "tutorial/first-view.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_its_commands_print(page: str, tmp_path: Path) -> None:
    document = ROOT / "docs" / page
    text = document.read_text()
    taken = pasted.steps(text)
    said = pasted.run(taken, tmp_path)
    assert pasted.failures(taken, said) == []
    if os.environ.get("HEADWATER_REWRITE") == "1":
        document.write_text(pasted.rewritten(text, taken, said))
    else:
        assert pasted.differences(taken, said) == []


def test_the_demo(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--rows", "60000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly once: 60,000 records, 60,000 offsets" in done.stdout
    assert "the view is what its query gives" in done.stdout
    assert "append: read 5,000 rows" in done.stdout
    assert "stopped cleanly" in done.stdout


def test_the_example_of_time_travel(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "time_travel.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deleted      plum 0.80" in done.stdout
    assert "offsets that leave the topic: [3, 4)" in done.stdout
    assert "now: apple, fig, pear, plum; and the import can still be read: 3 rows" in done.stdout


def test_the_example_of_views(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "views.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hourly: keys" in done.stdout
    assert "daily is what its query gives" in done.stdout
    assert "248 orders are left" in done.stdout


def test_the_example_of_streaming(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "streaming.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "watermark 09:01:10; closed minutes: 09:00 has 5\n" in done.stdout
    assert "watermark 09:01:30; closed minutes: 09:00 has 6; late so far: 1" in done.stdout
    assert "the topic minutes got: 09:00 5, 09:00 6" in done.stdout
    assert "the view holds what its query gives over the whole topic" in done.stdout


def test_the_example_of_care(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "care.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "retention: done, all rows of 1 file" in done.stdout
    assert "compact: done" in done.stdout
    assert "1 of 2 files are read" in done.stdout
    assert "3000 rows are left, and the view is what its query gives" in done.stdout
