from __future__ import annotations

from gpufrag.metrics.view import STATES, Fleet, RankView
from gpufrag.wire.sample import Identity, ProcessSample


def a_rank(pid: int, alive: bool) -> RankView:
    return RankView(ProcessSample(Identity("host", pid, 0.0), 0.0), alive)


def test_ranks_are_counted_by_state() -> None:
    fleet = Fleet(0.0, (a_rank(1, True), a_rank(2, True), a_rank(3, False)))
    assert fleet.states == {"alive": 2, "dead": 1}


def test_a_state_without_ranks_is_counted_too() -> None:
    assert Fleet(0.0).states == dict.fromkeys(STATES, 0)
