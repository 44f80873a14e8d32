"""The torch source with the functions of four torch releases."""

from types import ModuleType

import pytest

from fake_torch import SIZE, VERSIONS, Machine, names_of, remove, torch_of
from gpufrag.agent.sources import Capture, connect
from gpufrag.agent.torch.source import TorchSource
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Counters
from helpers import golden_case_named

CASE = "streams-default"


@pytest.fixture(params=VERSIONS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def _source(machine: Machine, **environment: str) -> TorchSource:
    return TorchSource(torch_of(machine), ErrorCounter(), environment)


def _captured(source: TorchSource) -> Capture:
    source.read()
    return source.capture()


def test_figures_are_torchs_own(machine: Machine) -> None:
    (reading,) = _source(machine).read()
    stats = golden_case_named(CASE).raw["stats"]
    for family in ("allocated", "active", "requested", "reserved", "inactive_split"):
        large, small = getattr(reading.totals.large, family), getattr(reading.totals.small, family)
        assert large + small == stats[f"{family}_bytes.all.current"]
        assert small == stats[f"{family}_bytes.small_pool.current"]
    assert reading.totals.peak_active == stats["active_bytes.all.peak"]
    assert reading.totals.peak_reserved == stats["reserved_bytes.all.peak"]
    assert (reading.driver.free, reading.driver.size) == (machine.free, SIZE)


def test_counters_missing_in_a_release_are_absent(machine: Machine) -> None:
    (reading,) = _source(machine).read()
    known = Counters(3, 1, 160, 0, 0) if machine.release >= (2, 3) else Counters(3, 1)
    assert reading.totals.counters == known


def test_heap_is_read_from_every_form_of_snapshot(machine: Machine) -> None:
    heap = _captured(_source(machine)).heap()
    case = golden_case_named(CASE)
    driver = Driver(machine.free, SIZE)
    assert measure(heap, driver) == measure(case.heap, driver)


def test_snapshot_has_no_trace_if_torch_can_omit_it(machine: Machine) -> None:
    machine.version = "2.11.0"
    torch = torch_of(machine)
    asked = []
    snapshot = torch._C._cuda_memorySnapshot
    torch._C._cuda_memorySnapshot = lambda *arguments: asked.append(arguments) or snapshot(*arguments)
    _captured(TorchSource(torch, ErrorCounter(), {}))
    assert asked == [((0, 0, False),)]


@pytest.mark.parametrize(("name", "real"), [("2.11.0a0+git1", "2.8.0"), ("2.8.0a0+git1", "2.4.1"), ("2.11.0", "2.4.1")])
def test_build_between_releases_uses_the_older_form(name: str, real: str) -> None:
    torch = torch_of(Machine(real))
    torch.__version__ = name
    assert _captured(TorchSource(torch, ErrorCounter(), {})).heap().segments


def test_nothing_is_read_before_cuda_is_initialised(machine: Machine) -> None:
    machine.initialised = False
    source = _source(machine)
    assert (source.read(), source.capture(), source.history_in_use()) == ([], None, False)
    assert set(machine.calls) == {"cuda.is_initialized"}


def test_device_without_context_is_not_touched(machine: Machine) -> None:
    machine.heaps[1] = CASE
    assert [reading.device for reading in _source(machine).read()] == [0]
    machine.contexts.add(1)
    assert [reading.device for reading in _source(machine).read()] == [0, 1]


def test_device_without_reserved_memory_is_left_out(machine: Machine) -> None:
    machine.contexts.add(1)
    machine.calls.clear()
    assert [reading.device for reading in _source(machine).read()] == [0]
    assert machine.calls.count("cuda.mem_get_info") == 1


def test_device_that_released_everything_stays(machine: Machine) -> None:
    source = _source(machine)
    source.read()
    machine.heaps.clear()
    (reading,) = source.read()
    assert reading.totals.large.reserved == 0


def test_source_only_reads(machine: Machine) -> None:
    """And among them none that waits for the device, releases memory or resets a peak."""
    source = _source(machine)
    _captured(source)
    source.facts(0)
    source.history_in_use()
    source.watch_steps(lambda optimizer: None)
    source.graph_underway()
    assert set(machine.calls) <= set(names_of(machine)) - {"cuda._lazy_call"}


@pytest.mark.parametrize("fraction", [0.5, 0.123456789])
def test_limit_is_the_fraction_in_whole_bytes(fraction: float) -> None:
    assert _captured(_source(Machine(fraction=fraction))).limits == {0: int(fraction * SIZE)}


def test_no_fraction_is_no_limit(machine: Machine) -> None:
    assert _captured(_source(machine)).limits == {}


def test_fraction_from_settings_is_rounded_as_in_torch() -> None:
    for version, expected in (("2.10.0", 49_999_999_999), ("2.13.0", 50_000_000_000)):
        torch = torch_of(Machine(version))
        remove(torch, "cuda.get_per_process_memory_fraction")
        conf = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{49_999_999_999.75 / SIZE:.20f}"}
        assert _captured(TorchSource(torch, ErrorCounter(), conf)).limits == {0: expected}


def test_settings_come_from_snapshot_or_environment() -> None:
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    old, new = (_captured(_source(Machine(version), **conf)) for version in ("2.1.2", "2.11.0"))
    assert old.heap().settings.max_split_size == 64 << 20
    assert new.heap().settings.max_split_size is None, "the allocator's own account wins"
    assert old.alloc_conf == new.alloc_conf == "max_split_size_mb:64"


def test_device_has_its_nvml_uuid(machine: Machine) -> None:
    facts = _source(machine).facts(1)
    uuid = "GPU-00000001-1111-2222-3333-444444444444"
    assert (facts.backend, facts.uuid) == ("native", uuid if machine.release >= (2, 4) else None)
    if machine.release < (2, 4):
        assert _source(machine, CUDA_VISIBLE_DEVICES=f"0,{uuid}").facts(1).uuid == uuid


def test_mig_slice_has_its_own_uuid(machine: Machine) -> None:
    mig = "MIG-00000000-1111-2222-3333-444444444444"
    facts = _source(machine, CUDA_VISIBLE_DEVICES=mig).facts(0)
    assert (facts.uuid, facts.mig_uuid) == (None, mig)


def test_counters_survive_a_reset_by_the_user() -> None:
    machine = Machine()
    source = _source(machine)
    seen = []
    for retries in (3, 5, 0, 2, 2, 1, 4):
        machine.counters["num_alloc_retries"] = retries
        (reading,) = source.read()
        assert reading.totals is not None
        seen.append(reading.totals.counters.alloc_retries)
    assert seen == [3, 5, 5, 7, 7, 8, 11]


def test_private_pools_are_read_if_torch_has_them() -> None:
    torch = torch_of(Machine("2.13.0"))
    stats = torch.cuda.memory_stats_as_nested_dict
    pools = {(0, 1): {"all": {"current": 5}}, (0, 2): {"all": {"current": 7}}}
    torch.cuda.memory_stats_as_nested_dict = lambda device: stats(device) | {"reserved_bytes_by_private_pools": pools}
    (reading,) = TorchSource(torch, ErrorCounter(), {}).read()
    assert reading.totals.private_pool_reserved == 12


def test_steps_are_watched_until_closed(machine: Machine) -> None:
    source = _source(machine)
    seen: list[object] = []
    assert source.watch_steps(seen.append)
    machine.step("a")
    source.close()
    machine.step("b")
    assert seen == ["a"]
    assert len(machine.step_hooks) == 1, "taking it out could break a step that is under way in another thread"


def test_unknown_capture_state_is_not_safe(machine: Machine) -> None:
    torch = torch_of(machine)
    source = TorchSource(torch, ErrorCounter(), {})
    assert not source.graph_underway()
    machine.capturing = True
    assert source.graph_underway()
    torch.cuda.is_current_stream_capturing = lambda: 1 // 0 if machine.count < 0 else int("x")
    assert source.graph_underway()


@pytest.mark.parametrize("version", ["2.6.0", "2.7.1"])
def test_no_snapshot_in_a_mempool_context(version: str) -> None:
    torch = torch_of(Machine(version))
    torch._C._MemPoolContext = ModuleType("context")
    torch._C._MemPoolContext.active_pool = lambda: "a pool"
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    assert source.capture() is None


def test_snapshot_never_makes_torch_import_inductor(machine: Machine) -> None:
    """It would look there for the frames of generated code, while the program may be importing that too."""
    torch = torch_of(machine)
    torch._lazy_modules = {"_inductor"}
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    assert source.capture() is not None
    machine.history = True
    assert (source.capture() is None) == source.history_in_use()
    torch._inductor = ModuleType("torch._inductor")
    assert source.capture() is not None


def test_history_of_the_program_is_noticed(machine: Machine) -> None:
    machine.history = True
    assert _source(machine).history_in_use()


def test_torch_source_is_found_by_module_name(machine: Machine) -> None:
    source = connect(torch_of(machine), ErrorCounter())
    assert (source.framework, source.framework_version) == ("torch", machine.version)
