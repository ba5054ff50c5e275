from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headwater.spark.scratch import claim, sweep

CLAIM_AND_DIE = """
import os, sys
from pathlib import Path
from headwater.spark.scratch import claim
own = claim(Path(sys.argv[1]))
(own.folder / "blocks").write_text("x")
print(own.folder, own.sockets, flush=True)
sys.stdin.read() if len(sys.argv) > 2 else os._exit(9)
"""


def test_a_claim_is_named_for_its_process_and_released(tmp_path: Path) -> None:
    own = claim(tmp_path / "scratch")
    assert str(os.getpid()) in own.folder.name
    assert (own.folder / "tmp").is_dir()
    assert own.sockets.is_dir()
    own.release()
    assert not own.folder.exists()
    assert not own.sockets.exists()


def test_a_sweep_leaves_the_living_alone(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    assert first.folder != second.folder
    assert sweep(tmp_path) == ()
    first.release()
    second.release()


def test_the_next_claim_removes_what_a_dead_process_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM_AND_DIE, str(tmp_path)]
    dead, sockets = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    assert Path(dead, "blocks").exists()
    with subprocess.Popen([*command, "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        alive, _ = other.stdout.readline().split()
        assert not Path(dead).exists()
        assert not Path(sockets).exists()
        own = claim(tmp_path)
        assert Path(alive, "blocks").exists()
        own.release()
        other.kill()
    assert sweep(tmp_path) == (Path(alive),)


def test_only_folders_of_ours_are_swept(tmp_path: Path) -> None:
    (tmp_path / "spark-unlocked").mkdir()
    (tmp_path / "other").mkdir()
    assert sweep(tmp_path) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "spark-unlocked"]
