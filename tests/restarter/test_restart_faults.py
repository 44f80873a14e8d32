"""Faults, kills and delays at every call of a restart: no job stays suspended, none is restarted twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.restarter import metrics, reasons
from gpufrag.restarter.backend import Away, Conflict, Denied, TooMany
from gpufrag.restarter.checkpoint import Checkpoint
from gpufrag.restarter.completion import GIVE_UP_S, SETTLE_S
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import CLAIMED
from gpufrag.restarter.recovery import SEARCH_S
from gpufrag.restarter.settings import CheckpointSettings, RestarterConfig, RestartSettings
from restarter.memory_backend import Killed, fail_at
from restarter.worker_rig import LIVE, Rig

CLAIM_LASTS_S = 1300.0
HOLD_S = 30.0
BEFORE = [Away("503"), Away("503", 7.0), Conflict("409"), TooMany("429", 3.0), Denied("401")]
FAULTS = [*((error, False) for error in BEFORE), (Away("no answer"), True), (Conflict("409"), True)]
"""And whether the call was carried out; a Conflict then comes from a proxy that sent it twice."""
CALLS = len(Rig().send().go().backend.calls)
every_call = pytest.mark.parametrize("number", range(CALLS))
before_and_after = pytest.mark.parametrize("done", [False, True])


def assert_whole(rig: Rig) -> None:
    """Whatever happened, at most one restart was done, and it is complete."""
    assert not rig.backend.suspended
    assert rig.backend.suspensions <= 1
    assert rig.backend.job.generation <= 2
    assert rig.backend.record.phase is None
    assert rig.backend.record.count <= 1


def assert_untouched(rig: Rig) -> None:
    assert (rig.backend.suspensions, rig.backend.record.phase) == (0, None)


@every_call
@pytest.mark.parametrize(("error", "done"), FAULTS)
def test_one_failing_call_does_no_harm(number, error, done):
    rig = Rig()
    rig.backend.fault = fail_at(number, done, error)
    assert_whole(rig.send().go())


@before_and_after
@every_call
def test_own_bug_does_no_harm(number, done):
    rig = Rig()
    rig.backend.fault = fail_at(number, done, ZeroDivisionError("a bug"))
    rig.send().go()
    for seconds in (SEARCH_S, CLAIM_LASTS_S, SEARCH_S):
        rig.time.move(seconds)
        rig.go()
    assert_whole(rig)


@every_call
def test_outage_of_a_minute_only_delays(number):
    rig = Rig()

    def begin_the_outage(at, name, done):
        if at == number:
            rig.fail(seconds=60)
            raise Away("503")

    rig.backend.fault = begin_the_outage
    assert_whole(rig.send().go())
    assert rig.backend.suspensions == 1


@before_and_after
@every_call
def test_killed_restarter_is_completed_by_the_next(number, done):
    rig = Rig()
    rig.backend.fault = fail_at(number, done, Killed())
    assert rig.send().go_until_killed()
    after = rig.again().send().go()
    after.time.move(CLAIM_LASTS_S)
    assert_whole(after.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, CALLS), st.booleans()), min_size=2, max_size=5))
def test_restarters_killed_one_after_another(kills):
    rig = Rig()
    for number, done in kills:
        rig.backend.fault = fail_at(len(rig.backend.calls) + number, done, Killed())
        rig.send().go_until_killed()
        rig = rig.again()
    rig.heal().send().go().time.move(CLAIM_LASTS_S)
    assert_whole(rig.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2 * CALLS), st.booleans())
def test_two_restarters_with_one_alert_restart_once(turns, number, done):
    one = Rig()
    two = one.again().send()
    one.backend.fault = fail_at(number, done, Away("503"))
    one.send()
    for first in turns:
        (one if first else two).turn()
    one.go()
    two.go()
    assert_whole(one.go())
    assert one.backend.suspensions == 1


class Saves:
    """Saves at once, then calls `then`."""

    def __init__(self, then=lambda: None):
        self.then = then
        self.asked = self.released = 0

    def save(self, job, timeout_s):
        self.asked += 1
        yield 1.0
        self.then()
        return Checkpoint("All ranks saved.", saved=True, step=7, let_go=self._let_go)

    def _let_go(self):
        self.released += 1


def test_two_restarters_request_one_checkpoint():
    saves = Saves()
    one = Rig(checkpointer=saves).send()
    two = one.again().send()
    for _ in range(90):
        one.turn()
        two.turn()
    assert_whole(one)
    assert (saves.asked, one.backend.suspensions) == (1, 1)


def ends(*rigs: Rig) -> list[str]:
    return [outcome for rig in rigs for outcome in rig.outcomes if outcome.startswith(("restarted", "failed", "ended"))]


def together(one: Rig, turns: list[bool]) -> list[Rig]:
    """A second restarter searches for unfinished restarts all the time, and so takes part in the first's restart."""
    two = one.again()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("gpufrag.restarter.recovery.SEARCH_S", 5.0)
        for first in turns:
            (one if first else two).turn(3.0)
        return [one.go(), two.go()]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.booleans(), min_size=10, max_size=80))
