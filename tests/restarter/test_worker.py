"""What the worker does with alerts, on a backend in memory."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpufrag.checkpoint.protocol import CheckpointFailed
from gpufrag.restarter import metrics
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.backend import Denied
from gpufrag.restarter.checkpoint import Checkpoint
from gpufrag.restarter.clock import Deduplicator, LocalHistory
from gpufrag.restarter.record import BY, CLAIMED, DAY_S, PHASE
from gpufrag.restarter.settings import CheckpointSettings, RestarterConfig
from gpufrag.restarter.worker import STUCK_S, AlertQueue, QueuedAlert
from restarter.memory_backend import FakeJob, MemoryBackend
from restarter.worker_rig import LIVE, START_S, Rig, alert


def test_alert_restarts_its_job_once():
    rig = Rig().send().go()
    assert rig.outcomes == ["started started", "restarted restarted"]
    assert [event.outcome for event in rig.backend.events] == ["started", "restarted"]
    assert (rig.backend.suspensions, rig.backend.job.generation, rig.backend.suspended) == (1, 2, False)
    assert (rig.backend.record.count, rig.backend.record.phase, rig.backend.record.order) == (1, None, None)
    assert rig.metrics.value(metrics.ACTIONS, "fake", "restarted") == 1
    assert rig.metrics.value(metrics.LAST_SUCCESS) == pytest.approx(START_S, abs=60)


def test_event_shows_the_alert_and_the_cost():
    text = Rig().send().go().backend.events[0].text
    assert "GpuMemoryFragmented fires. Job train: a ratio of 9." in text
    assert "No checkpoint was requested" in text
    assert "Cost: nothing else." in text


def test_alerts_of_all_ranks_are_one_restart():
    rig = Rig().send(*[alert()] * 8).send(*[alert()] * 8).go()
    assert rig.backend.suspensions == 1
    assert rig.metrics.value(metrics.DEDUPLICATED) == 15


def test_next_alert_waits_for_the_cooldown():
    rig = Rig().send().go().send().go()
    assert rig.outcomes[-1] == "refused cooldown"
    assert rig.backend.suspensions == 1
    assert rig.metrics.value(metrics.REFUSED_ALERTS, "cooldown") == 1


def test_dry_run_changes_nothing():
    rig = Rig(replace(LIVE, dry_run=True))
    before = replace(rig.backend.job)
    rig.send().go().send().go()
    assert rig.outcomes == ["would-restart dry-run"]
    assert (rig.backend.job, rig.backend.circuit) == (before, {})
    assert [event.outcome for event in rig.backend.events] == ["would-restart"]


def test_denied_request_is_reported_once_and_tried_again():
    rig = Rig().send().fail(error=Denied("401"), seconds=300).go()
    assert rig.outcomes == ["refused forbidden", "started started", "restarted restarted"]
    assert rig.metrics.value(metrics.REFUSED_ALERTS, "forbidden") == 1


def test_alert_is_dropped_after_max_wait():
    rig = Rig().send().fail(error=Denied("401")).go()
    assert rig.outcomes == ["refused forbidden"]
    assert LIVE.max_wait <= rig.time.steady_s - 100 < LIVE.max_wait + 60


def test_refusal_is_repeated_only_after_a_while():
    rig = Rig(backend=MemoryBackend({"train": FakeJob(annotations={})}))
    rig.send(alert(), alert()).go()
    assert rig.outcomes == ["refused not-opted-in"]
    rig.time.move(400)
    rig.send().go()
    assert rig.outcomes == ["refused not-opted-in"] * 2
    assert "gpufrag.dev/restart" in rig.backend.events[0].text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "resolved"}, "resolved"),
        ({"labels": {"alertname": "X"}}, "no-restart-label"),
        ({"labels": {**alert().labels, "pod": "other-1"}}, "pod-gone"),
    ],
)
def test_alert_that_cannot_restart_is_refused(changes, reason):
    rig = Rig().send(alert(**changes)).go()
    assert rig.outcomes == [f"refused {reason}"]
    assert rig.backend.suspensions == 0


def test_second_job_waits_for_the_first():
    backend = MemoryBackend({"train": FakeJob(), "other": FakeJob("other")})
    rig = Rig(backend=backend).send(alert(), alert("other-1"))
    rig.turn()
    assert [job.suspended for job in backend.jobs.values()] == [True, False]
    rig.go()
    assert backend.suspensions == 2
    assert rig.outcomes.count("restarted restarted") == 2


class SlowCheckpointer:
    def __init__(self, end: Checkpoint | CheckpointFailed) -> None:
        self.end = end

    def save(self, job, timeout_s):
        for _ in range(3):
            yield 1.0
        if isinstance(self.end, CheckpointFailed):
            raise self.end
        return self.end


def test_checkpoint_comes_before_the_stop():
    rig = Rig(checkpointer=SlowCheckpointer(Checkpoint("Saved at step 70.", saved=True, step=70))).send()
    rig.turn()
    assert (rig.backend.record.phase, rig.backend.suspended) == (CLAIMED, False)
    assert "Saved at step 70." in rig.go().backend.events[0].text


@pytest.mark.parametrize(
    ("on_timeout", "outcome", "text"),
    [
        ("abort", "refused checkpoint-failed", "rank 3 did not answer"),
        ("restart", "restarted restarted", "No checkpoint (rank 3 did not answer)"),
    ],
)
def test_failed_checkpoint_prevents_the_restart_unless_configured(on_timeout, outcome, text):
    config = RestarterConfig(checkpoint=CheckpointSettings(on_timeout=on_timeout))
    rig = Rig(config=config, checkpointer=SlowCheckpointer(CheckpointFailed("rank 3 did not answer"))).send().go()
    assert rig.outcomes[-1] == outcome
    assert (rig.backend.suspensions, rig.backend.record.phase) == (int(on_timeout == "restart"), None)
    assert text in rig.backend.events[0].text


def test_worker_is_ready_after_the_first_complete_search():
    rig = Rig().fail(seconds=60)
    rig.turn()
    assert not rig.worker.ready
    rig.until(lambda: rig.time.steady_s >= 180)
    assert rig.worker.ready


def test_stuck_worker_is_not_alive():
    rig, entered, resume = Rig(), threading.Event(), threading.Event()

    def hang(number: int, name: str, done: bool) -> None:
        entered.set()
        resume.wait(60)

    rig.backend.fault = hang
    thread = threading.Thread(target=rig.worker.run, daemon=True)
    thread.start()
    assert entered.wait(60)
    assert rig.worker.alive
    rig.time.move(STUCK_S)
    assert not rig.worker.alive
    rig.worker.stop()
    resume.set()
    thread.join(60)
    assert not rig.worker.alive


@pytest.fixture
def claimed():
    rig = Rig()
    rig.backend.job.annotations |= {PHASE: CLAIMED, BY: "a process that died"}
    return rig


def is_claimed_after(rig: Rig, seconds: float) -> bool:
    ends_s = rig.time.steady_s + seconds
    return rig.until(lambda: rig.time.steady_s >= ends_s).backend.record.phase == CLAIMED


def test_abandoned_claim_is_removed_after_twice_the_checkpoint_timeout(claimed):
    assert is_claimed_after(claimed, 2 * CheckpointSettings().timeout)
    assert not is_claimed_after(claimed, 400.0)
    assert claimed.outcomes == ["taken-over unfinished"]
    assert claimed.backend.suspensions == 0


def test_claim_of_another_process_starts_a_new_wait(claimed):
    assert is_claimed_after(claimed, 900.0)
    claimed.backend.job.annotations[BY] = "another"
    assert is_claimed_after(claimed, 900.0)


def item(due_s: float = 0.0, name: str = "") -> QueuedAlert:
    return QueuedAlert(Alert("firing", {"alertname": name}), 0.0, due_s)


def test_queue_takes_all_alerts_of_a_call_or_none():
    queue = AlertQueue(3)
    assert queue.put([item(), item()])
    assert not queue.put([item(), item()])
    assert queue.put([item()])
    queue.put_back(item(7.0))
    assert len(queue) == 4


def test_queue_returns_due_alerts_in_order():
    queue = AlertQueue(9)
    queue.put([item(5.0, "late"), item(0.0, "one"), item(1.0, "two")])
    taken = [queue.take(2.0) for _ in range(3)]
    assert [one.alert.name for one in taken if one] == ["one", "two"]
    assert queue.next_due_s() == 5.0


@pytest.mark.parametrize("first", ["put", "wait"])
def test_queue_wait_ends_when_something_is_put(first):
    queue = AlertQueue(9)
    waiter = threading.Thread(target=queue.wait, args=(60.0,), daemon=True)
    if first == "put":
        queue.put([item()])
    waiter.start()
    if first == "wait":
        queue.wake()
    waiter.join(10.0)
    assert not waiter.is_alive()


def test_local_history_counts_per_job_for_a_day():
    history = LocalHistory()
    for at, uid in enumerate(["a", "a", "b"]):
        history.begin(uid, float(at))
    assert (history.age_s("a", 11.0), history.age_s("c", 11.0)) == (10.0, None)
    assert (history.within(60.0, 11.0), history.within(60.0, 11.0, "a")) == (3, 2)
    history.begin("c", DAY_S + 1.5)
    assert history.within(2 * DAY_S, DAY_S + 2, "a") == 0


def test_deduplicator_forgets_after_a_while():
    recent = Deduplicator(300.0)
    assert [recent.seen("x", at) for at in (0.0, 299.0, 300.0, 301.0)] == [False, True, False, True]
