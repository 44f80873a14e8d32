"""The circuit breaker: what opens it, and that only a person closes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import Unavailable
from gpufrag.restarter import metrics, reasons
from gpufrag.restarter.backend import Away, Conflict
from gpufrag.restarter.circuit import BEGUN, FAILURES, HOUR_S, NAMESPACES, OPEN, Circuit, CircuitBreaker
from gpufrag.restarter.clock import LocalHistory
from gpufrag.restarter.policy import Fleet
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.settings import PolicySettings
from restarter.memory_backend import FakeJob, MemoryBackend, fail_at
from restarter.worker_rig import LIVE, FakeTime, Rig, alert

SETTINGS = PolicySettings(circuit_failures=3, circuit_window=3600)
LOOSE = replace(LIVE, max_per_hour=100, max_per_day=48, cooldown=1.0, max_in_flight=100)


def failures(*times_s: float) -> Circuit:
    circuit = Circuit()
    for number, at in enumerate(times_s):
        circuit = circuit.failed(at, f"job {number}", SETTINGS)
    return circuit


@pytest.mark.parametrize(
    ("times_s", "opened"),
    [
        ((0, 1000), None),
        ((0, 1000, 3599), "3 restarts failed or did not help, the last: job 2"),
        ((0, 1000, 3600), None),
        ((0, 1000, 4000, 4100), "3 restarts failed or did not help, the last: job 3"),
    ],
)
def test_failures_within_the_window_open_it(times_s, opened):
    assert failures(*times_s).opened == opened


def test_failures_outside_the_window_are_forgotten():
    assert failures(0, 3599, 3600).failures_s == (3599, 3600)


def test_first_reason_is_kept_and_cut():
    assert Circuit().open("one").open("two").opened == "one"
    assert Circuit().open("x" * 600).opened == "x" * 500


@pytest.mark.parametrize(("age_s", "count"), [(0.0, 1), (HOUR_S - 1, 1), (HOUR_S, 0)])
def test_restarts_count_for_an_hour(age_s, count):
    circuit = Circuit(begun_s=(5000.0 - age_s,))
    assert circuit.begun_in_hour(5000.0) == count
    assert len(circuit.begun(5000.0).begun_s) == count + 1


def test_closing_forgets_failures_but_not_restarts():
    assert Circuit("x", (1.0, 2.0), (3.0,)).closed() == Circuit(None, (), (3.0,))


@given(st.dictionaries(st.sampled_from([OPEN, FAILURES, BEGUN, NAMESPACES]), st.text()))
def test_any_annotations_can_be_read(annotations):
    circuit = Circuit.read(annotations)
    kept = {name: value for name, value in circuit.annotations().items() if value is not None}
    assert Circuit.read(kept) == circuit
    assert (circuit.opened is None) == (not annotations.get(OPEN))


def breaker(store: MemoryBackend, time: FakeTime) -> CircuitBreaker:
    return CircuitBreaker(store, SETTINGS, time.clock, metrics.Metrics())


def test_fleet_counts_stored_and_own_restarts():
    time, history = FakeTime(), LocalHistory()
    one = breaker(MemoryBackend(), time)
    one.begun()
    assert one.fleet(3, history) == Fleet(3, 1, None)
    for _ in range(2):
        history.begin("u", time.steady_s)
    assert one.fleet(0, history).begun_in_hour == 2
    time.move(HOUR_S)
    assert one.fleet(0, history).begun_in_hour == 0


def test_concurrent_changes_are_both_stored():
    store, time = MemoryBackend(), FakeTime()
    one, two = breaker(store, time), breaker(store, time)

    def interfere(number, name, done):
        if name == "save" and number == 1 and not done:
            two.begun()

    store.fault = interfere
    one.begun()
    assert Circuit.read(store.circuit).begun_in_hour(time.wall_s) == 2


def test_store_that_keeps_changing_is_an_error():
    rig = Rig().fail("save", error=Conflict("409"))
    with pytest.raises(Unavailable, match="keeps changing"):
        rig.webhook.circuit.close()
    assert rig.backend.calls.count("save") == 10


def fleet(**job: Any) -> MemoryBackend:
    return MemoryBackend({name: FakeJob(name, **job) for name in ("job0", "job1", "job2", "job3")})


def failing_fleet() -> Rig:
    rig = Rig(LOOSE, fleet(ready=False))
    for pod in ("job0-1", "job1-1", "job2-1"):
        rig.send(alert(pod)).go()
    return rig


def test_failed_restarts_open_it_for_all_jobs():
    rig = failing_fleet()
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 1
    assert rig.send(alert("job3-1")).go().outcomes[-1] == "refused circuit-open"
    assert rig.backend.suspensions == 3


def test_open_circuit_outlives_the_process_until_closed():
    rig = failing_fleet().again()
    assert rig.send(alert("job3-1")).go().outcomes == ["refused circuit-open"]
    rig.webhook.circuit.close()
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 0
    rig.time.move(400)
    assert rig.send(alert("job3-1")).go().backend.suspensions == 4


@pytest.mark.parametrize(("close", "outcome"), [(False, "refused circuit-open"), (True, "restarted restarted")])
def test_change_not_stored_is_stored_later_unless_closed(close, outcome):
    rig = Rig()
    rig.backend.fault = fail_at(0, False, Away("503"))
    rig.webhook.circuit.open("for a test")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) is None
    if close:
        rig.webhook.circuit.close()
    assert rig.send().go().outcomes[-1] == outcome


def test_too_many_restarts_per_hour_open_it():
    rig = Rig(replace(LOOSE, max_per_hour=2), fleet())
    rig.send(*(alert(f"job{place}-1") for place in range(4))).go()
    assert rig.backend.suspensions == 2
    assert sorted(rig.outcomes)[:2] == ["refused circuit-open", "refused hourly-limit"]


def test_unreadable_circuit_restarts_nothing():
    rig = Rig(backend=MemoryBackend(circuit=None)).send().go()
    assert rig.outcomes == ["refused circuit-unavailable"]
    assert "ConfigMap" in rig.backend.events[0].text


def test_job_that_restarts_do_not_help_is_left_alone():
    rig = Rig()
    for _ in range(3):
        rig.send(alert(rig.backend.job.pod_name, starts_at_s=rig.time.wall_s)).go()
        rig.time.move(3500)
    rig.time.move(3500)
    rig.send(alert(rig.backend.job.pod_name, starts_at_s=rig.backend.record.latest_s)).go()
    assert rig.outcomes[-1] == "refused ineffective"
    assert rig.backend.record.stopped is not None
    rig.time.move(200_000)
    rig.send().go()
    assert rig.outcomes[-1] == "refused ineffective"
    del rig.backend.job.annotations["gpufrag.dev/restart-stopped"]
    rig.time.move(400)
    rig.send(alert(rig.backend.job.pod_name, starts_at_s=rig.time.wall_s)).go()
    assert rig.outcomes[-1] == "restarted restarted"


def test_forged_alert_has_no_consequences():
    """Its refusal must not stop the restarts of the job, nor open the circuit breaker for all jobs."""
    rig = Rig(replace(LOOSE, max_per_hour=1), MemoryBackend({name: FakeJob(name) for name in ("one", "two")}))
    rig.send(alert("one-1")).go()
    record = rig.backend.jobs["one"].annotations
    record["gpufrag.dev/restart-ineffective"] = "9"
    rig.worker.recheck = lambda alert: Refused(reasons.NOT_FIRING)
    rig.time.move(100)
    for pod in ("one-2", "two-1"):
        rig.send(alert(pod, starts_at_s=rig.time.wall_s)).go()
    assert rig.outcomes[-2:] == ["refused ineffective", "refused hourly-limit"]
    assert "gpufrag.dev/restart-stopped" not in record
    assert not rig.worker.circuit.fleet(0, LocalHistory()).circuit_open


@pytest.mark.parametrize("jump_s", [-3e7, -7200.0, -60.0, 60.0, 7200.0, 3e7])
def test_setting_the_clock_permits_no_early_restart(jump_s):
    rig = Rig().send().go()
    rig.time.wall_s += jump_s
    rig.send().go()
    rig.time.move(900)
    rig.send().go()
    assert rig.backend.suspensions == 1


def test_setting_the_clock_during_a_restart_does_not_delay_it():
    rig = Rig().send()
    for jump_s in (3e7, -6e7, 3e7):
        rig.turn()
        rig.time.wall_s += jump_s
    assert rig.go().outcomes[-1] == "restarted restarted"


def test_namespaces_of_restarts_are_stored_until_forgotten():
    circuit = Circuit().begun(1.0, "ml").begun(2.0).begun(3.0, "lab").begun(4.0, "ml")
    assert circuit.namespaces == ("lab", "ml")
    assert Circuit.read({NAMESPACES: " ml,,lab "}).namespaces == ("lab", "ml")
    assert circuit.closed().namespaces == ("lab", "ml")
    assert circuit.without({"lab"}).annotations()[NAMESPACES] == "ml"


def test_namespace_without_unfinished_restarts_is_forgotten():
    rig = Rig(backend=MemoryBackend(circuit={NAMESPACES: "gone"}))
    rig.turn()
    assert NAMESPACES not in rig.backend.circuit
