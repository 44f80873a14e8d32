"""Faults, kills and delays at every call of a restart: no job stays suspended, none is restarted twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.restarter import metrics, reasons
from gpufrag.restarter.backend import Away, BackendError, Conflict, Denied, Job, TooMany
from gpufrag.restarter.checkpoint import Checkpoint, Saving
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import CLAIMED
from gpufrag.restarter.recovery import SEARCH_S
from gpufrag.restarter.restart import GIVE_UP_S, SETTLE_S
from gpufrag.restarter.settings import CheckpointSettings, RestarterConfig, RestartSettings
from restarter.memory_backend import Killed, fail_at
from restarter.worker_rig import LIVE, Rig

CLAIM_LASTS_S = 1300.0
BEFORE = [Away("503"), Away("503", 7.0), Conflict("409"), TooMany("429", 3.0), Denied("401")]
FAULTS = [*((error, False) for error in BEFORE), (Away("no answer"), True), (Conflict("409"), True)]
"""And whether the call was carried out; a Conflict then comes from a proxy that sent it twice."""
CALLS = len(Rig().send().go().backend.calls)


def assert_whole(rig: Rig) -> None:
    """Whatever happened, at most one restart was done, and it is complete."""
    assert not rig.backend.suspended
    assert rig.backend.suspensions <= 1
    assert rig.backend.job.generation <= 2
    assert rig.backend.record.phase is None
    assert rig.backend.record.count <= 1


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize(("error", "done"), FAULTS)
def test_one_failing_call_does_no_harm(number: int, error: BackendError, done: bool) -> None:
    rig = Rig()
    rig.backend.fault = fail_at(number, done, error)
    assert_whole(rig.send().go())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(CALLS))
def test_own_bug_does_no_harm(number: int, done: bool) -> None:
    rig = Rig()
    rig.backend.fault = fail_at(number, done, ZeroDivisionError("a bug"))
    rig.send().go()
    for seconds in (SEARCH_S, CLAIM_LASTS_S, SEARCH_S):
        rig.time.move(seconds)
        rig.go()
    assert_whole(rig)


@pytest.mark.parametrize("number", range(CALLS))
def test_outage_of_a_minute_only_delays(number: int) -> None:
    rig = Rig()
    end: list[float] = []

    def away(at: int, name: str, done: bool) -> None:
        if at == number:
            end.append(rig.time.steady_s + 60)
        if end and rig.time.steady_s < end[0]:
            raise Away("503")

    rig.backend.fault = away
    assert_whole(rig.send().go())
    assert rig.backend.suspensions == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(CALLS))
def test_killed_restarter_is_completed_by_the_next(number: int, done: bool) -> None:
    rig = Rig()
    rig.backend.fault = fail_at(number, done, Killed())
    assert rig.send().go_until_killed()
    after = rig.again().send().go()
    after.time.move(CLAIM_LASTS_S)
    assert_whole(after.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, CALLS), st.booleans()), min_size=2, max_size=5))
def test_restarters_killed_one_after_another(kills: list[tuple[int, bool]]) -> None:
    rig = Rig()
    for number, done in kills:
        rig.backend.fault = fail_at(len(rig.backend.calls) + number, done, Killed())
        rig.send().go_until_killed()
        rig = rig.again()
    rig.backend.fault = lambda number, name, done: None
    rig.send().go().time.move(CLAIM_LASTS_S)
    assert_whole(rig.go())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2 * CALLS), st.booleans())
def test_two_restarters_with_one_alert_restart_once(turns: list[bool], number: int, done: bool) -> None:
    one = Rig()
    two = one.again()
    one.backend.fault = fail_at(number, done, Away("503"))
    one.send()
    two.send()
    for first in turns:
        (one if first else two).turn()
    one.go()
    two.go()
    assert_whole(one.go())
    assert one.backend.suspensions == 1


class Saves:
    """Saves at once, then calls `then`."""

    def __init__(self) -> None:
        self.then: Callable[[], None] = lambda: None
        self.asked = self.let_go = 0

    def save(self, job: Job, timeout_s: float) -> Saving:
        self.asked += 1
        yield 1.0
        self.then()
        return Checkpoint("All ranks saved.", saved=True, step=7, let_go=self._let_go)

    def _let_go(self) -> None:
        self.let_go += 1


def test_two_restarters_request_one_checkpoint() -> None:
    saves = Saves()
    one = Rig(checkpointer=saves)
    two = one.again()
    one.send()
    two.send()
    for _ in range(90):
        one.turn()
        two.turn()
    assert_whole(one)
    assert (saves.asked, one.backend.suspensions) == (1, 1)


def ends(*rigs: Rig) -> list[str]:
    return [outcome for rig in rigs for outcome in rig.outcomes if outcome.startswith(("restarted", "failed", "ended"))]


def together(one: Rig, two: Rig, turns: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second searches for unfinished restarts at nearly every turn, and so takes part in the first's restart."""
    monkeypatch.setattr("gpufrag.restarter.recovery.SEARCH_S", 5.0)
    for first in turns:
        (one if first else two).turn(3.0)
    one.go()
    two.go()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.booleans(), min_size=10, max_size=80))
