"""Faults at every call of a restart, and receivers killed there: never left suspended, never restarted twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.restarter.checkpoint import Checkpoint, Waiting
from gpufrag.restarter.errors import Away, ClusterError, Conflict, Denied, TooMany
from gpufrag.restarter.kubernetes.owners import Resolved
from gpufrag.restarter.settings import RestartSettings
from restarter.memory_cluster import Killed, fail_at
from restarter.worker_rig import Rig

CLAIM_LASTS_S = 1300.0
BEFORE = [Away("503"), Away("503", 7.0), Conflict("409"), TooMany("429", 3.0), Denied("401")]
FAULTS = [*((error, False) for error in BEFORE), (Away("no answer"), True), (Conflict("409"), True)]
"""And whether the call was done all the same; a Conflict then comes of a proxy that sent it twice."""


def calls_of_a_restart() -> int:
    rig = Rig().send().go()
    return len(rig.cluster.calls)


CALLS = calls_of_a_restart()


def whole(rig: Rig) -> None:
    """What must be so whatever happened."""
    assert not rig.cluster.suspended
    assert rig.cluster.suspensions <= 1
    assert rig.cluster.job.generation <= 2
    assert rig.cluster.memory.phase is None
    assert rig.cluster.memory.count <= 1


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize(("error", "done"), FAULTS)
def test_one_call_fails(number: int, error: ClusterError, done: bool) -> None:
    rig = Rig()
    rig.cluster.fault = fail_at(number, done, error)
    whole(rig.send().go())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(CALLS))
def test_a_fault_of_our_own_is_survived(number: int, done: bool) -> None:
    rig = Rig()
    rig.cluster.fault = fail_at(number, done, ZeroDivisionError("a bug"))
    rig.send().go()
    for seconds in (RestartSettings().sweep, CLAIM_LASTS_S, RestartSettings().sweep):
        rig.hands.move(seconds)
        rig.go()
    whole(rig)


@pytest.mark.parametrize("number", range(CALLS))
def test_the_api_server_is_away_for_a_minute(number: int) -> None:
    rig = Rig()
    end: list[float] = []

    def away(at: int, name: str, done: bool) -> None:
        if at == number:
            end.append(rig.hands.steady_s + 60)
        if end and rig.hands.steady_s < end[0]:
            raise Away("503")

    rig.cluster.fault = away
    whole(rig.send().go())
    assert rig.cluster.suspensions == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(CALLS))
def test_the_receiver_is_killed(number: int, done: bool) -> None:
    rig = Rig()
    rig.cluster.fault = fail_at(number, done, Killed())
    assert rig.send().until_killed()
    after = rig.again().send().go()
    after.hands.move(CLAIM_LASTS_S)
    whole(after.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, CALLS), st.booleans()), min_size=2, max_size=5))
def test_receivers_are_killed_one_after_another(kills: list[tuple[int, bool]]) -> None:
    rig = Rig()
    for number, done in kills:
        rig.cluster.fault = fail_at(len(rig.cluster.calls) + number, done, Killed())
        rig.send().until_killed()
        rig = rig.again()
    rig.cluster.fault = lambda number, name, done: None
    rig.send().go().hands.move(CLAIM_LASTS_S)
    whole(rig.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2 * CALLS), st.booleans())
def test_two_receivers_are_told_of_the_same_alert(turns: list[bool], number: int, done: bool) -> None:
    one = Rig()
    two = one.again()
    one.cluster.fault = fail_at(number, done, Away("503"))
    one.send()
    two.send()
    for first in turns:
        (one if first else two).turn()
    one.go()
    two.go()
    whole(one.go())
    assert one.cluster.suspensions == 1


class Watched:
    """Counts the checkpoints that are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        self.asked += 1
        yield 5.0
        return Checkpoint("Saved.", saved=True)


def test_two_receivers_ask_for_one_checkpoint() -> None:
    watched = Watched()
    one = Rig(checkpointer=watched)
    two = one.again()
    one.send()
    two.send()
    for _ in range(60):
        one.turn()
        two.turn()
    whole(one)
    assert (watched.asked, one.cluster.suspensions) == (1, 1)


def test_who_may_no_longer_resume_goes_on_trying() -> None:
    rig = Rig().send()
    rig.turn()
    assert rig.cluster.suspended
    rig.cluster.fault = fail_at(len(rig.cluster.calls), False, Denied("403"), times=30)
    whole(rig.go())


def test_pods_that_do_not_end_do_not_keep_a_job_suspended() -> None:
    rig = Rig()
    rig.cluster.stuck = True
    whole(rig.send().go())
    assert rig.told[-1] == "failed not-stopped"


def test_pods_that_do_not_come_back_are_told_of_and_not_tried_again() -> None:
    rig = Rig()
    rig.cluster.job.ready = False
    whole(rig.send().go())
    assert rig.told[-1] == "failed not-running"
    assert rig.events[-1] == "RestartFailed"


def test_a_job_that_a_person_suspends_meanwhile_stays_so() -> None:
    rig = Rig().send()
    while not (rig.cluster.job.generation == 2 and not rig.cluster.suspended):
        rig.turn()
    rig.cluster.job.spec["suspend"] = True
    rig.cluster.job.version += 1
    rig.go()
    assert rig.cluster.suspended
    rig.again().go()
    assert rig.cluster.suspended


def test_a_job_that_is_deleted_meanwhile_ends_its_restart() -> None:
    rig = Rig().send()
    rig.turn()
    del rig.cluster.jobs["train"]
    rig.go()
    assert rig.told[-1] == "over gone"
