"""The policy: what must hold of every decision, and a case for each reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter import reasons
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.kubernetes.cluster import PHASE, Owner, Pod
from gpufrag.restarter.policy import CHECKS, OPT_IN, PAUSE, Facts, Fleet, Restart, cool_down_s, decide
from gpufrag.restarter.reasons import Reason, Skip
from gpufrag.restarter.record import AT, DAY_S, HISTORY, STOPPED, USELESS, Memory
from gpufrag.restarter.settings import PolicySettings

NOW_S = 1_800_000_000.0
SETTINGS = PolicySettings(dry_run=False, namespaces=("ml",))
LABELS = {"gpufrag_action": "restart", "namespace": "ml", "pod": "train-0", "alertname": "X"}
ALERT = Alert("firing", LABELS, {}, "cafe", NOW_S - 300)
OWNER = Owner("batch/v1", "Job", "ml", "train", "u", "1", {OPT_IN: "true"})
GOOD = Facts(ALERT, OWNER, Pod("ml", "train-0", "p"), NOW_S)


def remembering(memory: Memory, **changes: Any) -> Facts:
    """GOOD, of a job that remembers this."""
    kept = {name: value for name, value in memory.annotations().items() if value is not None}
    return replace(GOOD, owner=replace(OWNER, annotations={OPT_IN: "true", **kept}), **changes)


def annotated(**annotations: str) -> Facts:
    return replace(GOOD, owner=replace(OWNER, annotations={OPT_IN: "true", **annotations}))


def restarted(*ages_s: float, **changes: Any) -> Facts:
    """GOOD, of a job that was restarted so long ago."""
    history = tuple(sorted(NOW_S - age for age in ages_s))
    return remembering(Memory(at_s=history[-1], history_s=history), **changes)


CASES: list[tuple[Reason | None, Facts]] = [
    (None, GOOD),
    (reasons.NOT_ASKED, replace(GOOD, alert=replace(ALERT, labels={**LABELS, "gpufrag_action": "page"}))),
    (reasons.RESOLVED, replace(GOOD, alert=replace(ALERT, status="resolved"))),
    (reasons.NO_POD, replace(GOOD, alert=replace(ALERT, labels={**LABELS, "pod": ""}))),
    (reasons.NAMESPACE, replace(GOOD, owner=replace(OWNER, namespace="kube-system"))),
    (reasons.FINISHED, replace(GOOD, owner=replace(OWNER, finished=True))),
    (reasons.DELETING, replace(GOOD, owner=replace(OWNER, deleting=True))),
    (reasons.NOT_OPTED_IN, replace(GOOD, owner=replace(OWNER, annotations={}))),
    (reasons.NOT_OPTED_IN, replace(GOOD, owner=replace(OWNER, annotations={OPT_IN: "yes"}))),
    (reasons.PAUSED, annotated(**{PAUSE: ""})),
    (None, annotated(**{PAUSE: "false"})),
    (reasons.UNDER_WAY, annotated(**{PHASE: "anything"})),
    (reasons.STOPPED, annotated(**{STOPPED: "no use"})),
    (reasons.CLOCK, restarted(-3600.0)),
    (reasons.COOL_DOWN, restarted(-60.0)),
    (reasons.COOL_DOWN, restarted(1799.0)),
    (None, restarted(1800.0)),
    (reasons.COOL_DOWN, restarted(3599.0, 40000.0)),
    (None, restarted(3600.0, 40000.0)),
    (reasons.COOL_DOWN, replace(restarted(90000.0), own_age_s=60.0, own_day=1)),
    (reasons.BUDGET, restarted(80000.0, 80001.0, 80002.0, 80003.0)),
    (reasons.BUDGET, replace(GOOD, own_day=4)),
    (reasons.STOPPED, remembering(Memory(at_s=NOW_S - 3800, history_s=(NOW_S - 3800,), useless=1))),
    (None, remembering(Memory(at_s=NOW_S - 4000, history_s=(NOW_S - 4000,), useless=1))),
    (reasons.CIRCUIT, replace(GOOD, fleet=Fleet(open_because="three failed"))),
    (reasons.IN_FLIGHT, replace(GOOD, fleet=Fleet(in_flight=1))),
    (reasons.HOURLY, replace(GOOD, fleet=Fleet(begun_in_hour=10))),
    (reasons.WAITED, replace(GOOD, waited_s=901.0)),
]


@pytest.mark.parametrize(("reason", "facts"), CASES)
def test_case(reason: Reason | None, facts: Facts) -> None:
    decision = decide(facts, SETTINGS)
    assert (decision.reason if isinstance(decision, Skip) else None) == reason


@pytest.mark.parametrize(("labels", "foreign"), [({}, True), ({"cluster": "b"}, True), ({"cluster": "a"}, False)])
def test_an_alert_of_another_cluster_is_foreign(labels: dict[str, str], foreign: bool) -> None:
    facts = replace(GOOD, alert=replace(ALERT, labels={**LABELS, **labels}))
    decision = decide(facts, replace(SETTINGS, alert_labels={"cluster": "a"}))
    assert (isinstance(decision, Skip) and decision.reason == reasons.FOREIGN) == foreign


def test_switched_off_is_switched_off() -> None:
    decision = decide(GOOD, replace(SETTINGS, enabled=False))
    assert isinstance(decision, Skip)
    assert decision.reason == reasons.DISABLED


def test_nothing_is_allowed_by_default() -> None:
    assert isinstance(decide(GOOD, PolicySettings()), Skip)
    assert PolicySettings().dry_run


def test_a_restart_counts_those_before_it_that_did_not_help() -> None:
    assert decide(restarted(3700.0), SETTINGS) == Restart(1)
    assert decide(restarted(9000.0), SETTINGS) == Restart(0)


TIMES = st.floats(-2 * DAY_S, 2 * DAY_S).map(lambda ago: float(int(NOW_S - ago)))
MEMORIES = st.builds(
    Memory,
    phase=st.none() | st.sampled_from(["claimed", "waiting"]),
    at_s=st.none() | TIMES,
    history_s=st.lists(TIMES, max_size=6).map(lambda times: tuple(sorted(times))),
    useless=st.integers(0, 3),
    stopped=st.none() | st.just("no use"),
)
POLICIES = st.builds(
    PolicySettings,
    enabled=st.booleans(),
    namespaces=st.sampled_from([(), ("ml",), ("other",)]),
    cool_down=st.floats(60, DAY_S),
    max_per_day=st.integers(1, 6),
    max_in_flight=st.integers(1, 3),
    max_per_hour=st.integers(1, 12),
    useless_restarts=st.integers(1, 3),
)
CHANGES = st.fixed_dictionaries(
    {
        "fleet": st.builds(Fleet, st.integers(0, 4), st.integers(0, 15), st.none() | st.just("open")),
        "waited_s": st.floats(0, 2000),
        "own_age_s": st.none() | st.floats(0, DAY_S),
        "own_day": st.integers(0, 6),
        "now_s": TIMES,
    }
)


@given(MEMORIES, POLICIES, CHANGES)
def test_who_is_restarted_had_every_right_to_be(
    memory: Memory, settings: PolicySettings, changes: dict[str, Any]
) -> None:
    facts = remembering(memory, **changes)
    if isinstance(decide(facts, settings), Skip):
        return
    assert settings.enabled
    assert settings.namespaces == ("ml",)
    assert memory.phase is None
    assert memory.stopped is None
    assert facts.fleet.open_because is None
    assert facts.fleet.in_flight < settings.max_in_flight
    assert facts.fleet.begun_in_hour < settings.max_per_hour
    assert max(len(memory.within_day(facts.now_s)), facts.own_day) < settings.max_per_day


@given(MEMORIES, POLICIES, CHANGES)
def test_no_clock_however_set_shortens_the_cool_down(
    memory: Memory, settings: PolicySettings, changes: dict[str, Any]
) -> None:
    facts = remembering(memory, **changes)
    if isinstance(decide(facts, settings), Restart):
        assert facts.own_age_s is None or facts.own_age_s >= settings.cool_down
        assert memory.latest_s is None or facts.now_s - memory.latest_s >= settings.cool_down


@given(MEMORIES, POLICIES, CHANGES, st.integers(0, len(CHECKS) - 1))
def test_each_check_objects_for_itself(
    memory: Memory, settings: PolicySettings, changes: dict[str, Any], number: int
) -> None:
    facts = remembering(memory, **changes)
    if CHECKS[number](facts, settings) is not None:
        assert isinstance(decide(facts, settings), Skip)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_cool_down_only_grows_and_ends_within_a_day(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert SETTINGS.cool_down <= cool_down_s(less, SETTINGS) <= cool_down_s(more, SETTINGS) <= DAY_S


@given(st.dictionaries(st.sampled_from([PHASE, AT, HISTORY, USELESS, STOPPED, PAUSE, OPT_IN]), st.text()))
def test_any_annotations_lead_to_a_decision(annotations: dict[str, str]) -> None:
    decision = decide(replace(GOOD, owner=replace(OWNER, annotations=annotations)), SETTINGS)
    assert isinstance(decision, Skip) or annotations[OPT_IN] == "true"
