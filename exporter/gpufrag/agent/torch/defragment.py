"""Defragment the CUDA heap of this process by moving tensors' storages between two steps. Only on request.

A storage moves as a whole: its bytes are copied out, the StorageImpl is resized to 0 and back, and the bytes are copied
in. The StorageImpl stays the same object, so views, parameters, optimizer state and C++ holders stay valid.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from ...errors import GpufragError, Unavailable
from ...model.allocatable import Driver
from ...model.defragment import Move, Plan, Round, Target, plan
from ...model.fragmentation import Fragmentation, measure
from ...model.heap import ALLOCATED, AWAITING, Heap, parse
from ...model.settings import SMALL_REQUEST
from ...wire.defragmentation import Defragmentations, DefragmentOptions, Result
from ...wire.interrupts import call_confined
from ...wire.threads import start_thread

HOST_SHARE = 0.5
"""Share of the host's available memory that copies may take."""
ALIGNMENT = 512
SMALLEST_STAGING = SMALL_REQUEST + 1
DEVICE_SPEED, HOST_SPEED, PER_STORAGE_S = 110 << 30, 2.5 * (1 << 30), 5e-5
"""Bytes per second through the device and through pinned host memory, and the cost of a call, on an H200."""
REPORT_S, RETRY_S = 60.0, 1.0
"""How often a wait for room is logged, and how often storages are tried again."""
FAILED = "failed"
"""The reason, as a metric label, of a move that failed and was undone."""
logger = logging.getLogger("gpufrag")
T = TypeVar("T")
_totals: dict[int, Defragmentations] = {}


class Refused(GpufragError):
    """The heap must not be touched now; nothing was moved. `reason` is a metric label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Heapshot(NamedTuple):
    """The heap and the driver's reading, taken together on a synchronized device."""

    heap: Heap
    driver: Driver


def totals(device: int) -> Defragmentations | None:
    """Return what was done on a device so far; None if nothing was."""
    return _totals.get(device)


def defragment(torch: Any, device: int | None = None, options: DefragmentOptions = DefragmentOptions()) -> Result:
    """Move storages of one device (None: the current one) until its target is reached.

    Call it between two steps, in the training thread. Raises Refused if the heap must not be touched, Unavailable if a
    move failed and everything was put back. An exception of a signal handler is raised when the move is complete.
    """
    initialized = torch.cuda.is_initialized()  # asking for the current device would initialize CUDA
    device = device if device is not None else torch.cuda.current_device() if initialized else 0
    before = _totals.get(device, Defragmentations())
    began = time.monotonic()
    try:
        _require_safe(torch)
        stream = torch.cuda.current_stream(device)
        return _run_uninterrupted(lambda: _counted(before, _defragment(torch, device, options, stream, began)))
    except (Refused, Unavailable) as error:
        reason = error.reason if isinstance(error, Refused) else FAILED
        refused = {**before.refused, reason: before.refused.get(reason, 0) + 1}
        _totals[device] = replace(before, refused=refused, seconds=before.seconds + time.monotonic() - began)
        raise


