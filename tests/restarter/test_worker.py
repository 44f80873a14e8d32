"""What the worker does with alerts, on a cluster in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.checkpoint.protocol import CheckpointFailed
from gpufrag.restarter import metrics
from gpufrag.restarter.checkpoint import Checkpoint, Waiting
from gpufrag.restarter.errors import Denied
from gpufrag.restarter.kubernetes.owners import Resolved
from gpufrag.restarter.settings import CheckpointSettings, RestarterConfig
from restarter.memory_cluster import Job, MemoryCluster
from restarter.worker_rig import LIVE, START_S, Rig, alert


def test_a_job_is_restarted_once() -> None:
    rig = Rig().send().go()
    assert rig.told == ["started started", "restarted restarted"]
    assert rig.events == ["RestartStarted", "Restarted"]
    assert (rig.cluster.suspensions, rig.cluster.job.generation, rig.cluster.suspended) == (1, 2, False)
    assert (rig.cluster.memory.count, rig.cluster.memory.phase) == (1, None)
    assert rig.metrics.value(metrics.ACTIONS, "Job.batch", "restarted") == 1
    assert rig.metrics.value(metrics.LAST_SUCCESS) == pytest.approx(START_S, abs=60)


def test_the_event_tells_what_is_lost() -> None:
    rig = Rig().send().go()
    note = rig.cluster.events[0].note
    assert "a ratio of 9" in note
    assert "work since the last one that the job saved is lost" in note


def test_alerts_of_all_ranks_are_one_restart() -> None:
    rig = Rig().send(*[alert()] * 8).send(*[alert()] * 8).go()
    assert rig.cluster.suspensions == 1
    assert rig.metrics.value(metrics.DEDUPLICATED) == 15


def test_the_next_alert_meets_the_cool_down() -> None:
    rig = Rig().send().go().send().go()
    assert rig.told[-1] == "refused cool-down"
    assert rig.cluster.suspensions == 1
    assert rig.metrics.value(metrics.REFUSED, "cool-down") == 1


def test_a_dry_run_changes_nothing() -> None:
    rig = Rig(replace(LIVE, dry_run=True))
    before = replace(rig.cluster.job)
    rig.send().go().send().go()
    assert rig.told == ["would-restart dry-run"]
    assert rig.cluster.job == before
    assert rig.cluster.store == {}
    assert rig.events == ["WouldRestart"]


def denied_for(rig: Rig, seconds: float) -> None:
    ends = rig.hands.steady_s + seconds

    def deny(number: int, name: str, done: bool) -> None:
        if rig.hands.steady_s < ends:
            raise Denied("401")

    rig.cluster.fault = deny


def test_who_is_denied_for_a_while_says_so_once_and_looks_again() -> None:
    rig = Rig().send()
    denied_for(rig, 300)
    rig.go()
    assert rig.told == ["refused denied", "started started", "restarted restarted"]
    assert rig.metrics.value(metrics.REFUSED, "denied") == 1


def test_who_is_denied_for_longer_than_an_alert_is_true_gives_up() -> None:
    rig = Rig().send()
    denied_for(rig, 10**6)
    assert rig.go().told == ["refused denied"]
    assert LIVE.max_wait <= rig.hands.steady_s - 100 < LIVE.max_wait + 60


def test_a_refusal_is_told_once_in_a_while() -> None:
    rig = Rig(cluster=MemoryCluster({"train": Job(annotations={})}))
    rig.send(alert(), alert()).go()
    assert rig.told == ["refused not-opted-in"]
    rig.hands.move(400)
    rig.send().go()
    assert rig.told == ["refused not-opted-in"] * 2
    assert "gpufrag.dev/restart" in rig.cluster.events[0].note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "resolved"}, "resolved"),
        ({"labels": {"alertname": "X"}}, "not-asked"),
        ({"labels": {**alert().labels, "pod": ""}}, "no-pod"),
        ({"labels": {**alert().labels, "pod": "other-1"}}, "pod-gone"),
        ({"labels": {**alert().labels, "namespace": "kube-system"}}, "namespace"),
    ],
)
def test_alerts_that_lead_to_nothing(changes: dict[str, object], reason: str) -> None:
    rig = Rig().send(alert(**changes)).go()
    assert rig.told == [f"refused {reason}"]
    assert rig.cluster.suspensions == 0


def test_a_namespace_that_is_not_allowed_is_not_even_read() -> None:
    rig = Rig(replace(LIVE, namespaces=("other",))).send().go()
    assert "get_pod" not in rig.cluster.calls


def test_a_second_job_waits_for_the_first() -> None:
    cluster = MemoryCluster({"train": Job(), "other": Job("other")})
    rig = Rig(cluster=cluster).send(alert(), alert("other-1"))
    rig.turn()
    assert [job.spec["suspend"] for job in cluster.jobs.values()] == [True, False]
    rig.go()
    assert cluster.suspensions == 2
    assert rig.told.count("restarted restarted") == 2


class Slow:
    """A checkpointer that asks for time, and then says what it was made to say."""

    def __init__(self, end: Checkpoint | CheckpointFailed) -> None:
        self.end = end

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        for _ in range(3):
            yield 1.0
        if isinstance(self.end, CheckpointFailed):
            raise self.end
        return self.end


def test_the_checkpoint_comes_first() -> None:
    rig = Rig(checkpointer=Slow(Checkpoint("Saved at step 70.", saved=True, step=70))).send()
    rig.turn()
    assert rig.cluster.memory.phase == "claimed"
    assert not rig.cluster.suspended
    rig.go()
    assert "Saved at step 70." in rig.cluster.events[0].note


def test_without_a_checkpoint_the_job_goes_on() -> None:
    rig = Rig(checkpointer=Slow(CheckpointFailed("rank 3 did not answer"))).send().go()
    assert rig.told == ["refused checkpoint"]
    assert (rig.cluster.suspensions, rig.cluster.memory.phase) == (0, None)
    assert "rank 3 did not answer" in rig.cluster.events[0].note


def test_a_restart_without_a_checkpoint_can_be_wanted() -> None:
    config = RestarterConfig(checkpoint=CheckpointSettings(on_timeout="restart"))
    rig = Rig(config=config, checkpointer=Slow(CheckpointFailed("too late"))).send().go()
    assert rig.told[-1] == "restarted restarted"
    assert "No checkpoint (too late)" in rig.cluster.events[0].note
