"""JAX and TensorFlow: their figures, read only after the program has initialised a GPU."""

from types import ModuleType

import pytest

from fake_frameworks import GIB, GROWING, PREALLOCATED, FakeJax, FakeTensorflow, JaxDevice, jax, tensorflow
from gpufrag.agent import arrival
from gpufrag.agent.jax import JaxSource, sums
from gpufrag.agent.sources import Live, connect
from gpufrag.agent.tensorflow import TensorflowSource
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Sums


@pytest.fixture
def with_jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    return jax(monkeypatch)


@pytest.fixture
def with_tensorflow(monkeypatch: pytest.MonkeyPatch) -> FakeTensorflow:
    return tensorflow(monkeypatch)


@pytest.fixture
def ready() -> list[ModuleType]:
    return []


def test_full_jax_pool_has_largest_allocatable() -> None:
    assert sums(PREALLOCATED, 1.0, "bfc") == Sums(
        time=1.0,
        allocated=20 * GIB,
        active=20 * GIB,
        reserved=100 * GIB,
        peak_active=60 * GIB,
        peak_reserved=100 * GIB,
        free_cached=80 * GIB,
        largest_free_block=30 * GIB,
        free_total=80 * GIB,
        largest_allocatable=30 * GIB,
    )


def test_growing_jax_pool_has_no_largest_allocatable() -> None:
    found = sums(GROWING, 1.0, "bfc")
    assert (found.free_cached, found.largest_free_block) == (44 * GIB, 30 * GIB)
    assert (found.free_total, found.largest_allocatable) == (None, None)


@pytest.mark.parametrize("backend", ["cuda_async", "platform"])
def test_other_jax_allocators_have_no_free_blocks(backend: str) -> None:
    found = sums(PREALLOCATED, 1.0, backend)
    assert (found.allocated, found.free_cached, found.largest_free_block) == (20 * GIB, None, None)


@pytest.mark.parametrize("name", sorted(PREALLOCATED))
def test_figure_missing_in_a_release_is_absent(name: str) -> None:
    left = {key: value for key, value in PREALLOCATED.items() if key != name}
    whole, found = vars(sums(PREALLOCATED, 1.0, "bfc")), vars(sums(left, 1.0, "bfc"))
    assert {key for key in whole if found[key] != whole[key]} == {key for key in found if found[key] is None} - {
        key for key in whole if whole[key] is None
    }


def test_zero_largest_block_needs_a_full_pool() -> None:
    found = sums({**PREALLOCATED, "largest_free_block_bytes": 0}, 1.0, "bfc")
    assert (found.largest_free_block, found.largest_allocatable, found.free_cached) == (None, None, 80 * GIB)
    full = sums({**PREALLOCATED, "bytes_in_use": 100 * GIB, "largest_free_block_bytes": 0}, 1.0, "bfc")
    assert (full.largest_allocatable, full.free_total) == (0, 0)


def test_jax_is_not_read_before_it_has_a_gpu(with_jax: FakeJax) -> None:
    source = JaxSource(with_jax.module, ErrorCounter(), {})
    assert source.read() == []
    with_jax.initialise("cpu")
    assert source.read() == []


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpus_are_read_by_local_ordinal(with_jax: FakeJax, platform: str) -> None:
    second, of_an_older_jax = JaxDevice(id=9, local_hardware_id=1), JaxDevice(id=2, local_hardware_id=None)
    with_jax.initialise(platform, JaxDevice(), second, of_an_older_jax)
    source = JaxSource(with_jax.module, ErrorCounter(), {})
    assert [(reading.device, reading.limit) for reading in source.read()] == [(n, 100 * GIB) for n in (0, 1, 2)]
    assert source.live(1) == Live(20 * GIB, None)
    assert (source.live(7), source.capture(), source.history_in_use()) == (None, None, False)


def test_jax_allocator_without_statistics_is_left_out(with_jax: FakeJax, errors: ErrorCounter) -> None:
    with_jax.initialise("cuda", JaxDevice(fault=RuntimeError("UNIMPLEMENTED")), JaxDevice(stats=None))
    assert JaxSource(with_jax.module, errors, {}).read() == []
    assert errors.counts == {"jax.Device.memory_stats": 1}


@pytest.mark.parametrize(("chosen", "backend"), [("", "bfc"), ("default", "bfc"), ("Platform", "platform")])
def test_backend_names_the_chosen_jax_allocator(with_jax: FakeJax, chosen: str, backend: str) -> None:
    source = JaxSource(with_jax.module, ErrorCounter(), {"XLA_PYTHON_CLIENT_ALLOCATOR": chosen})
    assert source.facts(0).backend == backend


def test_tensorflow_is_read_once_it_has_devices(with_tensorflow: FakeTensorflow) -> None:
    fake = with_tensorflow
    source = TensorflowSource(fake.module, ErrorCounter(), {})
    assert (source.read(), fake.calls) == ([], [])
    fake.initialise(gpus=2)
    first, second = source.read()
    assert first.sums == Sums(first.sums.time, allocated=3 * GIB, active=3 * GIB, peak_active=5 * GIB)
    assert (second.device, fake.calls, source.facts(0).backend) == (1, ["GPU:0", "GPU:1"], "bfc")


def test_connect_finds_the_adapter_by_module_name(with_jax: FakeJax, with_tensorflow: FakeTensorflow) -> None:
    assert connect(with_jax.module, ErrorCounter()).framework_version == "0.10.2"
    assert connect(with_tensorflow.module, ErrorCounter()).framework_version == "2.21.0"


def test_jax_is_noticed_at_its_first_gpu_compilation(with_jax: FakeJax, ready: list[ModuleType]) -> None:
    arrival.when_in_use(ready.append, with_jax.modules, [])
    with_jax.compile()
    assert ready == []
    with_jax.initialise()
    with_jax.compile()
    with_jax.compile()
    assert ready == [with_jax.module]


def test_tensorflow_is_noticed_when_it_creates_devices(with_tensorflow, ready: list[ModuleType]) -> None:
    arrival.when_in_use(ready.append, with_tensorflow.modules, [])
    with_tensorflow.initialise(gpus=0)
    assert ready == []
    with_tensorflow.initialise(gpus=1)
    with_tensorflow.initialise(gpus=1)
    assert ready == [with_tensorflow.module]


def test_framework_in_use_is_noticed_at_once(with_jax: FakeJax, with_tensorflow, ready: list[ModuleType]) -> None:
    with_jax.initialise()
    with_tensorflow.initialise()
    arrival.when_in_use(ready.append, {**with_jax.modules, **with_tensorflow.modules}, [])
    assert ready == [with_jax.module, with_tensorflow.module]
    assert with_jax.listeners == []


def test_unknown_release_is_left_alone(with_jax, with_tensorflow, ready, monkeypatch, capsys) -> None:
    monkeypatch.setattr(with_tensorflow.context, "Context", object)
    del with_jax.module.monitoring.register_event_duration_secs_listener
    arrival.when_in_use(ready.append, {**with_jax.modules, **with_tensorflow.modules}, [])
    assert (ready, capsys.readouterr().err) == ([], "")


def test_our_error_does_not_fail_a_compilation(with_jax: FakeJax, capsys) -> None:
    arrival.when_in_use(lambda module: 1 // 0, with_jax.modules, [])
    with_jax.initialise()
    with_jax.compile()
    with_jax.compile()
    assert capsys.readouterr().err.count("no agent in this process") == 1
