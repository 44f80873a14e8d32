"""Who is taken up by a search, when, and what counts as having looked everywhere."""

from __future__ import annotations

import pytest

from gpufrag.restarter.errors import Away, ClusterError, Denied
from gpufrag.restarter.kubernetes.cluster import PHASE
from gpufrag.restarter.kubernetes.kinds import DEPLOYMENT, JOB
from gpufrag.restarter.record import CLAIMED, SUSPENDED
from gpufrag.restarter.sweep import Sweep
from restarter.memory_cluster import MemoryCluster
from restarter.worker_rig import Rig


def sweep(phase: str) -> Sweep:
    cluster = MemoryCluster()
    cluster.job.annotations[PHASE] = phase
    return Sweep(cluster, (JOB, DEPLOYMENT), ("ml", "other"), claim_lasts_s=100.0)


def found(one: Sweep, now_s: float, *ours: str) -> list[str]:
    return [owner.name for owner in one.left_behind(now_s, ours)[0]]


def test_a_suspended_job_is_taken_up_at_once() -> None:
    assert found(sweep(SUSPENDED), 0.0) == ["train"]


def test_a_claim_is_left_to_its_claimant_for_a_while() -> None:
    one = sweep(CLAIMED)
    assert [found(one, now_s) for now_s in (0.0, 99.0, 100.0)] == [[], [], ["train"]]


def test_another_s_claim_begins_anew() -> None:
    one = sweep(CLAIMED)
    found(one, 0.0)
    assert isinstance(one.cluster, MemoryCluster)
    one.cluster.job.annotations["gpufrag.dev/restart-by"] = "another"
    assert found(one, 100.0) == []


def test_our_own_are_not_taken_up() -> None:
    assert found(sweep(SUSPENDED), 0.0, "uid-train") == []


@pytest.mark.parametrize(("kinds", "error", "complete"), [(1, Denied, True), (4, Denied, False), (1, Away, False)])
def test_a_search_is_complete_unless_something_is_wrong(kinds: int, error: type[ClusterError], complete: bool) -> None:
    one = sweep(SUSPENDED)

    def fault(number: int, name: str, done: bool) -> None:
        if number < kinds:
            raise error("no")

    assert isinstance(one.cluster, MemoryCluster)
    one.cluster.fault = fault
    assert (one.left_behind(0.0, ())[1] is None) == complete


def test_the_receiver_is_ready_after_the_first_whole_search() -> None:
    rig = Rig()
    ends_s = rig.hands.steady_s + 60

    def away(number: int, name: str, done: bool) -> None:
        if rig.hands.steady_s < ends_s:
            raise Away("503")

    rig.cluster.fault = away
    rig.turn()
    assert not rig.worker.ready
    while rig.hands.steady_s < ends_s + 20:
        rig.turn()
    assert rig.worker.ready


def test_no_namespace_is_searched_at_once() -> None:
    assert Sweep(MemoryCluster(), (JOB,), (), 1.0).left_behind(0.0, ()) == ([], None)
