"""Torch's other allocators and builds: no heap, sums if they exist, never a made-up 0."""

from types import SimpleNamespace

import pytest

from fake_torch import SIZE, VERSIONS, Machine, torch_of
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Sums
from helpers import golden_case_named

STATS = golden_case_named("streams-default").raw["stats"]


@pytest.fixture(params=VERSIONS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(version=request.param, backend="cudaMallocAsync")


def stepping(machine: Machine, errors: ErrorCounter | None = None) -> TorchSource:
    """After one step of the program, if torch reports steps."""
    source = TorchSource(torch_of(machine), errors or ErrorCounter(), {})
    if source.watch_steps(lambda optimizer: None):
        machine.step("optimizer")
    return source


def test_cuda_malloc_async_has_sums_only(machine: Machine) -> None:
    errors = ErrorCounter()
    source = stepping(machine, errors)
    (reading,) = source.read()
    sums = reading.sums
    assert sums == Sums(
        time=sums.time,
        allocated=STATS["allocated_bytes.all.current"],
        active=STATS["active_bytes.all.current"],
        reserved=STATS["reserved_bytes.all.current"],
        peak_active=STATS["active_bytes.all.peak"],
        peak_reserved=STATS["reserved_bytes.all.peak"],
    )
    assert (reading.totals, source.capture(), source.live(0), errors.counts) == (None, None, None, {})
    assert (source.facts(0).backend, reading.driver.size) == ("cudaMallocAsync", SIZE)


def test_cuda_malloc_async_is_read_between_steps_only(machine: Machine) -> None:
    """Anywhere else another thread may be capturing a graph, which the question would break."""
    source = TorchSource(torch_of(machine), ErrorCounter(), {})
    assert source.watch_steps(lambda optimizer: None)
    assert source.read()[0].sums is None
    assert "cuda.memory_stats_as_nested_dict" not in machine.calls
    machine.capturing = True
    machine.step("optimizer")
    assert "cuda.memory_stats_as_nested_dict" not in machine.calls


def test_cuda_malloc_async_is_not_read_on_unused_devices(machine: Machine) -> None:
    machine.contexts = set()
    source = stepping(machine)
    assert (source.read(), source.live(0)) == ([], None)
    assert "cuda.memory_stats_as_nested_dict" not in machine.calls


def test_pluggable_allocator_has_driver_figures_only(machine: Machine) -> None:
    machine.backend = "pluggable"
    errors = ErrorCounter()
    source = TorchSource(torch_of(machine), errors, {})
    (reading,) = source.read()
    assert (reading.sums, reading.totals, source.live(0), source.capture()) == (None, None, None, None)
    assert reading.driver
    assert (source.facts(0).backend, errors.counts) == ("pluggable", {})


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.4.1+rocm6.1", "2.4.1+rocm6.1"),
        ("2.4.0a0+git1", "2.4.0a0+git1.rocm6.1.40091"),
        ("2.4.0", "2.4.0+rocm6.1.40091"),
    ],
)
def test_rocm_build_has_its_version(version: str, found: str) -> None:
    torch = torch_of(Machine(version=version))
    torch.version = SimpleNamespace(hip="6.1.40091", cuda=None)
    source = TorchSource(torch, ErrorCounter(), {"HIP_VISIBLE_DEVICES": "1"})
    (reading,) = source.read()
    assert (source.framework_version, source.facts(0).backend) == (found, "native")
    assert reading.driver is not None
    assert (reading.driver.free, reading.driver.size) == (100_000_000_000, SIZE)
    assert source.capture() is not None
