"""Storages moved on torch's own allocator: what moves, what is refused, and that no byte is lost."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gpufrag.agent.torch import defragment as mover
from gpufrag.agent.torch.defragment import Options, Refused, defragment
from gpufrag.errors import Unavailable
from gpufrag.model.defragment import Target
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import ALLOCATED

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def empty_cuda_heap() -> Iterator[None]:
    torch.zeros(1, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def keeps_values() -> bool:
    """Copies keep their values on a GPU, and on the stub with FAKE_CUDA_BACKED=1."""
    return bool(torch.arange(3).cuda().cpu()[2] == 2)


def pinning(count: int = 20, survivor: int = 21) -> list[Any]:
    """`count` segments of 40 MiB, each pinned by one tensor of `survivor` MiB whose values are its number."""
    large = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(count)]
    large.clear()
    kept = []
    for number in range(count):
        kept.append(torch.empty(survivor * MIB, dtype=torch.uint8, device="cuda"))
        kept[-1].copy_(torch.full((survivor * MIB,), number, dtype=torch.uint8))
    return kept


def limit_to_reserved(more: int = 0) -> None:
    """Leave this process what it holds, and `more` bytes."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more + MIB) / total)


def values(kept: list[Any]) -> list[list[int]]:
    return [[int(tensor[0]), int(tensor[-1])] for tensor in (entry.cpu() for entry in kept)]


def expected(kept: list[Any]) -> list[list[int]]:
    return [[number, number] for number in range(len(kept))] if keeps_values() else values(kept)


def test_pinning_tensors_move_and_keep_their_values() -> None:
    kept = pinning()
    objects = [(id(tensor), tensor.untyped_storage()._cdata) for tensor in kept]
    result = defragment(torch, 0)
    assert (result.done, result.moved_storages, result.host_bytes) == (True, 20, 0)
    assert (result.stranded_before, result.stranded_after) == (20 * 19 * MIB, 0)
    assert result.largest_allocatable_after == result.predicted_largest_allocatable
    assert objects == [(id(tensor), tensor.untyped_storage()._cdata) for tensor in kept]
    assert values(kept) == expected(kept)


def test_measured_heap_after_a_move_is_the_predicted_one() -> None:
    kept = pinning()
    limit_to_reserved()
    result = defragment(torch, 0)
    measured = measure(*mover.look(torch, 0))
    assert result.ratio_before is not None
    assert result.ratio_before > 4
    assert measured.stranded == 0
    assert measured.largest_allocatable == result.predicted_largest_allocatable
    assert kept


def test_full_device_starts_through_the_host() -> None:
    kept = pinning()
    limit_to_reserved()
    result = defragment(torch, 0)
    assert 0 < result.host_bytes < result.moved_bytes
    assert values(kept) == expected(kept)


def test_plan_only_moves_nothing() -> None:
    kept = pinning()
    addresses = [tensor.data_ptr() for tensor in kept]
    result = defragment(torch, 0, Options(plan_only=True))
    assert not result.done
    assert result.moved_bytes == 20 * 21 * MIB
    assert result.largest_allocatable_after == result.predicted_largest_allocatable
    assert [tensor.data_ptr() for tensor in kept] == addresses


def test_target_limits_what_moves() -> None:
    kept = pinning()
    limit_to_reserved(100 * MIB)
    result = defragment(torch, 0, Options(target=Target(bytes=200 * MIB)))
    assert (result.largest_allocatable_after or 0) >= 200 * MIB
    assert 0 < result.moved_storages < len(kept)


def test_views_parameters_and_gradients_stay_valid() -> None:
    kept = pinning(3)
    parameter = torch.nn.Parameter(kept[0].view(torch.float32))
    parameter.grad = kept[1].view(torch.float32)
    view = kept[2].view(21, MIB)[3]
    version = parameter._version
    defragment(torch, 0)
    assert parameter.data_ptr() == kept[0].data_ptr()
    assert parameter.grad.data_ptr() == kept[1].data_ptr()
    assert view.data_ptr() == kept[2].data_ptr() + 3 * MIB
    assert parameter._version == version


def test_storage_without_a_python_object_stays() -> None:
    kept = pinning(6)
    source = torch.nn.Parameter(torch.empty(21 * MIB // 4, device="cuda"))
    kept[1] = None  # the result of exp takes its block; only C++ holds that result
    total = source.exp().sum()
    address = total.grad_fn.next_functions[0][0]._saved_result.data_ptr()
    assert defragment(torch, 0).left["unreachable"] >= 1
    assert total.grad_fn.next_functions[0][0]._saved_result.data_ptr() == address


def test_storage_that_cannot_be_resized_is_left_and_counted() -> None:
    kept = pinning(4)
    storage = kept[0].untyped_storage()
    alias = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), kept[0].device, storage.nbytes())
    addresses = [tensor.data_ptr() for tensor in kept]
    assert defragment(torch, 0).left["not-resizable"] == 1
    assert alias.data_ptr() == kept[0].data_ptr() == addresses[0]


@pytest.mark.parametrize("failing", [1, 2, 10, 15])
def test_failed_allocation_puts_everything_back(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pinning()
    restore = mover._Mover._restore
    calls = iter(range(1, 1000))

    def fail_once(self: Any, move: Any, copy: Any) -> None:
        if next(calls) == failing:
            raise torch.cuda.OutOfMemoryError("injected")
        restore(self, move, copy)

    monkeypatch.setattr(mover._Mover, "_restore", fail_once)
    with pytest.raises(Unavailable, match="all storages are restored"):
        defragment(torch, 0)
    assert all(tensor.untyped_storage().nbytes() == 21 * MIB for tensor in kept)
    assert values(kept) == expected(kept)


def test_interrupt_during_a_move_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pinning()
    restore = mover._Mover._restore
    calls = iter(range(1, 1000))

    def interrupt_once(self: Any, move: Any, copy: Any) -> None:
        if next(calls) == 5:
            raise KeyboardInterrupt
        restore(self, move, copy)

    monkeypatch.setattr(mover._Mover, "_restore", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        defragment(torch, 0)
    assert values(kept) == expected(kept)


def test_private_pool_is_refused_and_untouched() -> None:
    kept = pinning()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.empty(MIB, device="cuda")
    addresses = [tensor.data_ptr() for tensor in kept]
    with pytest.raises(Refused) as refusal:
        defragment(torch, 0)
    assert refusal.value.reason == "private-pool"
    assert [tensor.data_ptr() for tensor in kept] == addresses
    assert held.data_ptr()


def test_private_pool_is_left_alone_on_request() -> None:
    kept = pinning()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.empty(MIB, device="cuda")
    address = held.data_ptr()
    addresses = [tensor.data_ptr() for tensor in kept]
    assert defragment(torch, 0, Options(allow_graphs=True)).done
    assert [tensor.data_ptr() for tensor in kept] != addresses
    assert held.data_ptr() == address


def test_nccl_registration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1")
    with pytest.raises(Refused) as refusal:
        defragment(torch, 0)
    assert refusal.value.reason == "nccl"


def test_host_limit_of_zero_moves_nothing() -> None:
    kept = pinning()
    addresses = [tensor.data_ptr() for tensor in kept]
    assert not defragment(torch, 0, Options(host_limit=0)).done
    assert [tensor.data_ptr() for tensor in kept] == addresses


def test_heap_without_gaps_is_left_alone() -> None:
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    result = defragment(torch, 0)
    assert (result.done, result.moved_bytes) == (False, 0)
    assert all(state == ALLOCATED for part in mover.look(torch, 0).heap.segments for state in part.states) or kept
