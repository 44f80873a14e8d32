"""A torch without a function, or with one that fails, loses only the figures that need it."""

import pytest

from fake_torch import VERSIONS, Machine, names_of, remove, torch_of
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter


@pytest.fixture(params=VERSIONS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def test_failing_call_loses_only_its_figures(machine: Machine) -> None:
    torch, errors = torch_of(machine), ErrorCounter()
    torch.cuda.mem_get_info = lambda device: int("CUDA error: device lost")
    (reading,) = TorchSource(torch, errors, {}).read()
    assert (reading.totals is None, reading.driver) == (False, None)
    assert errors.counts == {"torch.cuda.mem_get_info": 1}


def test_device_without_answers_is_left_out() -> None:
    machine = Machine()
    torch = torch_of(machine)
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    torch.cuda.memory_stats_as_nested_dict = torch.cuda.mem_get_info = lambda device: int("lost")
    assert source.read() == []


def test_unknown_statistics_lose_only_their_figures(machine: Machine) -> None:
    torch, errors = torch_of(machine), ErrorCounter()
    stats = torch.cuda.memory_stats_as_nested_dict
    torch.cuda.memory_stats_as_nested_dict = lambda device: {
        k: v for k, v in stats(device).items() if k != "active_bytes"
    }
    source = TorchSource(torch, errors, {})
    (reading,) = source.read()
    assert (reading.totals, set(errors.counts)) == (None, {"torch statistics"})
    assert reading.driver
    assert source.capture().heap().segments


LACKING = {
    "cuda.is_initialized": {"totals", "driver", "heap", "limit", "recording", "events", "ooms"},
    "cuda.device_count": {"totals", "driver", "heap", "limit"},
    "cuda.get_allocator_backend": {"totals", "heap", "limit", "ooms", "events"},
    "cuda.memory_stats_as_nested_dict": {"totals"},
    "cuda.mem_get_info": {"driver"},
    "cuda.get_device_properties": {"limit", "uuid"},
    "cuda.get_per_process_memory_fraction": {"limit"},
    "cuda.is_current_stream_capturing": {"steps"},
    "optim.optimizer.register_optimizer_step_post_hook": {"steps"},
    "_C._cuda_attach_out_of_memory_observer": {"ooms"},
    "_C._cuda_hasPrimaryContext": {"driver"},
    "_C._cuda_isHistoryEnabled": {"recording", "events"},
    "_C._cuda_record_memory_history": {"events"},
    "_C._cuda_record_memory_history_legacy": set(),
    "cuda.memory._record_memory_history": {"events"},
    "_C._cuda_memorySnapshot": {"heap", "limit"},
    "cuda._lazy_call": set(),
}
"""Function -> the figures that are absent without it."""


def _known(machine: Machine, source: TorchSource) -> set[str]:
    readings, capture = source.read(), source.capture()
    known = {
        "totals": any(reading.totals for reading in readings),
        "driver": any(reading.driver for reading in readings),
        "heap": capture is not None and bool(capture.readings) and bool(capture.heap().segments),
        "limit": capture is not None and bool(capture.limits),
        "uuid": source.facts(0).uuid is not None,
        "steps": source.watch_steps(lambda optimizer: None),
        "recording": source.history_in_use(),
        "ooms": source.watch_ooms(lambda fault: None),
    }
    machine.history = False
    known["events"] = source.start_recording(10) is None and machine.history
    return {name for name, present in known.items() if present}


@pytest.mark.parametrize("name", LACKING)
def test_missing_function_loses_only_its_figures(machine: Machine, name: str) -> None:
    machine.history, machine.fraction = True, 0.5
    everything = _known(machine, TorchSource(torch_of(machine), ErrorCounter(), {}))
    if name in names_of(machine):
        torch = torch_of(machine)
        remove(torch, name)
        machine.history = True
        assert _known(machine, TorchSource(torch, ErrorCounter(), {})) == everything - LACKING[name]


def test_table_has_every_function_used() -> None:
    assert LACKING.keys() == set(names_of(Machine("2.11.0")))
