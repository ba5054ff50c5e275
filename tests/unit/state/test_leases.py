from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

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


def test_the_lease_of_a_dead_holder_whose_clock_was_ahead_can_be_taken(engine: Engine) -> None:
    now = [1_000_000.0]
    dead, other = Leases(engine, "dead", 10, lambda: now[0]), Leases(engine, "other", 10, lambda: now[0])
    assert dead.acquire("job")
    now[0] -= 60
    assert not other.acquire("job"), "a step back"
    now[0] -= 86_400
    assert other.acquire("job")
    patient = Leases(engine, "patient", 7200, lambda: now[0])
    assert patient.acquire("long job")
    assert not patient.acquire("job")
    assert not Leases(engine, "third", 7200, lambda: now[0]).acquire("long job")


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
