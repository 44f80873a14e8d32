"""The torch source against torch's surface as four versions have it."""

from __future__ import annotations

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
    capture = source.capture()
    assert capture is not None
    return capture


def test_the_figures_are_torchs_own(machine: Machine) -> None:
    (reading,) = _source(machine).read()
    stats = golden_case_named(CASE).raw["stats"]
    assert reading.totals is not None
    for family in ("allocated", "active", "requested", "reserved", "inactive_split"):
        large, small = getattr(reading.totals.large, family), getattr(reading.totals.small, family)
        assert large + small == stats[f"{family}_bytes.all.current"]
        assert small == stats[f"{family}_bytes.small_pool.current"]
    assert reading.totals.peak_active == stats["active_bytes.all.peak"]
    assert reading.totals.peak_reserved == stats["reserved_bytes.all.peak"]
    assert reading.driver is not None
    assert (reading.driver.free, reading.driver.size) == (machine.free, SIZE)


def test_counters_that_a_version_has_not_are_absent(machine: Machine) -> None:
    (reading,) = _source(machine).read()
    assert reading.totals is not None
    known = Counters(3, 1, 160, 0, 0) if machine.release >= (2, 3) else Counters(3, 1)
    assert reading.totals.counters == known


def test_the_heap_is_the_recorded_one_in_every_form_of_the_snapshot(machine: Machine) -> None:
    heap = _captured(_source(machine)).heap()
    case = golden_case_named(CASE)
    driver = Driver(machine.free, SIZE)
    assert measure(heap, driver) == measure(case.heap, driver)


def test_the_trace_is_left_out_where_torch_can(machine: Machine) -> None:
    machine.version = "2.11.0"
    torch = torch_of(machine)
    asked = []
    snapshot = torch._C._cuda_memorySnapshot
    torch._C._cuda_memorySnapshot = lambda *arguments: asked.append(arguments) or snapshot(*arguments)
    _captured(TorchSource(torch, ErrorCounter(), {}))
    assert asked == [((0, 0, False),)]


@pytest.mark.parametrize(("said", "real"), [("2.11.0a0+git1", "2.8.0"), ("2.8.0a0+git1", "2.4.1"), ("2.11.0", "2.4.1")])
def test_a_build_between_releases_is_asked_in_the_older_form(said: str, real: str) -> None:
    torch = torch_of(Machine(real))
    torch.__version__ = said  # type: ignore[attr-defined]
    assert _captured(TorchSource(torch, ErrorCounter(), {})).heap().segments


def test_nothing_is_asked_of_a_process_that_has_not_initialised_cuda(machine: Machine) -> None:
    machine.initialised = False
    source = _source(machine)
    assert (source.read(), source.capture(), source.recording()) == ([], None, False)
    assert set(machine.calls) == {"cuda.is_initialized"}


def test_a_device_without_a_context_is_not_touched(machine: Machine) -> None:
    machine.heaps[1] = CASE
    assert [reading.device for reading in _source(machine).read()] == [0]
    machine.contexts.add(1)
    assert [reading.device for reading in _source(machine).read()] == [0, 1]


def test_a_device_whose_allocator_never_held_memory_is_left_out(machine: Machine) -> None:
    machine.contexts.add(1)
    machine.calls.clear()
    assert [reading.device for reading in _source(machine).read()] == [0]
    assert machine.calls.count("cuda.mem_get_info") == 1


def test_one_that_has_given_all_back_is_still_told(machine: Machine) -> None:
    source = _source(machine)
    source.read()
    machine.heaps.clear()
    (reading,) = source.read()
    assert reading.totals is not None
    assert reading.totals.large.reserved == 0


def test_only_questions_are_asked(machine: Machine) -> None:
    """And among them none that waits for the device, releases memory or resets a peak."""
    source = _source(machine)
    _captured(source)
    source.facts(0)
    source.recording()
    source.watch_steps(lambda optimizer: None)
    source.graph_underway()
    assert set(machine.calls) <= set(names_of(machine)) - {"cuda._lazy_call"}


@pytest.mark.parametrize("fraction", [0.5, 0.123456789])
def test_the_limit_is_the_fraction_in_whole_bytes(fraction: float) -> None:
    assert _captured(_source(Machine(fraction=fraction))).limits == {0: int(fraction * SIZE)}


def test_without_a_fraction_there_is_no_limit(machine: Machine) -> None:
    assert _captured(_source(machine)).limits == {}


def test_a_fraction_that_only_the_settings_tell_is_cut_as_that_torch_cuts_it() -> None:
    for version, expected in (("2.10.0", 49_999_999_999), ("2.13.0", 50_000_000_000)):
        torch = torch_of(Machine(version))
        remove(torch, "cuda.get_per_process_memory_fraction")
        conf = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{49_999_999_999.75 / SIZE:.20f}"}
        assert _captured(TorchSource(torch, ErrorCounter(), conf)).limits == {0: expected}