def test_two_restarters_report_a_success_once(turns):
    both = together(Rig().send(), turns)
    assert ends(*both) == ["restarted restarted"]
    counted = [rig.metrics.value(metrics.ACTIONS, "fake", "restarted") or 0 for rig in both]
    assert (sum(counted), both[0].backend.suspensions) == (1, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=40, max_size=80))
def test_two_restarters_report_a_failure_once(turns):
    one = Rig(config=RestarterConfig(restart=RestartSettings(run_timeout=60.0))).send()
    one.backend.job.ready = False
    assert ends(*together(one, turns)) == ["failed not-running"]


@before_and_after
def test_success_is_reported_if_the_last_answer_is_lost(done):
    rig, lost = Rig().send(), []

    def lose(number, name, after):
        closing = name == "remember" and rig.backend.record.phase == ("waiting" if not after else None)
        if closing and after == done and not lost and rig.outcomes:
            lost.append(number)
            raise Away("503")

    rig.backend.fault = lose
    assert ends(rig.go()) == ["restarted restarted"]
    assert lost


@pytest.fixture
def suspended():
    rig = Rig().send()
    rig.turn()
    assert rig.backend.suspended
    return rig


def test_denied_start_is_retried_and_reported(suspended):
    suspended.backend.fault = fail_at(len(suspended.backend.calls), False, Denied("403"), times=7)
    assert_whole(suspended.go())
    assert "waiting forbidden" in suspended.outcomes
    assert suspended.outcomes[-1] == "restarted restarted"


def test_restart_without_access_ends_and_continues_later(suspended):
    """A deleted namespace, or a removed Role, must not block the restarts of all other jobs for ever."""
    suspended.fail("read", "state", "start", error=Denied("403"))
    began_s = suspended.time.steady_s
    suspended.until(lambda: suspended.outcomes[-1] == "failed given-up")
    assert suspended.time.steady_s - began_s < GIVE_UP_S + 70
    suspended.turn()
    assert suspended.metrics.value(metrics.IN_PROGRESS) == 0
    suspended.heal().time.move(SEARCH_S)
    assert suspended.go().outcomes[-2:] == ["taken-over unfinished", "restarted restarted"]
    assert_whole(suspended)


@pytest.mark.parametrize(
    ("backend", "job", "outcome", "text"),
    [
        ({"stuck": True}, {}, "failed not-stopped", ""),
        ({"confirms": False}, {}, "restarted restarted", ""),
        ({}, {"ready": False}, "failed not-running", "(pods)"),
        ({}, {"waits_for": "pod train-2: Unschedulable: 0/8"}, "ended waiting-for-resources", "Unschedulable: 0/8"),
    ],
    ids=["pods never end", "controller does not report", "pods are not ready", "no resources"],
)
def test_job_that_does_not_follow_is_started_once(backend, job, outcome, text):
    rig = Rig()
    vars(rig.backend).update(backend)
    vars(rig.backend.job).update(job)
    assert_whole(rig.send().go())
    assert rig.outcomes[-1] == outcome
    assert text in rig.backend.events[-1].text


def test_job_without_pods_waits_briefly_for_its_controller():
    rig = Rig()
    rig.backend.confirms = False
    rig.send().until(lambda: rig.backend.job.generation == 2)
    assert SETTLE_S <= rig.time.steady_s - 100 < SETTLE_S + 30


def test_waiting_for_resources_is_no_failure():
    rig = Rig()
    rig.backend.job.waits_for = "0/8 nodes are available"
    rig.send().go()
    assert rig.outcomes[:2] == ["started started", "waiting waiting-for-resources"]
    assert "gpufrag.dev/circuit-failures" not in rig.backend.circuit


def test_job_suspended_by_a_person_stays_suspended():
    rig = Rig().send()
    rig.until(lambda: rig.backend.job.generation == 2 and not rig.backend.suspended)
    rig.backend.job.suspended = True
    rig.backend.job.version += 1
    for restarter in (rig, rig.again()):
        assert restarter.go().backend.suspended