def test_two_restarters_report_a_success_once(turns: list[bool]) -> None:
    one = Rig().send()
    two = one.again()
    with pytest.MonkeyPatch.context() as monkeypatch:
        together(one, two, turns, monkeypatch)
    assert ends(one, two) == ["restarted restarted"]
    counted = [rig.metrics.value(metrics.ACTIONS, "fake", "restarted") or 0 for rig in (one, two)]
    assert (sum(counted), one.backend.suspensions) == (1, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=40, max_size=80))
def test_two_restarters_report_a_failure_once(turns: list[bool]) -> None:
    one = Rig(config=RestarterConfig(restart=RestartSettings(run_timeout=60.0)))
    one.backend.job.ready = False
    two = one.send().again()
    with pytest.MonkeyPatch.context() as monkeypatch:
        together(one, two, turns, monkeypatch)
    assert ends(one, two) == ["failed not-running"]


@pytest.mark.parametrize("done", [False, True])
def test_success_is_reported_if_the_last_answer_is_lost(done: bool) -> None:
    rig = Rig().send()
    lost: list[int] = []

    def lose(number: int, name: str, after: bool) -> None:
        closing = name == "remember" and rig.backend.record.phase == ("waiting" if not after else None)
        if closing and after == done and not lost and rig.outcomes:
            lost.append(number)
            raise Away("503")

    rig.backend.fault = lose
    assert ends(rig.go()) == ["restarted restarted"]
    assert lost


def suspended_then(fault: Callable[[Rig], Callable[[int, str, bool], None]]) -> Rig:
    rig = Rig().send()
    rig.turn()
    assert rig.backend.suspended
    rig.backend.fault = fault(rig)
    return rig


def test_denied_start_is_retried_and_reported() -> None:
    rig = suspended_then(lambda rig: fail_at(len(rig.backend.calls), False, Denied("403"), times=7))
    assert_whole(rig.go())
    assert "waiting forbidden" in rig.outcomes
    assert rig.outcomes[-1] == "restarted restarted"


def test_restart_without_access_ends_and_continues_later() -> None:
    """A deleted namespace, or a removed Role, must not block the restarts of all other jobs for ever."""
    rig = suspended_then(lambda rig: lambda number, name, done: _deny(name in ("read", "state", "start")))
    began_s = rig.time.steady_s
    for _ in range(200):
        rig.turn()
        if "failed given-up" in rig.outcomes:
            break
    assert rig.outcomes[-1] == "failed given-up"
    assert rig.time.steady_s - began_s < GIVE_UP_S + 70
    assert rig.metrics.value(metrics.IN_PROGRESS) == 0
    rig.backend.fault = lambda number, name, done: None
    rig.time.move(SEARCH_S)
    assert rig.go().outcomes[-2:] == ["taken-over unfinished", "restarted restarted"]
    assert_whole(rig)


def _deny(denied: bool) -> None:
    if denied:
        raise Denied("403")


