"""Torch's observer: where it may be attached, and that nothing of ours takes the place of torch's error."""

from __future__ import annotations

import pytest

from fake_torch import Machine, OutOfMemoryError, remove, torch_of
from gpufrag.agent.sources import Fault, TellsFaults
from gpufrag.agent.torch.oom import ATTACH
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter

MIB = 1 << 20


def _source(machine: Machine, trouble: ErrorCounter | None = None) -> TorchSource:
    return TorchSource(torch_of(machine), trouble or ErrorCounter(), {})


def _attached(machine: Machine) -> bool:
    return _source(machine).watch_ooms(lambda fault: None)


def test_a_failed_request_is_told_before_its_error_is_raised() -> None:
    machine, told = Machine(), []
    assert _source(machine).watch_ooms(told.append)
    with pytest.raises(OutOfMemoryError):
        machine.fail(20 * MIB, device=1)
    assert told == [Fault(1, 20 * MIB, machine.free)]


def test_the_torch_source_says_that_it_can() -> None:
    assert isinstance(_source(Machine()), TellsFaults)


@pytest.mark.parametrize(
    ("version", "devices", "good"), [("2.1.2", 1, True), ("2.4.1", 2, False), ("2.6.0", 2, True), ("2.11.0", 8, True)]
)
def test_it_is_used_where_torch_hands_it_to_every_device(version: str, devices: int, good: bool) -> None:
    assert _attached(Machine(version, count=devices)) is good


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_has_none(backend: str) -> None:
    machine = Machine(backend=backend)
    assert not _attached(machine)
    assert machine.observers == []


def test_a_torch_without_it_or_that_refuses_it_goes_on() -> None:
    machine, trouble = Machine(), ErrorCounter()
    torch = torch_of(machine)

    def refuse(observer: object) -> None:
        raise RuntimeError("not here")

    torch._C._cuda_attach_out_of_memory_observer = refuse
    assert not TorchSource(torch, trouble, {}).watch_ooms(lambda fault: None)
    assert trouble.counts == {f"torch.{ATTACH}": 1}
    remove(torch, ATTACH)
    assert not TorchSource(torch, ErrorCounter(), {}).watch_ooms(lambda fault: None)


def test_it_never_initialises_cuda_but_is_there_when_that_ends() -> None:
    machine = Machine(initialised=False)
    source, attached = _source(machine), []
    assert not source.watch_ooms(lambda fault: None)
    machine.queued.append(lambda: attached.append(source.watch_ooms(lambda fault: None)))
    machine.initialise()
    assert attached == [True]


def test_an_error_of_ours_does_not_replace_torchs() -> None:
    machine, trouble = Machine(), ErrorCounter()

    def fail(fault: Fault) -> None:
        raise ZeroDivisionError

    _source(machine, trouble).watch_ooms(fail)
    with pytest.raises(OutOfMemoryError):
        machine.fail(MIB)
    assert trouble.counts == {"oom": 1}


def test_a_closed_source_tells_nothing() -> None:
    machine, told = Machine(), []
    source = _source(machine)
    source.watch_ooms(told.append)
    source.close()
    with pytest.raises(OutOfMemoryError):
        machine.fail(MIB)
    assert told == []


def test_the_heap_can_be_copied_although_no_request_has_succeeded_before() -> None:
    machine, devices = Machine(contexts={0, 1}), []
    source = _source(machine)
    source.watch_ooms(lambda fault: devices.append([reading.device for reading in source.capture().readings]))
    with pytest.raises(OutOfMemoryError):
        machine.fail(MIB, device=1)
    assert devices == [[1]]
