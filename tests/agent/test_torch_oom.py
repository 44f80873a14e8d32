"""Torch's observer of out-of-memory errors: where it is attached, and that torch's error stays the same."""

import pytest

from fake_torch import Machine, OutOfMemoryError, remove, torch_of
from gpufrag.agent.sources import Fault, ReportsFaults
from gpufrag.agent.torch.source import ATTACH_OBSERVER as ATTACH
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter

MIB = 1 << 20


def _source(machine: Machine, errors: ErrorCounter | None = None) -> TorchSource:
    return TorchSource(torch_of(machine), errors or ErrorCounter(), {})


def test_oom_is_reported_before_it_is_raised() -> None:
    machine, reported = Machine(), []
    source = _source(machine)
    assert isinstance(source, ReportsFaults)
    assert source.watch_ooms(reported.append)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            machine.fail(20 * MIB, device=1)
        source.close()
    assert reported == [Fault(1, 20 * MIB, machine.free)]


@pytest.mark.parametrize(
    ("version", "devices", "backend", "good"),
    [
        ("2.1.2", 1, "native", True),
        ("2.4.1", 2, "native", False),
        ("2.6.0", 2, "native", True),
        ("2.11.0", 8, "native", True),
        ("2.11.0", 1, "cudaMallocAsync", False),
        ("2.11.0", 1, "pluggable", False),
    ],
)
def test_observer_is_used_only_if_every_device_gets_it(version: str, devices: int, backend: str, good: bool) -> None:
    machine = Machine(version, count=devices, backend=backend)
    assert _source(machine).watch_ooms(lambda fault: None) is good
    assert len(machine.observers) == good


def test_missing_or_refused_observer_is_no_error() -> None:
    machine, errors = Machine(), ErrorCounter()
    torch = torch_of(machine)
    torch._C._cuda_attach_out_of_memory_observer = lambda observer: int("not here")
    assert not TorchSource(torch, errors, {}).watch_ooms(lambda fault: None)
    assert errors.counts == {f"torch.{ATTACH}": 1}
    remove(torch, ATTACH)
    assert not TorchSource(torch, ErrorCounter(), {}).watch_ooms(lambda fault: None)


def test_observer_is_attached_at_cuda_initialisation() -> None:
    machine = Machine(initialised=False)
    source, attached = _source(machine), []
    assert not source.watch_ooms(lambda fault: None)
    machine.queued.append(lambda: attached.append(source.watch_ooms(lambda fault: None)))
    machine.initialise()
    assert attached == [True]


def test_our_error_does_not_replace_torchs() -> None:
    machine, errors = Machine(), ErrorCounter()
    _source(machine, errors).watch_ooms(lambda fault: 1 // 0)
    with pytest.raises(OutOfMemoryError):
        machine.fail(MIB)
    assert errors.counts == {"oom": 1}


def test_heap_is_copied_at_the_first_request() -> None:
    machine, devices = Machine(contexts={0, 1}), []
    source = _source(machine)
    source.watch_ooms(lambda fault: devices.append([reading.device for reading in source.capture().readings]))
    with pytest.raises(OutOfMemoryError):
        machine.fail(MIB, device=1)
    assert devices == [[1]]
