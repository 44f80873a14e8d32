"""A worker: one thread, one call at a time, no caller waits longer than the deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufrag.errors import Unavailable
from gpufrag.sidecar.deadline import DeadlineWorker
from gpufrag.units import format_duration

PATIENCE = 20.0  # of a test for what must come


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


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def worker_of() -> Iterator[Callable[..., DeadlineWorker[int]]]:
    made: list[DeadlineWorker[int]] = []

    def make(work: Callable[[], int], **options: object) -> DeadlineWorker[int]:
        made.append(DeadlineWorker("thing", work, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_each_ask_runs_the_work(worker_of: Callable[..., DeadlineWorker[int]], gate: Gate) -> None:
    worker = worker_of(gate, deadline=PATIENCE)
    answers = [worker.ask() for _ in range(3)]
    assert [answer.value for answer in answers] == [1, 2, 3]
    assert all(answer.result.success and answer.result.reason is None for answer in answers)


def test_failure_gives_a_reason_and_no_value(worker_of: Callable[..., DeadlineWorker[int]]) -> None:
    results: list[int | Exception] = [5, Unavailable("gone: bring it back")]

    def work() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    worker = worker_of(work, deadline=PATIENCE)
    assert worker.ask().value == 5
    failed = worker.ask()
    assert (failed.value, failed.result.success, failed.result.reason) == (None, False, "gone: bring it back")


def test_internal_error_is_reported_and_work_goes_on(worker_of: Callable[..., DeadlineWorker[int]]) -> None:
    divisors = [0, 1]
    worker = worker_of(lambda: 7 // divisors.pop(0), deadline=PATIENCE)
    broken = worker.ask().result
    assert (broken.success, "ZeroDivisionError" in str(broken.reason)) == (False, True)
    assert worker.ask().value == 7


def test_hang_shows_the_last_value_with_one_reason(worker_of: Callable[..., DeadlineWorker[int]], gate: Gate) -> None:
    clock = Clock()
    worker = worker_of(gate, deadline=PATIENCE, keep=60.0, clock=clock)
    worker.ask()
    _hang(worker, gate, clock)
    reasons = set()
    for clock.now in (30.0, 40.0):
        answer = worker.ask()
        assert (answer.value, answer.result.success) == (1, False)
        reasons.add(answer.result.reason)
    minute = format_duration(60.0)
    assert reasons == {f"no answer from thing within 20.0 s; its last values are shown for {minute}"}


def test_old_value_is_not_shown(worker_of: Callable[..., DeadlineWorker[int]], gate: Gate) -> None:
    clock = Clock()
    worker = worker_of(gate, deadline=PATIENCE, keep=60.0, clock=clock)
    worker.ask()
    _hang(worker, gate, clock)
    clock.now = 61.0
    answer = worker.ask()
    assert answer.value is None
    assert "and no longer shown" in str(answer.result.reason)


def test_hang_is_one_call_and_one_thread(gate: Gate) -> None:
    gate.open.clear()
    worker: DeadlineWorker[int] = DeadlineWorker("hanging", gate, deadline=0.0)
    for _ in range(50):
        assert worker.ask().value is None
    assert gate.entered.acquire(timeout=PATIENCE)
    threads = [thread for thread in threading.enumerate() if thread.name == "gpufrag-hanging"]
    assert (gate.calls, len(threads)) == (1, 1)
    worker.close()


def test_worker_recovers_when_the_call_returns(worker_of: Callable[..., DeadlineWorker[int]], gate: Gate) -> None:
    clock = Clock()
    worker = worker_of(gate, deadline=PATIENCE, clock=clock)
    waiting = _hang(worker, gate, clock)
    assert not worker.ask().result.success
    gate.open.set()
    waiting.join(PATIENCE)  # it has its answer, so the call that hung has ended
    answer = worker.ask()
    assert (answer.value, answer.result.success) == (2, True)


def test_simultaneous_callers_share_one_call(worker_of: Callable[..., DeadlineWorker[int]], gate: Gate) -> None:
    gate.open.clear()
    looks = threading.Semaphore(0)

    def clock() -> float:
        looks.release()
        return 0.0

    worker = worker_of(gate, deadline=PATIENCE, clock=clock)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(worker.ask) for _ in range(4)]
        for _ in range(6):  # each asker looks at the clock before it waits, the first one and the worker once more
            assert looks.acquire(timeout=PATIENCE)
        gate.open.set()
        answers = [future.result(PATIENCE) for future in asked]
    assert [answer.value for answer in answers] == [1, 1, 1, 1]
    assert gate.calls == 1


def test_calls_never_overlap(worker_of: Callable[..., DeadlineWorker[int]]) -> None:
    running = threading.Lock()

    def work() -> int:
        with_the_lock = running.acquire(blocking=False)
        assert with_the_lock
        running.release()
        return 1

    worker = worker_of(work, deadline=PATIENCE)
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


def _hang(worker: DeadlineWorker[int], gate: Gate, clock: Clock) -> threading.Thread:
    """Bring `worker` into a call that hangs past its deadline; the thread that comes back asked for it."""
    gate.open.clear()
    while gate.entered.acquire(blocking=False):
        pass
    asker = threading.Thread(target=worker.ask, daemon=True)
    asker.start()
    assert gate.entered.acquire(timeout=PATIENCE)
    clock.now += PATIENCE
    return asker
