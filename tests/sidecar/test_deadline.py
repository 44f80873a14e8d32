"""A worker: one thread, one call at a time, no caller waits longer than the deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from gpufrag.errors import Unavailable
from gpufrag.sidecar.deadline import DeadlineWorker

PATIENCE = 20.0  # of a test for what must come


WorkerOf = Callable[..., DeadlineWorker[int]]


class Gate:
    """Work that hangs while the gate is shut."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.open.set()
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(PATIENCE)
        return self.calls


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def worker_of() -> Iterator[WorkerOf]:
    with contextlib.ExitStack() as stack:

        def make(work: Callable[[], int], **options: Any) -> DeadlineWorker[int]:
            worker = DeadlineWorker("thing", work, **{"deadline": PATIENCE} | options)
            stack.callback(worker.close)
            return worker

        yield make


class Hung:
    """A worker with the value 1, whose second call hangs and has passed its deadline."""

    def __init__(self, worker_of: WorkerOf, gate: Gate) -> None:
        self.now, self.gate = 0.0, gate
        self.worker = worker_of(gate, keep=60.0, clock=lambda: self.now)
        self.worker.ask()
        gate.open.clear()
        self.waiting = threading.Thread(target=self.worker.ask, daemon=True)
        self.waiting.start()
        for _ in range(2):
            assert gate.entered.acquire(timeout=PATIENCE)
        self.now = PATIENCE


@pytest.fixture
def hung(worker_of: WorkerOf, gate: Gate) -> Hung:
    return Hung(worker_of, gate)


def test_each_ask_runs_the_work(worker_of: WorkerOf, gate: Gate) -> None:
    worker = worker_of(gate)
    answers = [worker.ask() for _ in range(3)]
    assert [answer.value for answer in answers] == [1, 2, 3]
    assert all(answer.result.success and answer.result.reason is None for answer in answers)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("gone: bring it back"), "gone: bring it back"),
        (ZeroDivisionError("x"), "internal error while reading thing (ZeroDivisionError: x)"),
    ],
)
def test_failure_gives_a_reason_and_no_value(worker_of: WorkerOf, error: Exception, reason: str) -> None:
    work = Mock(side_effect=[5, error, 7])
    worker = worker_of(work)
    assert worker.ask().value == 5
    failed = worker.ask()
    assert (failed.value, failed.result.success, failed.result.reason) == (None, False, reason)
    assert worker.ask().value == 7


@pytest.mark.parametrize(
    ("now", "value", "reason"),
    [
        (30.0, 1, "its last values are shown for 1 min"),
        (40.0, 1, "its last values are shown for 1 min"),
        (61.0, None, "its last values are older than 1 min and no longer shown"),
    ],
)
def test_hang_shows_the_last_value_for_a_minute(hung: Hung, now: float, value: int | None, reason: str) -> None:
    hung.now = now
    answer = hung.worker.ask()
    assert (answer.value, answer.result.success) == (value, False)
    assert answer.result.reason == f"no answer from thing within 20.0 s; {reason}"


def test_hang_is_one_call_and_one_thread(gate: Gate) -> None:
    gate.open.clear()
    worker: DeadlineWorker[int] = DeadlineWorker("hanging", gate, deadline=0.0)
    for _ in range(50):
        assert worker.ask().value is None
    assert gate.entered.acquire(timeout=PATIENCE)
    threads = [thread for thread in threading.enumerate() if thread.name == "gpufrag-hanging"]
    assert (gate.calls, len(threads)) == (1, 1)
    worker.close()


def test_worker_recovers_when_the_call_returns(hung: Hung) -> None:
    assert not hung.worker.ask().result.success
    hung.gate.open.set()
    hung.waiting.join(PATIENCE)  # it has its answer, so the call that hung has ended
    answer = hung.worker.ask()
    assert (answer.value, answer.result.success) == (3, True)


def test_simultaneous_callers_share_one_call(worker_of: WorkerOf, gate: Gate) -> None:
    gate.open.clear()
    looks = threading.Semaphore(0)

    def clock() -> float:
        looks.release()
        return 0.0

    worker = worker_of(gate, clock=clock)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(worker.ask) for _ in range(4)]
        for _ in range(6):  # each asker looks at the clock before it waits, the first one and the worker once more
            assert looks.acquire(timeout=PATIENCE)
        gate.open.set()
        answers = [future.result(PATIENCE) for future in asked]
    assert [answer.value for answer in answers] == [1, 1, 1, 1]
    assert gate.calls == 1


def test_calls_never_overlap(worker_of: WorkerOf) -> None:
    running = threading.Lock()

    def work() -> int:
        with_the_lock = running.acquire(blocking=False)
        assert with_the_lock
        running.release()
        return 1

    worker = worker_of(work)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: worker.ask(), range(200)))
    assert all(answer.result.success for answer in answers)


def test_closed_worker_ends_its_thread(gate: Gate) -> None:
    worker: DeadlineWorker[int] = DeadlineWorker("closing", gate, deadline=PATIENCE)
    worker.ask()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "gpufrag-closing"]
    assert thread.daemon
    worker.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
