"""The policy: a case for each reason, and what holds of every approval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter import reasons
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.backend import Job
from gpufrag.restarter.policy import CHECKS, Approved, Facts, Fleet, cooldown_s, decide, format_wait
from gpufrag.restarter.reasons import Reason, Refused
from gpufrag.restarter.record import DAY_S, OPT_IN, PAUSE, PHASE, STOPPED, RestartRecord
from gpufrag.restarter.settings import PolicySettings

NOW_S = 1_800_000_000.0
SETTINGS = PolicySettings(dry_run=False)
LABELS = {"gpufrag_action": "restart", "namespace": "ml", "pod": "train-0", "alertname": "X"}
ALERT = Alert("firing", LABELS, {}, "cafe", NOW_S - 300)
JOB = Job("fake", "job train", "u", {OPT_IN: "true"}, "")
GOOD = Facts(ALERT, JOB, NOW_S)


def recorded(record: RestartRecord, **changes: Any) -> Facts:
    kept = {name: value for name, value in record.annotations().items() if value is not None}
    return replace(GOOD, job=replace(JOB, annotations={OPT_IN: "true", **kept}), **changes)


def annotated(**annotations: str) -> Facts:
    return replace(GOOD, job=replace(JOB, annotations={OPT_IN: "true", **annotations}))


def restarted(*ages_s: float, **changes: Any) -> Facts:
    history = tuple(sorted(NOW_S - age for age in ages_s))
    return recorded(RestartRecord(at_s=history[-1], history_s=history), **changes)


def ineffective(age_s: float, count: int, starts_at_s: float | None = ALERT.starts_at_s) -> Facts:
    facts = recorded(RestartRecord(at_s=NOW_S - age_s, history_s=(NOW_S - age_s,), ineffective=count))
    return replace(facts, alert=replace(ALERT, starts_at_s=starts_at_s))


CASES: list[tuple[Reason | None, Facts]] = [
    (None, GOOD),
    (reasons.NO_RESTART_LABEL, replace(GOOD, alert=replace(ALERT, labels={**LABELS, "gpufrag_action": "page"}))),
    (reasons.RESOLVED, replace(GOOD, alert=replace(ALERT, status="resolved"))),
    (reasons.JOB_FINISHED, replace(GOOD, job=replace(JOB, finished=True))),
    (reasons.JOB_DELETING, replace(GOOD, job=replace(JOB, finished=True, deleting=True))),
    (reasons.NOT_OPTED_IN, replace(GOOD, job=replace(JOB, annotations={}))),
    (reasons.NOT_OPTED_IN, replace(GOOD, job=replace(JOB, annotations={OPT_IN: "yes"}))),
    (reasons.PAUSED, annotated(**{PAUSE: ""})),
    (None, annotated(**{PAUSE: "false"})),
    (reasons.RESTART_IN_PROGRESS, annotated(**{PHASE: "anything"})),
    (reasons.INEFFECTIVE, annotated(**{STOPPED: "no use"})),
    (reasons.CLOCK_SKEW, restarted(-301.0)),
    (reasons.COOLDOWN, restarted(-300.0)),
    (reasons.COOLDOWN, restarted(1799.0)),
    (None, restarted(1800.0)),
    (reasons.COOLDOWN, restarted(3599.0, 40000.0)),
    (None, restarted(3600.0, 40000.0)),
    (reasons.COOLDOWN, replace(restarted(90000.0), own_age_s=60.0, own_day=1)),
    (None, replace(restarted(90000.0), own_age_s=1800.0, own_day=1)),
    (reasons.DAILY_BUDGET, restarted(80000.0, 80001.0, 80002.0, 80003.0)),
    (None, restarted(80000.0, 80001.0, 80002.0, 86400.0)),
    (reasons.DAILY_BUDGET, replace(GOOD, own_day=4)),
    (None, replace(GOOD, own_day=3)),
    (reasons.INEFFECTIVE, ineffective(3900.0, 1)),
    (None, ineffective(3901.0, 1)),
    (reasons.INEFFECTIVE, ineffective(3600.0, 1, starts_at_s=None)),
    (None, ineffective(3601.0, 1, starts_at_s=None)),
    (None, ineffective(3900.0, 0)),
    (reasons.CIRCUIT_OPEN, replace(GOOD, fleet=Fleet(circuit_open="three failed"))),
    (reasons.CONCURRENCY_LIMIT, replace(GOOD, fleet=Fleet(in_progress=1))),
    (reasons.HOURLY_LIMIT, replace(GOOD, fleet=Fleet(begun_in_hour=10))),
    (None, replace(GOOD, fleet=Fleet(begun_in_hour=9))),
    (reasons.ALERT_EXPIRED, replace(GOOD, waited_s=901.0)),
    (None, replace(GOOD, waited_s=900.0)),
]


@pytest.mark.parametrize(("reason", "facts"), CASES)
def test_policy_gives_the_expected_reason(reason, facts):
    decision = decide(facts, SETTINGS)
    assert (decision.reason if isinstance(decision, Refused) else None) == reason


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (restarted(1799.0), "the last restart was too recent (1 s left)"),
        (restarted(600.0), "the last restart was too recent (20 min left)"),
        (replace(GOOD, own_day=4), "(4 of 4)"),
        (ineffective(3600.0, 1), "(the alert fired again within 60 min of 2 restarts)"),
        (annotated(**{STOPPED: "no use"}), "(no use)"),
        (annotated(**{PHASE: "claimed"}), "(claimed)"),
        (replace(GOOD, fleet=Fleet(circuit_open="three failed")), "(three failed)"),
        (replace(GOOD, waited_s=960.0), "(16 min)"),
    ],
)
def test_refusal_shows_the_figures(facts, text):
    assert text in str(decide(facts, SETTINGS))


@pytest.mark.parametrize(("labels", "refused"), [({}, True), ({"cluster": "b"}, True), ({"cluster": "a"}, False)])
def test_alert_without_the_required_label_is_refused(labels, refused):
    facts = replace(GOOD, alert=replace(ALERT, labels={**LABELS, **labels}))
    decision = decide(facts, replace(SETTINGS, alert_labels={"cluster": "a"}))
    assert (isinstance(decision, Refused) and decision.reason == reasons.WRONG_ALERT_LABELS) == refused


def test_disabled_policy_refuses_everything():
    decision = decide(GOOD, replace(SETTINGS, enabled=False))
    assert isinstance(decision, Refused)
    assert decision.reason == reasons.DISABLED


def test_default_settings_restart_nothing():
    assert (PolicySettings().dry_run, PolicySettings().namespaces) == (True, ())


@pytest.mark.parametrize(("age_s", "before", "count"), [(3800.0, 0, 1), (9000.0, 1, 0)])
def test_approval_counts_restarts_that_did_not_help(age_s, before, count):
    assert decide(ineffective(age_s, before), SETTINGS) == Approved(count)


@pytest.mark.parametrize(
    ("restarts", "seconds"), [(0, 1800.0), (1, 1800.0), (2, 3600.0), (3, 7200.0), (7, 86400.0), (10**6, 86400.0)]
)
def test_cooldown_doubles_up_to_a_day(restarts, seconds):
    assert cooldown_s(restarts, SETTINGS) == seconds


def test_cooldown_above_a_day_is_kept():
    assert cooldown_s(5, replace(SETTINGS, cooldown=2 * DAY_S)) == 2 * DAY_S


def test_waits_are_minutes_from_one_minute_on():
    assert [format_wait(seconds) for seconds in (-1.0, 59.0, 60.0, 600.0)] == ["0 s", "59 s", "1 min", "10 min"]


TIMES = st.floats(-2 * DAY_S, 2 * DAY_S).map(lambda ago: float(int(NOW_S - ago)))
RECORDS = st.builds(
    RestartRecord,
    phase=st.none() | st.sampled_from(["claimed", "waiting"]),
    at_s=st.none() | TIMES,
    history_s=st.lists(TIMES, max_size=6).map(lambda times: tuple(sorted(times))),
    ineffective=st.integers(0, 3),
    stopped=st.none() | st.just("no use"),
)
POLICIES = st.builds(
    PolicySettings,
    enabled=st.booleans(),
    cooldown=st.floats(60, DAY_S),
    max_per_day=st.integers(1, 6),
    max_in_flight=st.integers(1, 3),
    max_per_hour=st.integers(1, 12),
    max_ineffective_restarts=st.integers(1, 3),
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


@given(RECORDS, POLICIES, CHANGES)
def test_approved_job_meets_every_limit(record, settings, changes):
    facts = recorded(record, **changes)
    if isinstance(decide(facts, settings), Refused):
        return
    assert settings.enabled
    assert (record.phase, record.stopped, facts.fleet.circuit_open) == (None, None, None)
    assert facts.fleet.in_progress < settings.max_in_flight
    assert facts.fleet.begun_in_hour < settings.max_per_hour
    assert max(len(record.within_day(facts.now_s)), facts.own_day) < settings.max_per_day
    assert facts.own_age_s is None or facts.own_age_s >= settings.cooldown
    assert record.latest_s is None or facts.now_s - record.latest_s >= settings.cooldown


@given(RECORDS, POLICIES, CHANGES, st.integers(0, len(CHECKS) - 1))
def test_every_check_can_refuse(record, settings, changes, number):
    facts = recorded(record, **changes)
    if CHECKS[number](facts, settings) is not None:
        assert isinstance(decide(facts, settings), Refused)


@given(st.dictionaries(st.sampled_from([*RestartRecord().annotations(), PAUSE, OPT_IN]), st.text()))
def test_any_annotations_give_a_decision(annotations):
    decision = decide(replace(GOOD, job=replace(JOB, annotations=annotations)), SETTINGS)
    assert isinstance(decision, Refused) or annotations[OPT_IN] == "true"