@pytest.mark.parametrize(
    ("change", "outcome"), [("gone", "deleted"), ("deleting", "deleted"), ("finished", "finished")]
)
def test_job_that_ends_during_its_restart(suspended, change, outcome):
    if change == "gone":
        del suspended.backend.jobs["train"]
    else:
        setattr(suspended.backend.job, change, True)
    assert suspended.go().outcomes[-1] == f"ended {outcome}"


def saved_then_away(seconds: float, *names: str) -> tuple[Rig, Saves]:
    """An outage follows the checkpoint."""
    saves = Saves()
    rig = Rig(checkpointer=saves, config=RestarterConfig(checkpoint=CheckpointSettings(hold=HOLD_S)))
    saves.then = lambda: rig.fail(*names, seconds=seconds)
    return rig.send(), saves


@pytest.mark.parametrize("names", [(), ("stop",)])
def test_expired_checkpoint_restarts_nothing(names):
    rig, saves = saved_then_away(4 * HOLD_S, *names)
    assert rig.go().outcomes == ["started started", "refused checkpoint-expired"]
    assert_untouched(rig)
    assert (saves.released, rig.backend.record.count) == (1, 1)  # it counts for the cooldown


def test_fresh_checkpoint_survives_a_short_outage():
    rig, saves = saved_then_away(HOLD_S / 3)
    assert rig.go().outcomes == ["started started", "restarted restarted"]
    assert saves.released == 0


def test_claim_is_removed_after_a_long_outage():
    rig, _ = saved_then_away(10 * LIVE.max_wait)
    assert rig.go().outcomes == ["started started", "refused checkpoint-expired"]
    rig.heal()
    for _ in range(2):
        rig.time.move(CLAIM_LASTS_S)
        rig.go()
    assert_untouched(rig)


def test_stop_whose_answer_was_lost_is_followed_by_a_start():
    rig, saves = saved_then_away(0.0)

    def lose_answers():
        ends_s = rig.time.steady_s + 3 * HOLD_S

        def fault(number, name, done):
            if rig.time.steady_s < ends_s and (rig.backend.suspended or (name == "stop" and done)):
                raise Away("no answer")

        rig.backend.fault = fault

    saves.then = lose_answers
    assert rig.go().outcomes[-1] == "restarted restarted"
    assert (rig.backend.suspensions, rig.backend.suspended) == (1, False)


def test_restart_that_cannot_be_counted_is_given_up(caplog):
    """The circuit's state can be read and not written, as on a full disk."""
    rig = Rig(replace(LIVE, max_wait=60.0)).send().fail("save")
    assert rig.go().outcomes == ["refused circuit-unavailable"]
    assert rig.time.steady_s - 100 <= 70
    assert_untouched(rig)
    assert "a request of a restart keeps failing" in caplog.text
    rig.heal().time.move(600)
    assert_untouched(rig.go())


def rechecked(rig: Rig) -> list[float]:
    """The alert fires at the first recheck only. Returns the times of the rechecks."""
    asked = []

    def check(alert):
        asked.append(rig.time.steady_s)
        return Refused(reasons.NOT_FIRING) if len(asked) > 1 else None

    rig.worker.recheck = check
    return asked


def test_alert_that_ends_while_the_count_is_retried_restarts_nothing():
    rig = Rig().fail("save", seconds=20).send()
    asked = rechecked(rig)
    assert rig.go().outcomes == ["refused not-firing"]
    assert len(asked) == 2
    assert_untouched(rig)


def test_alert_that_ends_during_an_outage_restarts_nothing():
    rig, saves = saved_then_away(HOLD_S / 3)
    rechecked(rig)
    assert rig.go().outcomes == ["started started", "refused not-firing"]
    assert_untouched(rig)
    assert saves.released == 1


def test_alert_is_rechecked_once_without_a_wait():
    rig = Rig().send()
    asked = rechecked(rig)
    assert rig.go().outcomes[-1] == "restarted restarted"
    assert len(asked) == 1


def end(rig: Rig) -> Rig:
    """Stop the worker as SIGTERM does."""
    rig.worker.stop()
    rig.worker.run()
    return rig


def test_exit_removes_the_claim():
    rig, _ = saved_then_away(math.inf)
    rig.turn()
    assert rig.backend.record.phase == CLAIMED
    assert_untouched(end(rig))
    assert rig.outcomes == []


def test_exit_lets_waiting_ranks_go():
    rig, saves = saved_then_away(HOLD_S)
    end(rig.until(lambda: rig.outcomes == ["started started"]))
    assert saves.released == 1
    assert rig.backend.record.phase == CLAIMED  # the backend is away


def test_exit_leaves_a_suspended_job_to_the_next(suspended):
    assert end(suspended).backend.suspended
    assert suspended.again().go().outcomes == ["taken-over unfinished", "restarted restarted"]