def _run_uninterrupted(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own and wait for it: a signal handler raises only in the main thread.

    There, an exception between two calls to torch could leave storages without their bytes.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()  # an interrupted join can take a running thread for a dead one (Python 3.11)

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    try:
        start_thread(run, "gpufrag-defragment")
    except RuntimeError as error:
        raise Unavailable(f"cannot defragment: the process cannot start a thread ({error})") from None
    interruption: BaseException | None = None
    while not done.is_set():
        try:
            done.wait()
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
    if errors:
        raise errors[0]
    return results[0]


def _counted(before: Defragmentations, result: Result) -> Result:
    after = replace(before, seconds=before.seconds + result.seconds)
    if result.done:
        after = replace(
            after,
            moved_bytes=before.moved_bytes + result.moved_bytes,
            largest_allocatable_before=result.largest_allocatable_before,
            largest_allocatable_after=result.largest_allocatable_after,
        )
    _totals[result.device] = after
    return result


def _defragment(torch: Any, device: int, options: DefragmentOptions, stream: Any, began: float) -> Result:
    with torch.cuda.device(device), torch.no_grad():
        before = _settled(torch, device)
        if not options.allow_graphs and any(segment.private for segment in before.heap.segments):
            what = "CUDA graphs or memory pools, which keep addresses"
            raise Refused("private-pool", f"cannot defragment: the process has {what}")
        storages, left = find_storages(torch, device, before.heap)
        target = Target(options.target_ratio, options.target_bytes)
        chosen = plan(before.heap, before.driver, storages.keys(), _host_room(options.host_limit), target)
        expected = time.monotonic() - began + _moving_seconds(chosen)
        rounds, after = chosen.rounds, chosen.after
        if rounds and not options.plan_only:
            mover = _Mover(torch, device, storages, before.heap.settings.expandable_segments, stream)
            deadline = None if options.time_limit is None else began + options.time_limit
            rounds = mover.run(rounds, options.verify, deadline)
            after = _measured(torch, device)
    return Result(
        device=device,
        done=bool(rounds) and not options.plan_only,
        moved_bytes=sum(one.bytes for one in rounds),
        moved_storages=len({move.address for one in rounds for move in one.moves}),
        seconds=time.monotonic() - began,
        expected_seconds=expected,
        ratio_before=chosen.before.ratio,
        ratio_after=after.ratio,
        largest_allocatable_before=chosen.before.largest_allocatable,
        largest_allocatable_after=after.largest_allocatable,
        predicted_largest_allocatable=chosen.after.largest_allocatable,
        stranded_before=chosen.before.stranded,
        stranded_after=after.stranded,
        host_bytes=sum(one.bytes for one in rounds if not one.on_device),
        left=dict(left),
    )


def _moving_seconds(chosen: Plan) -> float:
    """Estimate the time of all moves, from speeds measured on an H200."""
    seconds = 0.0
    for one in chosen.rounds:
        seconds += one.bytes / (DEVICE_SPEED if one.on_device else HOST_SPEED) + len(one.moves) * PER_STORAGE_S
    return seconds


def look(torch: Any, device: int) -> Heapshot:
    """Return the heap of one device and the driver's reading. The device must be synchronized."""
    heap = parse(torch.cuda.memory._snapshot()).on_device(device)
    free, size = torch.cuda.mem_get_info(device)
    fraction = 1.0
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        fraction = torch.cuda.get_per_process_memory_fraction(device)
    return Heapshot(heap, Driver(free, size, int(fraction * size) if fraction < 1 else None))


def _settled(torch: Any, device: int) -> Heapshot:
    """Return the heap when nothing waits for a stream any more. Raises Refused if something still does."""
    torch.cuda.synchronize(device)
    found = look(torch, device)
    if _awaits_stream(found.heap):
        torch.empty(1, dtype=torch.uint8, device=f"cuda:{device}")  # the allocator looks at events when it allocates
        found = look(torch, device)
    if _awaits_stream(found.heap):
        raise Refused("pending", "cannot defragment: another thread uses the GPU; try again at another step")
    return found


def _awaits_stream(heap: Heap) -> bool:
    return any(AWAITING in segment.states for segment in heap.segments)


def _measured(torch: Any, device: int) -> Fragmentation:
    torch.cuda.synchronize(device)
    return measure(*look(torch, device))


def _require_safe(torch: Any) -> None:
    if not torch.cuda.is_initialized():
        raise Refused("no-cuda", "cannot defragment: this process has not initialized CUDA")
    if torch.cuda.get_allocator_backend() != "native":
        raise Refused(
            "backend", f"cannot defragment: allocator backend {torch.cuda.get_allocator_backend()} has no heap"
        )
    if torch.cuda.is_current_stream_capturing():
        raise Refused("capture", "cannot defragment while a CUDA graph is being captured")
    task = getattr(torch._C, "_current_graph_task_id", None)  # set in an optimizer that steps during the backward pass
    if task is not None and task() != -1:
        raise Refused("backward", "cannot defragment during a backward pass: call gpufrag.step_ended after it")
    if os.environ.get("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "0") not in ("", "0"):
        raise Refused("nccl", "cannot defragment: NCCL has registered this allocator's segments")


def find_storages(torch: Any, device: int, heap: Heap) -> tuple[dict[int, Any], Counter[str]]:
    """Return the storages that own a block alone, by its address; and the other live blocks, counted by reason.

    Only blocks of fragmented segments are looked at. A block moves only if one StorageImpl that Python can reach
    starts where the block starts and asked for all of it, and may be resized.
    """
    blocks = {
        block.address: block.requested
        for segment in heap.segments
        if not segment.private and len(segment.sizes) > 1
        for block in segment.blocks()
        if block.state is ALLOCATED
    }
    shared, owned = _ipc_storages(), getattr(torch._C, "_has_Standard_Deleter", None)
    found: dict[int, Any] = {}
    refused: dict[int, str] = {}
    for address, storage in _reachable_storages(torch, device):
        if address not in blocks:
            continue
        if storage._cdata in shared:
            refused[address] = "ipc"
        elif not storage.resizable():
            refused[address] = "not-resizable"
        elif owned is not None and not owned(storage._cdata):  # torch lists one shared storage per segment only
            refused[address] = "ipc"
        elif storage.nbytes() != blocks[address]:
            refused[address] = "not-sole-owner"
        elif address in found:
            refused[address] = "aliased"
        else:
            found[address] = storage
    for address in refused:
        found.pop(address, None)
    left = Counter(refused.values())
    left["unreachable"] = len(blocks) - len(found) - len(refused)
    return found, +left


def _reachable_storages(torch: Any, device: int) -> Iterator[tuple[int, Any]]:
    """Yield each CUDA storage of the device that a Python object holds, once, with its address."""
    tensor, untyped = torch.Tensor, torch.UntypedStorage
    kinds: dict[type, int] = {}
    objects = gc.get_objects()
    for kind in set(map(type, objects)):
        kinds[kind] = 1 if issubclass(kind, tensor) else 2 if issubclass(kind, untyped) else 0
    wanted = {kind for kind, number in kinds.items() if number}
    seen: set[int] = set()
    for candidate in [thing for thing in objects if type(thing) in wanted]:
        try:
            storage = candidate if kinds[type(candidate)] == 2 else _storage_of(candidate, device)
            if storage is None or storage.device.type != "cuda" or storage.device.index != device:
                continue
            identity, size, address = storage._cdata, storage.nbytes(), storage.data_ptr()
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            continue  # a tensor without memory of its own: a fake, functional, sparse or wrapper tensor
        if size and identity not in seen:
            seen.add(identity)
            yield address, storage


def _storage_of(tensor: Any, device: int) -> Any:
    return tensor.untyped_storage() if tensor.is_cuda and tensor.device.index == device else None


def _ipc_storages() -> set[int]:
    """StorageImpls that were sent to, or received from, another process: the last one of each segment."""
    reductions: Any = sys.modules.get("torch.multiprocessing.reductions")
    cache = getattr(reductions, "shared_cache", None) or {}
    return {getattr(reference, "cdata", 0) for reference in list(cache.values())}


def _host_room(limit: int | None) -> int:
    """Host memory that a round may use. Copies on the device need it too: it is where they go if a move fails."""
    available = _available_host_memory()
    room = int(available * HOST_SHARE) if available is not None else 0
    return room if limit is None else min(limit, room)


def _available_host_memory() -> int | None:
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    except OSError:
        return None
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit, encoding="ascii") as most, open(used, encoding="ascii") as now:
                found.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            continue  # no such cgroup, or no limit ("max")
    return max(0, min(found)) if found else None


class _Mover:
    """Carries out a plan on one device. `stream` is the one that the program computes on."""

    def __init__(self, torch: Any, device: int, storages: dict[int, Any], expandable: bool, stream: Any) -> None:
        self._torch = torch
        self._device = device
        self._storages = storages
        self._stream = stream
        # with plain segments, a copy in the default pool could be placed in a segment that the plan empties
        self._needs_pool = not expandable
        self._room: Any = None  # the tensor that holds the copies of this round

    def run(self, rounds: Sequence[Round], verify: bool, deadline: float | None = None) -> tuple[Round, ...]:
        """Return the rounds that were carried out: those that begin before the deadline, by the monotonic clock."""
        torch = self._torch
        torch.cuda.empty_cache()
        done: list[Round] = []
        for one in rounds:
            if deadline is not None and time.monotonic() >= deadline:
                break
            sums = [self._checksum(move) for move in one.moves] if verify else []
            self._move(one)
            if verify and sums != [self._checksum(move) for move in one.moves]:
                raise Unavailable("the checksum of a moved storage changed: stop this job and report it")
            torch.cuda.empty_cache()
            done.append(one)
        return tuple(done)

    def _move(self, one: Round) -> None:
        """Move the storages of one round; if an allocation fails, put every byte back and raise Unavailable."""
        torch, moves = self._torch, one.moves
        waiting: list[tuple[Move, Any]] = []
        move = copy = copies = None
        try:
            copies = self._reserve(moves, one.on_device)
            for move, copy in zip(moves, copies):
                copy.copy_(self._bytes(move), non_blocking=True)
            torch.cuda.synchronize(self._device)
            waiting += zip(moves, copies)
            copies = None
            for move in moves:
                self._storages[move.address].resize_(0)
            torch.cuda.empty_cache()
            while waiting:
                move, copy = waiting[0]
                self._restore(move, copy)
                waiting.pop(0)
            torch.cuda.synchronize(self._device)
        except BaseException as error:
            move = copy = copies = None  # the last reference to the copies' room must be ours
            self._put_back(waiting)
            if not isinstance(error, Exception):
                raise
            raise Unavailable(f"a move failed ({error}); all storages are restored and the job can continue") from error
        finally:
            waiting.clear()
            self._room = None

    def _reserve(self, moves: Sequence[Move], on_device: bool) -> list[Any]:
        torch = self._torch
        starts = list(accumulate((-(-move.requested // ALIGNMENT) * ALIGNMENT for move in moves), initial=0))
        size = max(starts[-1], SMALLEST_STAGING)
        if not on_device:
            self._room = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        elif self._needs_pool:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                self._room = torch.empty(size, dtype=torch.uint8, device=f"cuda:{self._device}")
        else:
            self._room = torch.empty(size, dtype=torch.uint8, device=f"cuda:{self._device}")
        return [self._room[start : start + move.requested] for start, move in zip(starts, moves)]

    def _bytes(self, move: Move) -> Any:
        """The storage as uint8, with a version counter of its own: autograd does not see the copy."""
        torch, storage = self._torch, self._storages[move.address]
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (move.requested,), (1,))

    def _restore(self, move: Move, copy: Any) -> None:
        torch = self._torch
        stream = torch.cuda.ExternalStream(move.stream) if move.stream else torch.cuda.default_stream(self._device)
        with torch.cuda.stream(stream):
            self._storages[move.address].resize_(move.requested)
            data = self._bytes(move)
            data.copy_(copy, non_blocking=True)
        if move.stream != self._stream.cuda_stream:  # the old block may have been marked so; its marks are lost
            data.record_stream(self._stream)

    def _put_back(self, waiting: list[tuple[Move, Any]]) -> None:
        """Free the copies' room on the device, by way of the host, so that the storages fit again.

        Waits without an end if another process has taken the memory: a job without these bytes could only continue
        wrongly, and save a wrong checkpoint over a good one.
        """
        torch = self._torch
        torch.cuda.synchronize(self._device)
        saved = [(move, copy.cpu()) for move, copy in waiting]
        waiting.clear()
        self._room = None
        report_at = time.monotonic() + RETRY_S
        while saved:
            torch.cuda.empty_cache()
            try:
                while saved:
                    self._restore(*saved[-1])
                    saved.pop()
            except Exception as error:
                if time.monotonic() >= report_at:
                    report_at = time.monotonic() + REPORT_S
                    text = "gpufrag: %d storages wait in host memory for room on device %d (%s)"
                    call_confined(logger.warning, text, len(saved), self._device, error)
                time.sleep(RETRY_S)
        torch.cuda.synchronize(self._device)

    def _checksum(self, move: Move) -> list[int]:
        """Four sums of the storage's bytes, as 64-bit words at several strides: no copy of it is made."""
        torch, data = self._torch, self._bytes(move)
        whole = data.numel() // 8 * 8
        words = data[:whole].view(torch.int64)
        parts = [words[::stride].sum() for stride in (1, 2, 3)] if whole else []
        return [int(part) for part in (*parts, data[whole:].sum())]