def test_pods_that_never_end_do_not_keep_a_job_suspended() -> None:
    rig = Rig()
    rig.backend.stuck = True
    assert_whole(rig.send().go())
    assert rig.outcomes[-1] == "failed not-stopped"


def test_job_without_pods_starts_without_its_controllers_report() -> None:
    rig = Rig()
    rig.backend.confirms = False
    began_s = rig.time.steady_s
    assert_whole(rig.send().go())
    assert rig.outcomes[-1] == "restarted restarted"
    assert SETTLE_S <= rig.time.steady_s - began_s < SETTLE_S + 30


def test_pods_that_are_not_ready_are_reported_and_not_restarted_again() -> None:
    rig = Rig()
    rig.backend.job.ready = False
    assert_whole(rig.send().go())
    assert rig.outcomes[-1] == "failed not-running"
    assert "(pods)" in rig.backend.events[-1].text


def test_waiting_for_resources_is_no_failure() -> None:
    rig = Rig()
    rig.backend.job.waits_for = "pod train-2: Unschedulable: 0/8 nodes are available"
    assert_whole(rig.send().go())
    assert rig.outcomes[:2] == ["started started", "waiting waiting-for-resources"]
    assert rig.outcomes[-1] == "ended waiting-for-resources"
    assert "0/8 nodes are available" in rig.backend.events[-1].text
    assert rig.backend.circuit is not None
    assert "gpufrag.dev/circuit-failures" not in rig.backend.circuit


def test_job_suspended_by_a_person_after_the_restart_stays_suspended() -> None:
    rig = Rig().send()
    while not (rig.backend.job.generation == 2 and not rig.backend.suspended):
        rig.turn()
    rig.backend.job.suspended = True
    rig.backend.job.version += 1
    rig.go()
    assert rig.backend.suspended
    rig.again().go()
    assert rig.backend.suspended


@pytest.mark.parametrize(
    ("change", "outcome"), [("gone", "deleted"), ("deleting", "deleted"), ("finished", "finished")]
)
def test_job_that_ends_during_its_restart(change: str, outcome: str) -> None:
    rig = Rig().send()
    rig.turn()
    if change == "gone":
        del rig.backend.jobs["train"]
    else:
        setattr(rig.backend.job, change, True)
    assert rig.go().outcomes[-1] == f"ended {outcome}"


HOLD_S = 30.0
CONFIG = RestarterConfig(checkpoint=CheckpointSettings(hold=HOLD_S))


def away(rig: Rig, seconds: float, *names: str) -> None:
    ends_s = rig.time.steady_s + seconds

    def fault(number: int, name: str, done: bool) -> None:
        if rig.time.steady_s < ends_s and (not names or name in names):
            raise Away("503")

    rig.backend.fault = fault


def saved_then_away(seconds: float, *names: str) -> tuple[Rig, Saves]:
    saves = Saves()
    rig = Rig(checkpointer=saves, config=CONFIG)
    saves.then = lambda: away(rig, seconds, *names)
    return rig.send(), saves


@pytest.mark.parametrize("names", [(), ("stop",)])
def test_expired_checkpoint_restarts_nothing(names: tuple[str, ...]) -> None:
    rig, saves = saved_then_away(4 * HOLD_S, *names)
    assert rig.go().outcomes == ["started started", "refused checkpoint-expired"]
    assert (rig.backend.suspensions, rig.backend.record.phase, saves.let_go) == (0, None, 1)
    assert rig.backend.record.count == 1  # for the cooldown


def test_fresh_checkpoint_survives_a_short_outage() -> None:
    rig, saves = saved_then_away(HOLD_S / 3)
    assert rig.go().outcomes == ["started started", "restarted restarted"]
    assert saves.let_go == 0


def test_claim_is_removed_after_a_long_outage() -> None:
    rig, _ = saved_then_away(10 * LIVE.max_wait)
    assert rig.go().outcomes == ["started started", "refused checkpoint-expired"]
    rig.backend.fault = lambda number, name, done: None
    for _ in range(2):
        rig.time.move(CLAIM_LASTS_S)
        rig.go()
    assert (rig.backend.suspensions, rig.backend.record.phase) == (0, None)


