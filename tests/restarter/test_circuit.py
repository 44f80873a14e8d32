"""The circuit over all jobs, and the breaker of one: what opens them, and that only a person closes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import Unavailable
from gpufrag.restarter import metrics
from gpufrag.restarter.circuit import BEGUN, FAILURES, OPEN, Circuit, ConfigMapStore
from gpufrag.restarter.errors import Away, Conflict
from gpufrag.restarter.settings import PolicySettings
from restarter.memory_cluster import Job, MemoryCluster, fail_at
from restarter.worker_rig import LIVE, Rig, alert

SETTINGS = PolicySettings(circuit_failures=3, circuit_window=3600)
LOOSE = replace(LIVE, max_per_hour=100, max_per_day=48, cool_down=1.0, max_in_flight=100)


def jobs(number: int) -> MemoryCluster:
    return MemoryCluster({f"job{place}": Job(f"job{place}") for place in range(number)})


def test_failures_close_together_open_it() -> None:
    apart = Circuit().failed(0, "a", SETTINGS).failed(1000, "b", SETTINGS).failed(4000, "c", SETTINGS)
    assert apart.opened is None
    assert apart.failed(4100, "d", SETTINGS).opened == "3 restarts failed or did not help, the last: d"


def test_the_first_reason_stays() -> None:
    assert Circuit().open("one").open("two").opened == "one"


def test_closing_forgets_the_failures_and_not_the_restarts() -> None:
    circuit = Circuit("x", (1.0, 2.0), (3.0,))
    assert circuit.closed() == Circuit(None, (), (3.0,))


@given(st.dictionaries(st.sampled_from([OPEN, FAILURES, BEGUN]), st.text()))
def test_any_annotations_can_be_read(annotations: dict[str, str]) -> None:
    circuit = Circuit.read(annotations)
    kept = {name: value for name, value in circuit.annotations().items() if value is not None}
    assert Circuit.read(kept) == circuit
    assert (circuit.opened is None) == (not annotations.get(OPEN))


def test_nobody_s_change_is_lost() -> None:
    cluster = MemoryCluster()
    one, two = (ConfigMapStore(cluster, "gpufrag", "gpufrag-restarter") for _ in range(2))

    def change(circuit: Circuit) -> Circuit:
        if cluster.store == {}:
            two.update(lambda other: other.begun(1.0))
        return circuit.begun(2.0)

    assert one.update(change).begun_s == (1.0, 2.0)


def test_a_store_that_keeps_changing_is_given_up() -> None:
    cluster = MemoryCluster()
    cluster.fault = fail_at(0, False, Conflict("409"), times=100)
    cluster.calls.clear()
    store = ConfigMapStore(cluster, "gpufrag", "gpufrag-restarter")
    cluster.fault = lambda number, name, done: _conflict(name)
    with pytest.raises(Unavailable, match="keeps changing"):
        store.update(Circuit.closed)


def _conflict(name: str) -> None:
    if name == "patch":
        raise Conflict("409")


def failing_fleet() -> Rig:
    cluster = jobs(4)
    for job in cluster.jobs.values():
        job.ready = False
    rig = Rig(LOOSE, cluster)
    for place in range(3):
        rig.send(alert(f"job{place}-1")).go()
    return rig


def test_restarts_that_fail_open_it_for_all_jobs() -> None:
    rig = failing_fleet()
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 1
    rig.send(alert("job3-1")).go()
    assert rig.told[-1] == "refused circuit-open"
    assert rig.cluster.suspensions == 3


def test_a_new_receiver_finds_it_open_until_a_person_closes_it() -> None:
    rig = failing_fleet().again()
    rig.send(alert("job3-1")).go()
    assert rig.told == ["refused circuit-open"]
    rig.webhook.fuse.close()
    rig.hands.move(400)
    rig.send(alert("job3-1")).go()
    assert rig.cluster.suspensions == 4


def test_a_failure_that_cannot_be_written_down_is_not_forgotten() -> None:
    rig = Rig()
    rig.cluster.fault = fail_at(0, False, Away("503"), times=1)
    rig.webhook.fuse.trip("for a test")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) is None
    rig.send().go()
    assert rig.told == ["refused circuit-open"]


def test_a_storm_opens_it() -> None:
    rig = Rig(replace(LOOSE, max_per_hour=2), jobs(4))
    rig.send(*(alert(f"job{place}-1") for place in range(4))).go()
    assert rig.cluster.suspensions == 2
    assert sorted(rig.told)[:2] == ["refused circuit-open", "refused hourly"]


def test_without_its_config_map_nothing_is_restarted() -> None:
    rig = Rig(cluster=MemoryCluster(store=None)).send().go()
    assert rig.told == ["refused no-memory"]
    assert "ConfigMap" in rig.cluster.events[0].note


def test_a_job_that_restarts_do_not_help_is_left_alone() -> None:
    rig = Rig()
    for _ in range(3):
        rig.send(alert(rig.cluster.job.pod_name, starts_at_s=rig.hands.wall_s)).go()
        rig.hands.move(3500)
    rig.hands.move(3500)
    rig.send(alert(rig.cluster.job.pod_name, starts_at_s=rig.cluster.memory.latest_s)).go()
    assert rig.told[-1] == "refused stopped"
    assert rig.cluster.memory.stopped is not None
    rig.hands.move(200_000)
    rig.send().go()
    assert rig.told[-1] == "refused stopped"
    del rig.cluster.job.annotations["gpufrag.dev/restart-stopped"]
    rig.hands.move(400)
    rig.send(alert(rig.cluster.job.pod_name, starts_at_s=rig.hands.wall_s)).go()
    assert rig.told[-1] == "restarted restarted"


@pytest.mark.parametrize("jump_s", [-3e7, -7200.0, -60.0, 60.0, 7200.0, 3e7])
def test_a_clock_that_is_set_restarts_nothing_early(jump_s: float) -> None:
    rig = Rig().send().go()
    rig.hands.wall_s += jump_s
    rig.send().go()
    rig.hands.move(900)
    rig.send().go()
    assert rig.cluster.suspensions == 1


def test_a_clock_that_is_set_during_a_restart_does_not_hold_it_up() -> None:
    rig = Rig().send()
    for jump_s in (3e7, -6e7, 3e7):
        rig.turn()
        rig.hands.wall_s += jump_s
    rig.go()
    assert rig.told[-1] == "restarted restarted"
