"""A restart that is cut short anywhere is brought to its end, once: every call fails in turn, in every way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter.clock import Clock
from gpufrag.restarter.errors import ClusterError, Conflict
from gpufrag.restarter.finish import NOT_HEARD, Finisher, Result
from gpufrag.restarter.kubernetes.cluster import PHASE, Pod
from gpufrag.restarter.kubernetes.steps import (
    COMMANDED,
    EVICTED,
    AwaitStopped,
    Command,
    Evict,
    Patch,
    evicted_pod,
    merged,
)
from gpufrag.restarter.record import WAITING
from gpufrag.restarter.settings import RestartSettings
from restarter.fake_api import manifests
from restarter.fake_api.faults import CUT, CUT_AFTER, STORM, Fault
from restarter.fake_api.store import merge
from restarter.fake_api.world import SETTLE
from restarter.restarting import Scene, scene

Make = Callable[..., dict[str, Any]]
FAULTS = {"cut": CUT, "cut after": CUT_AFTER, "503": STORM, "429": Fault(429, {"Retry-After": "1"})}
CASES = [(make, fault) for make in manifests.ALL for fault in FAULTS if make is manifests.job or "cut" in fault]
TEXTS = st.text(max_size=3)
PATCHES = st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)
BODIES = st.dictionaries(TEXTS, PATCHES, max_size=3)


@given(BODIES, BODIES)
def test_where_both_patches_change_a_field_the_second_wins(one: dict[str, Any], other: dict[str, Any]) -> None:
    """And what a server makes of both, in one patch or in two, is the same."""
    assert merge({"kept": 1}, merged(one, other)) == merge(merge({"kept": 1}, one), other)


@given(BODIES, BODIES)
def test_patches_that_are_merged_are_left_as_they_were(one: dict[str, Any], other: dict[str, Any]) -> None:
    before = repr((one, other))
    merged(one, other)
    assert repr((one, other)) == before


@pytest.mark.parametrize(("make", "fault"), CASES, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_whichever_call_fails_the_restart_comes_to_its_end_once(make: Make, fault: str) -> None:
    """The receiver dies there, and another one goes on: from the owner alone it knows how far things are."""
    with scene(make()) as it:
        calls, pods = undisturbed(it)
        for number in range(1, calls + 1):
            it.again(make())
            made = it.api.world.store.pods_made
            it.api.faults.at(number, FAULTS[fault])
            with suppress(ClusterError):
                it.restart()
            it.go(it.target.rest(it.owner()))
            begun = PHASE in it.owner().annotations
            assert it.api.world.store.pods_made - made == (pods if begun else 0), f"call {number} of {calls}"


def undisturbed(it: Scene) -> tuple[int, int]:
    """The calls that a restart takes, and the pods that are made for it."""
    calls, made = it.api.faults.requests, it.api.world.store.pods_made
    it.restart()
    it.api.world.tick(SETTLE)
    return it.api.faults.requests - calls, it.api.world.store.pods_made - made


def test_two_receivers_restart_a_job_once() -> None:
    """Both have decided at the same moment of the owner: its version lets one of them through."""
    with scene(manifests.job()) as it:
        first, *_ = it.target.plan(it.resolved.owner, it.resolved.pod)
        assert isinstance(first, Patch)
        first.run(it.cluster, it.resolved.owner, {PHASE: "one"})
        with pytest.raises(Conflict):
            first.run(it.cluster, it.resolved.owner, {PHASE: "other"})
        assert it.owner().annotations[PHASE] == "one"


def test_memory_and_change_go_in_one_patch() -> None:
    with scene(manifests.job()) as it:
        Patch("suspend", {"spec": {"suspend": True}}).run(it.cluster, it.resolved.owner, {PHASE: "x", "b": None})
        (sent,) = it.api.sent("PATCH")
        body = json.loads(sent.body)
        assert body["spec"] == {"suspend": True}
        assert body["metadata"]["annotations"] == {PHASE: "x", "b": None}
        assert body["metadata"]["resourceVersion"] == it.resolved.owner.resource_version


def test_a_dry_run_of_every_step_changes_nothing() -> None:
    for make in manifests.ALL:
        with scene(make()) as it:
            before = it.owner()
            for step in it.target.plan(before, it.resolved.pod):
                if not isinstance(step, AwaitStopped):
                    step.run(it.cluster, before, {PHASE: "x"}, dry_run=True)
            assert it.owner().annotations == before.annotations
            assert it.owner().raw["metadata"]["generation"] == before.raw["metadata"]["generation"]
            assert it.pods() == {pod.uid for pod in it.target.pods(it.cluster, before)}


def test_an_eviction_that_another_pod_would_get_is_none() -> None:
    with scene(manifests.workflow()) as it:
        gone = replace(it.resolved.pod, uid="11111111-0000-4000-8000-000000000000")
        owner = Evict(gone).run(it.cluster, it.resolved.owner, {})
        assert evicted_pod(owner) == Pod("ml", gone.name, gone.uid)
        assert it.resolved.pod.uid in it.pods()


def test_a_conflict_over_the_very_pod_is_no_success() -> None:
    with scene(manifests.workflow()) as it:
        it.api.faults.on("POST", "/eviction", Fault(409))
        with pytest.raises(Conflict):
            Evict(it.resolved.pod).run(it.cluster, it.resolved.owner, {})


def test_a_command_that_still_waits_is_sent() -> None:
    with scene(manifests.volcano_job()) as it:
        it.api.faults.on("POST", "/commands", Fault(409))
        owner = Command(0).run(it.cluster, it.resolved.owner, {})
        assert owner.annotations["gpufrag.dev/commanded-at-version"] == "0"


def test_an_eviction_is_heard_where_the_pod_is_gone_or_on_its_way() -> None:
    with scene(manifests.leader_worker_set()) as it:
        pod = it.resolved.pod
        assert not Evict(pod).heard(it.cluster)
        assert Evict(replace(pod, uid="another")).heard(it.cluster)
        it.restart()
        assert Evict(pod).heard(it.cluster)


@pytest.mark.parametrize("make", [manifests.leader_worker_set, manifests.workflow, manifests.volcano_job])
def test_an_order_that_was_marked_and_not_given_is_not_given_by_another(make: Make) -> None:
    with scene(make()) as it:
        made, owner = it.api.world.store.pods_made, it.owner()
        (step,) = it.target.plan(owner, it.resolved.pod)
        mark = {PHASE: WAITING, **({EVICTED: f"{step.pod.name}/{step.pod.uid}"} if isinstance(step, Evict) else {})}
        if isinstance(step, Command):
            mark[COMMANDED] = str(step.version)
        Patch("mark").run(it.cluster, owner, mark)
        finisher = Finisher(it.cluster, {it.target.kind: it.target}, RestartSettings(poll=0.01), Clock())
        assert ended(finisher.finish(owner.ref)) is NOT_HEARD
        assert not {PHASE, EVICTED, COMMANDED} & set(it.owner().annotations)
        assert it.api.world.store.pods_made == made


def ended(steps: Generator[float, None, Result]) -> Result:
    while True:
        try:
            time.sleep(next(steps))
        except StopIteration as end:
            result: Result = end.value
            return result