def test_stop_whose_answer_was_lost_is_followed_by_a_start() -> None:
    rig = Rig(checkpointer=(saves := Saves()), config=CONFIG)

    def lose_answers() -> None:
        ends_s = rig.time.steady_s + 3 * HOLD_S

        def fault(number: int, name: str, done: bool) -> None:
            if rig.time.steady_s < ends_s and (rig.backend.suspended or (name == "stop" and done)):
                raise Away("no answer")

        rig.backend.fault = fault

    saves.then = lose_answers
    assert rig.send().go().outcomes[-1] == "restarted restarted"
    assert (rig.backend.suspensions, rig.backend.suspended) == (1, False)


def full_disk(rig: Rig) -> None:
    """The circuit's state can be read and not written."""

    def fault(number: int, name: str, done: bool) -> None:
        if name == "save":
            raise Away("No space left on device")

    rig.backend.fault = fault


def test_restart_that_cannot_be_counted_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(replace(LIVE, max_wait=60.0)).send()
    full_disk(rig)
    began_s = rig.time.steady_s
    assert rig.go().outcomes == ["refused circuit-unavailable"]
    assert rig.time.steady_s - began_s <= 70
    assert (rig.backend.suspensions, rig.backend.record.phase) == (0, None)
    assert "a request keeps failing" in caplog.text
    rig.backend.fault = lambda number, name, done: None
    rig.time.move(600)
    assert rig.go().backend.suspensions == 0


def rechecked(rig: Rig) -> list[float]:
    """The alert fires at the first recheck only. Returns the times of the rechecks."""
    asked: list[float] = []

    def check(alert: object) -> Refused | None:
        asked.append(rig.time.steady_s)
        return Refused(reasons.NOT_FIRING) if len(asked) > 1 else None

    rig.worker.recheck = check
    return asked


def test_alert_that_ends_while_the_count_is_retried_restarts_nothing() -> None:
    rig = Rig()
    asked = rechecked(rig)
    full_disk(rig)
    rig.send()
    for _ in range(12):
        rig.turn()
    rig.backend.fault = lambda number, name, done: None
    assert rig.go().outcomes == ["refused not-firing"]
    assert (len(asked), rig.backend.suspensions, rig.backend.record.phase) == (2, 0, None)


def test_alert_that_ends_during_an_outage_restarts_nothing() -> None:
    rig, saves = saved_then_away(HOLD_S / 3)
    rechecked(rig)
    assert rig.go().outcomes == ["started started", "refused not-firing"]
    assert (rig.backend.suspensions, rig.backend.record.phase, saves.let_go) == (0, None, 1)


def test_alert_is_rechecked_once_without_a_wait() -> None:
    rig = Rig()
    asked = rechecked(rig)
    assert rig.send().go().outcomes[-1] == "restarted restarted"
    assert len(asked) == 1


def end(rig: Rig) -> Rig:
    """Stop the worker as SIGTERM does."""
    rig.worker.stop()
    rig.worker.run()
    return rig


def test_exit_removes_the_claim() -> None:
    rig = Rig(checkpointer=Saves(), config=CONFIG).send()
    rig.turn()
    assert rig.backend.record.phase == CLAIMED
    end(rig)
    assert (rig.backend.suspensions, rig.backend.record.phase, rig.outcomes) == (0, None, [])


def test_exit_lets_waiting_ranks_go() -> None:
    rig, saves = saved_then_away(HOLD_S)
    while rig.outcomes != ["started started"]:
        rig.turn()
    end(rig)
    assert saves.let_go == 1
    assert rig.backend.record.phase == CLAIMED  # the backend is away


def test_exit_leaves_a_suspended_job_to_the_next() -> None:
    rig = Rig().send()
    rig.turn()
    assert end(rig).backend.suspended
    assert rig.again().go().outcomes == ["taken-over unfinished", "restarted restarted"]
