"""Torch's event history belongs to the program; the agent uses it for a step if nothing else does."""

import threading
from types import ModuleType
from typing import Any

import pytest

from fake_torch import VERSIONS, Machine, torch_of
from gpufrag.agent.sources import RecordsEvents
from gpufrag.agent.step_recorder import HISTORY_IN_USE, NOT_YET, UNSUPPORTED
from gpufrag.agent.torch.history import CALLS
from gpufrag.agent.torch.source import AFFORDABLE_EVENTS, TorchSource
from gpufrag.wire.error_counter import ErrorCounter

EVENT = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0}


@pytest.fixture(params=VERSIONS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


@pytest.fixture
def torch(machine: Machine) -> ModuleType:
    return torch_of(machine)


@pytest.fixture
def source(torch: ModuleType) -> TorchSource:
    found = TorchSource(torch, ErrorCounter(), {})
    found.read()
    return found


def calls_of(torch: Any) -> list[Any]:
    return [getattr(torch._C, name) for name in CALLS]


def test_recording_has_no_stacks_and_a_bound(source: TorchSource, machine: Machine) -> None:
    assert source.start_recording(1000) is None
    assert machine.history
    assert machine.recorded == (None, "python", 1000, *[True] * (machine.release >= (2, 8)))  # global annotations
    assert not source.history_in_use(), "it is ours"


def test_events_are_read_and_the_history_is_switched_off(source: TorchSource, machine: Machine) -> None:
    source.start_recording(1000)
    machine.trace.append(EVENT)
    capture = source.finish_recording(read=True)
    assert capture.events()[0].sizes == [512]
    assert (machine.history, machine.trace, capture.sites) == (False, [], None)


def test_events_after_the_copy_are_dropped(source: TorchSource, machine: Machine) -> None:
    """Another thread allocates between the two snapshots; the first left its mark."""
    source.start_recording(1000)
    machine.trace += [EVENT, EVENT | {"action": "snapshot"}, EVENT]
    capture = source.finish_recording(read=True)
    assert capture.events()[0].actions == ["alloc"]


@pytest.mark.parametrize("max_events", [2, 3])
def test_full_ring_is_not_complete(source: TorchSource, machine: Machine, max_events: int) -> None:
    source.start_recording(max_events)
    machine.trace += [EVENT, EVENT | {"action": "snapshot"}]
    capture = source.finish_recording(read=True)
    assert (capture.complete, capture.events()[0].actions) == (max_events > 2, ["alloc"])


def test_recording_that_is_not_read_is_only_switched_off(source: TorchSource, machine: Machine) -> None:
    source.start_recording(1000)
    before = machine.calls.count("_C._cuda_memorySnapshot")
    assert source.finish_recording(read=False) is None
    assert not machine.history
    assert machine.calls.count("_C._cuda_memorySnapshot") == before


def test_events_are_counted_by_allocations(source: TorchSource, machine: Machine) -> None:
    source.start_recording(1000)
    machine.allocations += 7
    assert source.recorded_events() == 21


def test_history_of_the_program_is_never_touched(source: TorchSource, torch: Any, machine: Machine) -> None:
    torch.cuda.memory._record_memory_history(max_entries=77)
    machine.trace.append(EVENT)
    assert source.start_recording(1000) == HISTORY_IN_USE
    source.finish_recording(read=True)
    source.capture()
    assert machine.history
    assert machine.recorded == ("all", "all", 77)
    assert machine.trace == [EVENT]


MARK = EVENT | {"action": "snapshot"}


@pytest.fixture
def borrowing() -> tuple[TorchSource, Any, Machine]:
    """A source that saw no history, in a program that then starts one."""
    machine = Machine()
    torch = torch_of(machine)
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    source.capture()
    torch.cuda.memory._record_memory_history(max_entries=77)
    return source, torch, machine


@pytest.mark.parametrize("allocations", [1, 2])
def test_short_history_of_the_program_is_read_and_left_alone(borrowing: Any, allocations: int) -> None:
    source, _, machine = borrowing
    assert source.start_recording(1000) is None
    machine.trace += [EVENT, MARK, EVENT | {"size": 1024}, MARK, EVENT]
    machine.allocations += allocations
    capture = source.finish_recording(read=True)
    assert capture is not None
    assert (machine.history, machine.recorded, len(machine.trace)) == (True, ("all", "all", 77), 5)
    if allocations == 1:
        assert capture.events is not None
        assert (capture.complete, capture.events()[0].sizes) == (True, [1024])
    else:
        assert capture.events is None, "it is not the history in which the step began"


def test_history_of_the_program_that_ends_during_the_step_is_lost(borrowing: Any) -> None:
    source, torch, _ = borrowing
    source.start_recording(1000)
    torch.cuda.memory._record_memory_history(enabled=None)
    assert source.recorded_events() is None
    assert source.finish_recording(read=False) is None


@pytest.mark.parametrize("during", [False, True], ids=["before the step", "during the step"])
def test_long_history_of_the_program_is_not_read(borrowing: Any, during: bool) -> None:
    source, _, machine = borrowing
    if during:
        source.start_recording(1000)
    machine.allocations += AFFORDABLE_EVENTS // 3 + 1
    if during:
        capture = source.finish_recording(read=True)
        assert capture is not None
        assert capture.events is None
    else:
        assert source.start_recording(1000) == HISTORY_IN_USE


@pytest.mark.parametrize("arguments", [(), (True,), (None,)], ids=["new form", "legacy form", "stop"])
def test_programs_call_during_our_step_wins(
    source: TorchSource, torch: Any, machine: Machine, arguments: tuple[object, ...]
) -> None:
    stays_on = arguments != (None,)
    source.start_recording(1000)
    machine.trace.append(EVENT)
    torch.cuda.memory._record_memory_history(*arguments)
    assert machine.trace == [], "the program's history begins without our events"
    assert source.history_in_use() == stays_on
    assert (source.recorded_events(), source.finish_recording(read=True)) == (None, None)
    assert machine.history == stays_on


def test_torch_is_patched_only_while_a_step_is_recorded(source: TorchSource, torch: Any, machine: Machine) -> None:
    before = calls_of(torch)
    source.start_recording(1000)
    assert all(now is not then for now, then in zip(calls_of(torch), before))
    source.finish_recording(read=True)
    assert calls_of(torch) == before
    source.start_recording(1000)
    torch.cuda.memory._record_memory_history()
    assert calls_of(torch) == before


def test_later_patch_by_other_code_stays(source: TorchSource, torch: Any, machine: Machine) -> None:
    source.start_recording(1000)
    ours, seen = torch._C._cuda_record_memory_history, []

    def theirs(*arguments: object) -> None:
        seen.append(arguments)
        ours(*arguments)

    torch._C._cuda_record_memory_history = theirs
    source.finish_recording(read=True)
    assert torch._C._cuda_record_memory_history is theirs
    torch.cuda.memory._record_memory_history()
    assert machine.history, "ours passes calls on"


def test_error_of_ours_does_not_stop_the_programs_call(source: TorchSource, torch: Any, machine: Machine) -> None:
    source.start_recording(1000)
    torch._C._cuda_isHistoryEnabled = lambda: int("x")
    torch.cuda.memory._record_memory_history(max_entries=77)
    assert machine.recorded == ("all", "all", 77)


def test_forked_child_drops_the_recording_without_a_call(source: TorchSource, torch: Any, machine: Machine) -> None:
    before = calls_of(torch)
    source.start_recording(1000)
    machine.calls.clear()
    source.close()
    assert machine.calls == []
    assert calls_of(torch) == before


def test_first_call_before_2_8_has_its_own_thread() -> None:
    """Torch leaves a callback for every operator in the thread that makes it."""
    for version, expected in (("2.5.1", 1), ("2.8.0", 0)):
        torch, threads = torch_of(Machine(version)), []
        original = torch.cuda.memory._record_memory_history

        def noted(*arguments: Any, original: Any = original, threads: Any = threads, **named: Any) -> None:
            threads.append(threading.current_thread())
            original(*arguments, **named)

        torch.cuda.memory._record_memory_history = noted
        source = TorchSource(torch, ErrorCounter(), {})
        source.start_recording(10)
        source.finish_recording(read=False)
        source.start_recording(10)
        elsewhere = [thread for thread in threads if thread is not threading.current_thread()]
        assert (len(elsewhere), threads[0] in elsewhere) == (expected, bool(expected))


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_other_allocators_have_no_history(backend: str) -> None:
    machine = Machine(backend=backend)
    assert TorchSource(torch_of(machine), ErrorCounter(), {}).start_recording(10) == UNSUPPORTED
    assert not machine.history


def test_cuda_is_not_initialised_for_a_recording() -> None:
    machine = Machine(initialised=False)
    assert TorchSource(torch_of(machine), ErrorCounter(), {}).start_recording(10) == NOT_YET
    assert set(machine.calls) == {"cuda.is_initialized"}


def test_history_that_torch_refuses_is_counted(torch: Any, machine: Machine) -> None:
    errors = ErrorCounter()
    torch.cuda.memory._record_memory_history = lambda: None  # another signature
    assert TorchSource(torch, errors, {}).start_recording(10) == UNSUPPORTED
    assert set(errors.counts) == {"torch.cuda.memory._record_memory_history"}


def test_torch_source_records_events(source: TorchSource) -> None:
    assert isinstance(source, RecordsEvents)