def test_settings_come_from_the_environment_where_the_snapshot_has_none() -> None:
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    old, new = (_captured(_source(Machine(version), **conf)) for version in ("2.1.2", "2.11.0"))
    assert old.heap().settings.max_split_size == 64 << 20
    assert new.heap().settings.max_split_size is None, "the allocator's own account wins"
    assert old.alloc_conf == new.alloc_conf == "max_split_size_mb:64"


def test_the_device_is_named_as_nvml_names_it(machine: Machine) -> None:
    facts = _source(machine).facts(1)
    uuid = "GPU-00000001-1111-2222-3333-444444444444"
    assert (facts.backend, facts.uuid) == ("native", uuid if machine.release >= (2, 4) else None)
    if machine.release < (2, 4):
        assert _source(machine, CUDA_VISIBLE_DEVICES=f"0,{uuid}").facts(1).uuid == uuid


def test_a_slice_of_a_gpu_goes_by_its_own_name(machine: Machine) -> None:
    mig = "MIG-00000000-1111-2222-3333-444444444444"
    facts = _source(machine, CUDA_VISIBLE_DEVICES=mig).facts(0)
    assert (facts.uuid, facts.mig_uuid) == (None, mig)


def test_cuda_malloc_async_has_no_heap_and_no_pools(machine: Machine) -> None:
    machine.backend = "cudaMallocAsync"
    source = _source(machine)
    (reading,) = source.read()
    assert (reading.totals, source.capture(), source.facts(0).backend) == (None, None, "cudaMallocAsync")
    assert reading.driver is not None
    assert source.level(0) is None


def test_a_pluggable_allocator_is_not_asked_what_it_cannot_tell(machine: Machine) -> None:
    machine.backend = "pluggable"
    trouble = ErrorCounter()
    source = TorchSource(torch_of(machine), trouble, {})
    (reading,) = source.read()
    assert (reading.totals, source.capture(), trouble.counts) == (None, None, {})


def test_counters_never_fall_although_the_user_resets_them() -> None:
    machine = Machine()
    source = _source(machine)
    seen = []
    for retries in (3, 5, 0, 2, 2, 1, 4):
        machine.counters["num_alloc_retries"] = retries
        (reading,) = source.read()
        assert reading.totals is not None
        seen.append(reading.totals.counters.alloc_retries)
    assert seen == [3, 5, 5, 7, 7, 8, 11]


def test_the_private_pools_are_told_where_torch_has_them() -> None:
    torch = torch_of(Machine("2.13.0"))
    stats = torch.cuda.memory_stats_as_nested_dict
    pools = {(0, 1): {"all": {"current": 5}}, (0, 2): {"all": {"current": 7}}}
    torch.cuda.memory_stats_as_nested_dict = lambda device: stats(device) | {"reserved_bytes_by_private_pools": pools}
    (reading,) = TorchSource(torch, ErrorCounter(), {}).read()
    assert reading.totals is not None
    assert reading.totals.private_pool_reserved == 12


def test_steps_are_watched_through_torchs_global_hook_until_closed(machine: Machine) -> None:
    source = _source(machine)
    seen: list[object] = []
    assert source.watch_steps(seen.append)
    machine.step("a")
    source.close()
    machine.step("b")
    assert seen == ["a"]
    assert len(machine.step_hooks) == 1, "taking it out could break a step that is under way in another thread"


def test_a_capture_is_seen_and_an_unknown_state_is_not_safe(machine: Machine) -> None:
    torch = torch_of(machine)
    source = TorchSource(torch, ErrorCounter(), {})
    assert not source.graph_underway()
    machine.capturing = True
    assert source.graph_underway()
    torch.cuda.is_current_stream_capturing = lambda: 1 // 0 if machine.count < 0 else int("x")
    assert source.graph_underway()


@pytest.mark.parametrize("version", ["2.6.0", "2.7.1"])
def test_a_thread_that_allocates_from_a_mempool_is_not_asked_for_the_whole_heap(version: str) -> None:
    torch = torch_of(Machine(version))
    torch._C._MemPoolContext = ModuleType("context")
    torch._C._MemPoolContext.active_pool = lambda: "a pool"
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    assert source.capture() is None


def test_with_history_on_no_copy_makes_torch_import_a_part_of_itself(machine: Machine) -> None:
    """It would look there for the frames of generated code, while the program may be importing that too."""
    torch = torch_of(machine)
    torch._lazy_modules = {"_inductor"}  # type: ignore[attr-defined]
    source = TorchSource(torch, ErrorCounter(), {})
    source.read()
    assert source.capture() is not None
    machine.history = True
    assert (source.capture() is None) == source.recording()
    torch._inductor = ModuleType("torch._inductor")  # type: ignore[attr-defined]
    assert source.capture() is not None


def test_history_is_noticed_where_torch_tells(machine: Machine) -> None:
    machine.history = True
    assert _source(machine).recording() is (machine.release >= (2, 2))


def test_it_is_found_by_the_modules_name(machine: Machine) -> None:
    source = connect(torch_of(machine), ErrorCounter())
    assert (source.framework, source.framework_version) == ("torch", machine.version)
