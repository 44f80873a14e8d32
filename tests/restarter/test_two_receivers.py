"""Two receivers on one cluster: one restart is told of once, as it ended, by the one that ended it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.restarter import metrics
from gpufrag.restarter.errors import Away
from gpufrag.restarter.settings import RestarterConfig, RestartSettings
from restarter.worker_rig import Rig

OFTEN = RestarterConfig(restart=RestartSettings(sweep=5.0, run_timeout=60.0))


def pair() -> tuple[Rig, Rig]:
    """The second looks for jobs left half way at nearly every turn, and so takes part in each restart of the first."""
    one = Rig(config=OFTEN)
    return one, replace(one)


def ends_told(*rigs: Rig) -> list[str]:
    return [told for rig in rigs for told in rig.told if told.startswith(("restarted", "failed", "over"))]


def together(one: Rig, two: Rig, turns: list[bool]) -> None:
    for first in turns:
        (one if first else two).turn(3.0)
    one.go()
    two.go()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.booleans(), min_size=10, max_size=80))
def test_a_restart_is_told_of_once(turns: list[bool]) -> None:
    one, two = pair()
    one.send()
    together(one, two, turns)
    assert ends_told(one, two) == ["restarted restarted"]
    counted = [rig.metrics.value(metrics.ACTIONS, "Job.batch", "restarted") or 0 for rig in (one, two)]
    assert (sum(counted), one.cluster.suspensions) == (1, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=40, max_size=80))
def test_a_restart_that_failed_is_not_told_as_a_success_too(turns: list[bool]) -> None:
    one, two = pair()
    one.cluster.job.ready = False
    one.send()
    together(one, two, turns)
    assert ends_told(one, two) == ["failed not-running"]


@pytest.mark.parametrize("done", [False, True])
def test_an_end_whose_answer_was_lost_is_told_all_the_same(done: bool) -> None:
    rig = Rig().send()
    lost: list[int] = []

    def lose(number: int, name: str, after: bool) -> None:
        closing = name == "patch" and rig.cluster.memory.phase == ("waiting" if not after else None)
        if closing and after == done and not lost and rig.told:
            lost.append(number)
            raise Away("503")

    rig.cluster.fault = lose
    assert ends_told(rig.go()) == ["restarted restarted"]
    assert lost
