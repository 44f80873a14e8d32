"""Storages moved on torch's own allocator: what moves, what is refused, and that no byte is lost."""

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufrag import agent
from gpufrag.agent.torch import defragment as mover
from gpufrag.agent.torch.defragment import Refused, defragment
from gpufrag.agent.torch.source import TorchSource
from gpufrag.cli import main
from gpufrag.errors import Unavailable
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import ALLOCATED, AWAITING
from gpufrag.wire.defragmentation import DefragmentOptions
from gpufrag.wire.error_counter import ErrorCounter

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
    result = defragment(torch, 0, DefragmentOptions(plan_only=True))
    assert not result.done
    assert result.moved_bytes == 20 * 21 * MIB
    assert result.largest_allocatable_after == result.predicted_largest_allocatable
    assert [tensor.data_ptr() for tensor in kept] == addresses


def test_target_limits_what_moves() -> None:
    kept = pinning()
    limit_to_reserved(100 * MIB)
    result = defragment(torch, 0, DefragmentOptions(target_bytes=200 * MIB))
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


def at_restore(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Call `act` before the storage of this number is restored."""
    restore = mover._Mover._restore
    calls = iter(range(1, 1000))

    def acting(self: Any, move: Any, copy: Any) -> None:
        if next(calls) == number:
            act()
        restore(self, move, copy)

    monkeypatch.setattr(mover._Mover, "_restore", acting)


def fails() -> None:
    raise torch.cuda.OutOfMemoryError("injected")


@pytest.mark.parametrize("failing", range(1, 13))
def test_failed_allocation_puts_everything_back(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pinning(12)
    at_restore(monkeypatch, failing, fails)
    with pytest.raises(Unavailable, match="all storages are restored"):
        defragment(torch, 0)
    assert all(tensor.untyped_storage().nbytes() == 21 * MIB for tensor in kept)
    assert values(kept) == expected(kept)


def test_memory_taken_meanwhile_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pinning(6)
    limit_to_reserved(more=300 * MIB)
    taken: list[Any] = []
    tries = itertools.count(1)
    logged: list[str] = []
    monkeypatch.setattr(mover.logger, "warning", lambda text, *figures: logged.append(text % figures))

    def take_all() -> None:
        minutes = itertools.count(step=60.0)
        monkeypatch.setattr(mover.time, "monotonic", lambda: next(minutes))
        # after ten minutes, the other process ends
        monkeypatch.setattr(mover.time, "sleep", lambda seconds: taken.clear() if next(tries) == 10 else None)
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            while True:
                taken.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
        fails()

    at_restore(monkeypatch, 2, take_all)
    with pytest.raises(Unavailable, match="all storages are restored"):
        defragment(torch, 0)
    assert "storages wait in host memory" in logged[0]
    assert next(tries) > 10
    assert all(tensor.untyped_storage().nbytes() == 21 * MIB for tensor in kept)
    assert values(kept) == expected(kept)


def test_error_in_the_moving_thread_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pinning()

    def interrupt() -> None:
        raise KeyboardInterrupt

    at_restore(monkeypatch, 5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        defragment(torch, 0)
    assert values(kept) == expected(kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_a_move_is_raised_after_it(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    kept = pinning()
    previous = signal.signal(number, lambda *_: sys.exit(3))
    at_restore(monkeypatch, 5, lambda: os.kill(os.getpid(), number))
    try:
        with pytest.raises(SystemExit):
            defragment(torch, 0)
    finally:
        signal.signal(number, previous)
    assert all(tensor.untyped_storage().nbytes() == 21 * MIB for tensor in kept)
    assert measure(*mover.look(torch, 0)).stranded == 0
    assert values(kept) == expected(kept)


def test_time_limit_starts_no_further_round() -> None:
    kept = pinning()
    addresses = [tensor.data_ptr() for tensor in kept]
    result = defragment(torch, 0, DefragmentOptions(time_limit=0.0))
    assert (result.done, result.moved_bytes) == (False, 0)
    assert [tensor.data_ptr() for tensor in kept] == addresses


def test_plan_equals_the_result() -> None:
    kept = pinning(8) + pinning(5, survivor=25) + [torch.empty(700, device="cuda") for _ in range(40)]
    limit_to_reserved()
    planned = defragment(torch, 0, DefragmentOptions(plan_only=True))
    done = defragment(torch, 0)
    assert done.done
    same = replace(done, done=False, seconds=planned.seconds, expected_seconds=planned.expected_seconds)
    assert same == planned
    assert planned.expected_seconds > planned.seconds
    assert kept


def test_totals_are_kept_by_device_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "_totals", {})
    assert mover.totals(0) is None
    kept = pinning(4)
    result = defragment(torch, 0)
    at_restore(monkeypatch, 1, fails)
    kept += pinning(4)
    with pytest.raises(Unavailable):
        defragment(torch, 0)
    found = mover.totals(0)
    assert found is not None
    assert (found.moved_bytes, found.refused) == (result.moved_bytes, {"failed": 1})
    assert found.seconds > result.seconds
    assert found.largest_allocatable_after == result.largest_allocatable_after
    assert kept


def test_live_graph_is_refused_until_it_is_dropped() -> None:
    kept = pinning()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.empty(MIB, device="cuda") + 1
        with pytest.raises(Refused) as capturing:
            defragment(torch, 0)
    addresses = [tensor.data_ptr() for tensor in kept]
    with pytest.raises(Refused) as live:
        defragment(torch, 0)
    assert (capturing.value.reason, live.value.reason) == ("capture", "private-pool")
    assert [tensor.data_ptr() for tensor in kept] == addresses
    del inside, graph
    gc.collect()
    torch.cuda.empty_cache()
    assert defragment(torch, 0).done


def test_backward_pass_is_refused() -> None:
    refusals: list[str] = []
    weights = torch.nn.Parameter(torch.empty(1024, device="cuda"))

    def step(parameter: Any) -> None:
        with pytest.raises(Refused) as refusal:
            defragment(torch, 0)
        refusals.append(refusal.value.reason)

    weights.register_post_accumulate_grad_hook(step)
    (weights * 2).sum().backward()
    assert refusals == ["backward"]


def test_freed_block_that_waits_for_a_stream_is_collected() -> None:
    kept = pinning(6)
    passing = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    passing.record_stream(torch.cuda.Stream())
    del passing
    assert any(AWAITING in segment.states for segment in mover.look(torch, 0).heap.segments)
    assert defragment(torch, 0).done
    assert kept


def test_block_of_another_stream_waits_for_the_current_one_when_freed() -> None:
    """As after record_stream(current): its old marks are lost with its old block."""
    with torch.cuda.stream(torch.cuda.Stream()):
        kept = pinning(6)
    assert defragment(torch, 0).done
    kept.clear()
    states = [state for segment in mover.look(torch, 0).heap.segments for state in segment.states]
    assert states.count(AWAITING) == 6


def test_storage_shared_with_another_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.multiprocessing import reductions

    kept = pinning(4)
    shared = reductions.StorageWeakRef(kept[0].untyped_storage())
    monkeypatch.setattr(reductions, "shared_cache", {"handle": shared})  # as after the tensor was put into a queue
    address = kept[0].data_ptr()
    result = defragment(torch, 0)
    assert (result.left, result.moved_storages) == ({"ipc": 1}, 3)
    assert kept[0].data_ptr() == address


SHARING = """
import json, torch
from torch.multiprocessing import reductions
from gpufrag.agent.torch.defragment import defragment
empty = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
kept, passing = [empty(2) for _ in range(4)], empty(2)
del passing
for tensor in kept[:2]:
    reductions.reduce_tensor(tensor)  # as a queue does
before = [tensor.data_ptr() for tensor in kept]
result = defragment(torch, 0)
print(json.dumps([len(reductions.shared_cache), result.left, before == [tensor.data_ptr() for tensor in kept]]))
"""


def test_all_shared_storages_of_a_segment_stay(run_json: Callable[..., Any]) -> None:
    """torch lists only the last one; in a process of its own, because nobody releases them there."""
    assert run_json(SHARING) == [1, {"ipc": 2}, True]


def test_default_device_of_the_program_changes_nothing() -> None:
    kept = pinning(4)
    torch.set_default_device("cuda")
    try:
        limit_to_reserved()
        assert defragment(torch, 0).done  # through pinned host memory too
    finally:
        torch.set_default_device(None)
    assert values(kept) == expected(kept)


def test_order_from_the_shell_moves_at_a_step_of_the_training_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = pinning()
    weights = torch.nn.Parameter(torch.empty(1024, device="cuda"))
    weights.grad = torch.empty_like(weights)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    agent.start(TorchSource(torch, ErrorCounter()), interval=1000.0, folder=tmp_path)
    codes: list[int] = []

    def order() -> None:
        for words in (["--plan"], [], []):
            codes.append(main(["defragment", str(os.getpid()), "--folder", str(tmp_path), *words]))

    try:
        while not list(tmp_path.glob("*.json")):
            time.sleep(0.01)
        shell = threading.Thread(target=order)
        shell.start()
        deadline = time.monotonic() + 60
        while shell.is_alive() and time.monotonic() < deadline:
            optimizer.step()
            time.sleep(0.001)
        shell.join(1)
        out, err = capsys.readouterr()
        assert (codes, err) == ([0, 0, 0], "")
    finally:
        agent.stop()
    planned, moved, nothing = (line for line in out.splitlines() if "device 0" in line)
    assert planned.partition("would move ")[2].startswith("420 MiB in 2")
    assert moved.partition("moved ")[2].startswith("420 MiB in 2")
    assert "nothing to move" in nothing
    assert planned.partition("largest")[2] == moved.partition("largest")[2]
    assert kept


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
    assert defragment(torch, 0, DefragmentOptions(allow_graphs=True)).done
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
    assert not defragment(torch, 0, DefragmentOptions(host_limit=0)).done
    assert [tensor.data_ptr() for tensor in kept] == addresses


def test_heap_without_gaps_is_left_alone() -> None:
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    result = defragment(torch, 0)
    assert (result.done, result.moved_bytes) == (False, 0)
    assert all(state == ALLOCATED for part in mover.look(torch, 0).heap.segments for state in part.states) or kept


# --- expandable segments: free memory is stranded in pages that a live block keeps mapped

PAGE = 20 * MIB


@pytest.fixture
def expandable() -> Iterator[None]:
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    yield
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def in_pages(count: int = 20, survivor: int = 3, pages: int = 1) -> list[Any]:
    """`count` tensors of `survivor` MiB whose values are their numbers, each at the start of `pages` pages."""
    kept, passing = [], []
    for number in range(count):
        kept.append(torch.empty(survivor * MIB, dtype=torch.uint8, device="cuda"))
        kept[-1].copy_(torch.full((survivor * MIB,), number, dtype=torch.uint8))
        passing.append(torch.empty(pages * PAGE - survivor * MIB, dtype=torch.uint8, device="cuda"))
    passing.clear()
    return kept


def fits(size: int) -> bool:
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return False
    return True


@pytest.mark.usefixtures("expandable")
@pytest.mark.parametrize("pages", [1, 2], ids=["every page in use", "free pages too"])
def test_blocks_that_keep_pages_mapped_move_together(pages: int) -> None:
    kept = in_pages(pages=pages)
    (segment,) = mover.look(torch, 0).heap.segments
    assert (segment.expandable, segment.size) == (True, 20 * pages * PAGE)
    limit_to_reserved()
    planned = defragment(torch, 0, DefragmentOptions(plan_only=True))
    result = defragment(torch, 0)
    assert (result.done, result.moved_storages, result.left) == (True, 20, {})
    assert result.stranded_before == 20 * 17 * MIB
    assert result.stranded_after <= PAGE
    assert (result.host_bytes > 0) == (pages == 1), "without a free page the copies go through the host"
    assert result.largest_allocatable_after == planned.predicted_largest_allocatable
    assert (fits(result.largest_allocatable_after), fits(result.largest_allocatable_after + 512)) == (True, False)
    assert measure(*mover.look(torch, 0)).largest_allocatable == result.largest_allocatable_after
    assert values(kept) == expected(kept)


@pytest.mark.usefixtures("expandable")
def test_block_that_cannot_move_keeps_its_page() -> None:
    kept = in_pages()
    alias = torch._C._construct_storage_from_data_pointer(
        kept[7].untyped_storage().data_ptr(), kept[7].device, kept[7].untyped_storage().nbytes()
    )
    address = kept[7].data_ptr()
    result = defragment(torch, 0)
    assert (result.moved_storages, result.left) == (19, {"not-resizable": 1})
    assert kept[7].data_ptr() == alias.data_ptr() == address
    assert values(kept) == expected(kept)


@pytest.mark.usefixtures("expandable")
@pytest.mark.parametrize("failing", [1, 7, 20])
def test_failed_allocation_in_pages_puts_everything_back(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = in_pages()
    at_restore(monkeypatch, failing, fails)
    with pytest.raises(Unavailable, match="all storages are restored"):
        defragment(torch, 0)
    assert all(tensor.untyped_storage().nbytes() == 3 * MIB for tensor in kept)
    assert values(kept) == expected(kept)


def test_plain_segments_from_before_the_setting_move_too() -> None:
    """A program that switches to expandable segments while it runs keeps both kinds."""
    kept = pinning(6)
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        kept += in_pages()
        assert {segment.expandable for segment in mover.look(torch, 0).heap.segments} == {True, False}
        planned = defragment(torch, 0, DefragmentOptions(plan_only=True))
        result = defragment(torch, 0)
        assert result.done
        assert result.largest_allocatable_after == planned.predicted_largest_allocatable
        assert result.stranded_after < result.stranded_before
        assert values(kept) == (values(kept) if not keeps_values() else [[n, n] for n in (*range(6), *range(20))])
    finally:
        kept.clear()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
