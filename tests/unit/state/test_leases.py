from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from headwater.state import holders
from headwater.state.holders import holder_name, holder_state
from headwater.state.leases import Leases, open_state


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_state(tmp_path / "state.db", 5.0)


def test_one_holder_at_a_time(engine: Engine) -> None:
    one, two = Leases(engine, "one", 10), Leases(engine, "two", 10)
    assert one.acquire("job")
    assert one.acquire("job")  # renewing one's own
    assert not two.acquire("job")
    assert two.acquire("other job")
    one.release("job")
    assert two.acquire("job")


def test_a_lease_that_ends_later_than_any_can_is_taken_where_nothing_is_known_of_its_holder(engine: Engine) -> None:
    now = [1_000_000.0]
    elsewhere, other = Leases(engine, "elsewhere", 10, lambda: now[0]), Leases(engine, "other", 10, lambda: now[0])
    assert elsewhere.acquire("job")
    now[0] -= 5
    assert not other.acquire("job"), "a small step back"
    assert other.held_by_another("job") == elsewhere.get("job")
    now[0] -= 60
    assert other.held_by_another("job") is None
    assert other.acquire("job")
    patient = Leases(engine, "patient", 7200, lambda: now[0])
    assert patient.acquire("long job")
    assert not patient.acquire("job")
    assert not Leases(engine, "third", 7200, lambda: now[0]).acquire("long job")


HOLD = """
import sys, time
from pathlib import Path
from headwater.state.holders import holder_name
from headwater.state.holders import holder_name, holder_state
from headwater.state.leases import Leases, open_state
ahead = float(sys.argv[2])
leases = Leases(open_state(Path(sys.argv[1]), 5.0), holder_name("part"), 30, lambda: time.time() + ahead)
assert leases.acquire("job")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ahead", [0, 50 * 60])
def test_the_lease_of_a_dead_process_is_taken_at_once_that_of_a_live_one_is_not(
    engine: Engine, tmp_path: Path, ahead: float
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "state.db"), str(ahead)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        other = Leases(engine, holder_name("other"), 30)
        held = other.held_by_another("job")
        assert held is not None
        assert holder_state(held.holder) == "alive"
        assert not other.acquire("job")
        holder.kill()
        holder.wait()
    assert holder_state(held.holder) == "dead"
    assert other.held_by_another("job") is None
    assert other.acquire("job")


def test_a_process_that_has_the_number_of_a_dead_one_is_another() -> None:
    ours = holder_name("part")
    scope, number, started, part = ours.split("|")
    assert holder_state(ours) == "alive"
    assert holder_state("|".join((scope, number, f"{started}0", part))) == "dead"
    assert holder_state("|".join(("another boot", number, started, part))) == "unknown"
    assert holder_state(f"host:{number}:streams") == "unknown", "as earlier versions wrote it"
    for odd in ("", "²", "-1", "9" * 30):
        assert holder_state("|".join((scope, odd, started, part))) == "unknown"


def test_a_process_that_proc_hides_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under hidepid and ProtectProc=, where one user does not see the processes of another."""
    ours = holder_name("part")
    scope, _, started, part = ours.split("|")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    assert holder_state(ours) == "unknown"
    assert holder_state("|".join((scope, "1", started, part))) == "unknown"
    assert holder_state("|".join((scope, str(ended.pid), started, part))) == "dead"


def test_process_numbers_mean_nothing_where_the_system_does_not_say_of_which_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ProcSubset=pid: two containers may have one host name, and each a process 1."""
    monkeypatch.setattr(holders, "_scope", lambda: None)
    scope, number, started, part = holder_name("part").split("|")
    assert holder_state("|".join((scope, number, f"{started}0", part))) == "unknown"


def test_an_expired_lease_can_be_taken_and_is_lost_to_its_holder(engine: Engine) -> None:
    now = [100.0]
    one, two = Leases(engine, "one", 10, lambda: now[0]), Leases(engine, "two", 10, lambda: now[0])
    assert one.acquire("job")
    now[0] = 105.0
    assert one.renew("job")
    now[0] = 114.0
    assert not two.acquire("job")
    now[0] = 116.0
    assert two.acquire("job")
    assert not one.renew("job")
    one.release("job")  # not ours any more
    held = two.get("job")
    assert held is not None
    assert held.holder == "two"


def test_release_all_gives_up_only_its_own(engine: Engine) -> None:
    one, two = Leases(engine, "one", 10), Leases(engine, "two", 10)
    one.acquire("a")
    one.acquire("b")
    two.acquire("c")
    one.release_all()
    assert two.acquire("a")
    assert two.acquire("b")
    assert not one.acquire("c")


def test_a_lease_is_held_for_a_block(engine: Engine) -> None:
    one, two = Leases(engine, "one", 10), Leases(engine, "two", 10)
    with one.held("job") as ours:
        assert ours
        with two.held("job") as theirs:
            assert not theirs
        assert not two.acquire("job")  # what was not theirs they did not give up
    assert two.acquire("job")


def test_a_held_lease_is_given_up_after_a_failure(engine: Engine) -> None:
    one, two = Leases(engine, "one", 10), Leases(engine, "two", 10)
    with pytest.raises(ZeroDivisionError), one.held("job"):
        raise ZeroDivisionError
    assert two.acquire("job")


def test_a_lease_outlives_its_time_while_it_is_renewed(engine: Engine) -> None:
    one, two = Leases(engine, "one", 2), Leases(engine, "two", 2)
    with one.held("job"):
        time.sleep(2.5)
        assert not two.acquire("job")
