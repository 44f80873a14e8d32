"""Steps are recorded on request, one request at a time, and never longer than its caller waits."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fake_source import HandClock, ScriptedSource, TracingSource
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.step_recorder import HISTORY_IN_USE, UNSUPPORTED
from gpufrag.agent.step_traces import StepTraces
from gpufrag.errors import Unavailable
from gpufrag.wire.error_counter import ErrorCounter

PATIENCE = 20.0


@pytest.fixture
def source() -> TracingSource:
    return TracingSource()


@pytest.fixture
def sampler(source: TracingSource, clock: HandClock) -> Sampler:
    found = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    found.watch_steps(lambda: None)
    return found


class Request:
    """Run a request in its own thread, as the control socket does."""

    def __init__(self, sampler: Sampler, steps: int = 1, stacks: bool = False) -> None:
        traces = sampler.traces

        def run() -> None:
            try:
                self._outcome = traces.record(steps, stacks, PATIENCE)
            except Unavailable as error:
                self._outcome = str(error)

        self._outcome: Any = None
        self._thread = threading.Thread(target=run)
        self._thread.start()
        while not traces.pending and self._thread.is_alive():
            pass

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        return self._outcome


@pytest.mark.parametrize(("steps", "stacks"), [(1, False), (3, True)])
def test_request_gets_the_snapshot_after_its_steps(sampler: Sampler, source, steps: int, stacks: bool) -> None:
    request = Request(sampler, steps, stacks)
    started = "trace with stacks" if stacks else "trace"
    for _ in range(steps):
        source.step()
    assert source.calls == [started]
    source.step()
    assert request.result() == source.snapshot
    assert (source.calls, sampler.traces.pending) == ([started, "read trace"], False)


def test_own_recording_is_finished_before_a_request_begins(sampler: Sampler, source: TracingSource) -> None:
    source.step()
    request = Request(sampler)
    for _ in range(3):
        source.step()
    request.result()
    assert source.calls == ["start", "read", "trace", "read trace"]


def test_no_own_recording_during_a_request(sampler: Sampler, source: TracingSource, clock: HandClock) -> None:
    request = Request(sampler)
    source.step()
    clock.tick(100)
    sampler.at_timer()
    source.step()
    request.result()
    assert source.calls == ["trace", "read trace"]


def test_graph_capture_delays_a_request(sampler: Sampler, source: TracingSource) -> None:
    request = Request(sampler)
    source.graph = True
    source.step()
    assert source.calls == []
    source.graph = False
    source.step()
    source.step()
    assert request.result() == source.snapshot


@pytest.mark.parametrize(("refusal", "words"), [(HISTORY_IN_USE, "records its memory history"), (UNSUPPORTED, "torch")])
def test_refused_request_names_the_reason(sampler, source, refusal: str, words: str) -> None:
    source.refusal = refusal
    request = Request(sampler)
    source.step()
    assert words in request.result()
    assert not sampler.traces.pending


def test_recording_that_the_program_ended_is_an_error(sampler: Sampler, source: TracingSource) -> None:
    source.snapshot = None
    request = Request(sampler)
    source.step()
    source.step()
    assert "the program started or stopped" in request.result()


def test_second_request_is_refused(sampler: Sampler, source: TracingSource) -> None:
    request = Request(sampler)
    with pytest.raises(Unavailable, match="another request"):
        sampler.traces.record(1, False, PATIENCE)
    source.step()
    source.step()
    assert request.result() == source.snapshot


def test_request_without_steps_times_out(sampler: Sampler, source: TracingSource) -> None:
    with pytest.raises(Unavailable, match="check that this process trains"):
        sampler.traces.record(1, False, 0.01)
    assert (source.calls, sampler.traces.pending) == ([], False)

    def step(*arguments: object) -> bool:
        source.step()
        return False

    sampler.traces._lock = _Stepping(step)
    with pytest.raises(Unavailable, match="check that this process trains"):
        sampler.traces.record(5, False, 0.01)
    assert source.calls == ["trace", "drop trace"]


class _Stepping:
    """A lock; the program makes a step once the request is known."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        step, self._step = self._step, lambda: None
        step()


def test_source_without_history_is_unsupported() -> None:
    with pytest.raises(Unavailable, match="no event history"):
        StepTraces(ScriptedSource()).record(1, False, PATIENCE)
