"""The surface of torch that the agent touches, as torch 2.1, 2.4, 2.8 and 2.11 have it, over recorded heaps.

Each function is strict about what the real one is: its arguments, when it may be called, and what it would do to a
process that is not ready for it. `calls` is the list of everything that was called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from helpers import golden_case_named

VERSIONS = ("2.1.2+cu121", "2.4.1+cu124", "2.8.0+cu128", "2.11.0+cu130")
SIZE = 150_000_000_000
RECORD = "cuda.memory._record_memory_history"
ASYNC_TELLS = ("allocated_bytes.all.", "active_bytes.all.", "reserved_bytes.all.")
POOL_FAMILIES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")


@dataclass
class Machine:
    """What the process and its GPUs are like. `heaps` names the recorded case that each device in use holds."""

    version: str = VERSIONS[-1]
    count: int = 2
    heaps: dict[int, str] = field(default_factory=lambda: {0: "streams-default"})
    initialised: bool = True
    contexts: set[int] = field(default_factory=lambda: {0})
    backend: str = "native"
    fraction: float = 1.0
    free: int = 100_000_000_000
    history: bool = False
    recorded: tuple[Any, ...] = ()
    """Arguments of the call that switched the history on."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """Of device 0; the history must be on for it to be shown."""
    capturing: bool = False
    allocations: int = 4711
    counters: dict[str, int] = field(default_factory=lambda: {"num_alloc_retries": 3, "num_ooms": 1})
    calls: list[str] = field(default_factory=list)
    queued: list[Callable[[], None]] = field(default_factory=list)
    step_hooks: list[Callable[..., None]] = field(default_factory=list)
    observers: list[Callable[[int, int, int, int], None]] = field(default_factory=list)
    initialising: bool = False

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".")[:2])

    def initialise(self, device: int = 0) -> None:
        """What torch.cuda._lazy_init and the first tensor do."""
        self.initialising = True
        for call in self.queued:
            call()
        self.initialised, self.initialising = True, False
        self.contexts.add(device)

    def step(self, optimizer: object) -> None:
        """What Optimizer.step does at its end."""
        for hook in self.step_hooks:
            hook(optimizer, (), {})

    def fail(self, size: int, device: int = 0) -> None:
        """What the allocator does with a request that it cannot serve."""
        self.counters["num_ooms"] += 1
        for observer in self.observers:
            if device and self.release < (2, 6):
                raise RuntimeError("bad_function_call")
            observer(device, size, SIZE, self.free)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")


class OutOfMemoryError(RuntimeError):
    """Torch's own."""


def torch_of(machine: Machine) -> ModuleType:
    """The module `torch` of that machine."""
    torch = ModuleType("torch")
    torch.__version__ = machine.version  # type: ignore[attr-defined]
    for name, function in _functions(machine).items():
        *folders, leaf = name.split(".")
        place: Any = torch
        for folder in folders:
            if not hasattr(place, folder):
                setattr(place, folder, ModuleType(f"{place.__name__}.{folder}"))
            place = getattr(place, folder)
        setattr(place, leaf, _recorded(machine, name, function))
    torch.cuda._tls = _Initialising(machine)
    torch.cuda.memory._record_memory_history = _recorded(machine, RECORD, lambda *a, **k: _history_call(torch, *a, **k))
    return torch


def modules_of(torch: ModuleType) -> dict[str, ModuleType]:
    """What sys.modules has of it."""
    return {"torch": torch, "torch.cuda": torch.cuda}


def names_of(machine: Machine) -> list[str]:
    """Every name that this version has and the agent may touch."""
    return list(_functions(machine))


def remove(torch: ModuleType, name: str) -> None:
    """Make a torch that lacks `name`."""
    *folders, leaf = name.split(".")
    place: Any = torch
    for folder in folders:
        place = getattr(place, folder)
    delattr(place, leaf)


def _recorded(machine: Machine, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: object, **named: object) -> Any:
        machine.calls.append(name)
        return function(*arguments, **named)

    return called


def _functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    """Name -> function, of the names that this version has (allocator.md has when each came)."""
    since: dict[str, tuple[tuple[int, int], Callable[..., Any]]] = {
        "cuda.is_initialized": ((2, 1), lambda: machine.initialised),
        "cuda._lazy_call": ((2, 1), machine.queued.append),
        "cuda.device_count": ((2, 1), lambda: machine.count),
        "cuda.get_allocator_backend": ((2, 1), lambda: machine.backend),
        "cuda.memory_stats_as_nested_dict": ((2, 1), lambda device: _stats(machine, device)),
        "cuda.mem_get_info": ((2, 1), lambda device: _mem_get_info(machine, device)),
        "cuda.get_device_properties": ((2, 1), lambda device: _properties(machine, device)),
        "cuda.get_per_process_memory_fraction": ((2, 6), lambda device: _fraction(machine, device)),
        "cuda.is_current_stream_capturing": ((2, 1), lambda: machine.capturing),
        "optim.optimizer.register_optimizer_step_post_hook": ((2, 1), machine.step_hooks.append),
        "_C._cuda_attach_out_of_memory_observer": ((2, 1), lambda observer: _attach(machine, observer)),
        "_C._cuda_hasPrimaryContext": ((2, 1), lambda device: device in machine.contexts),
        "_C._cuda_isHistoryEnabled": ((2, 1), lambda: _history(machine)),
        "_C._cuda_record_memory_history": ((2, 1), lambda *arguments: _record(machine, *arguments)),
        "_C._cuda_record_memory_history_legacy": ((2, 1), lambda *arguments: _record(machine, *arguments)),
        RECORD: ((2, 1), lambda: None),
        "_C._cuda_memorySnapshot": ((2, 1), _snapshot_function(machine)),
    }
    return {name: function for name, (first, function) in since.items() if machine.release >= first}


def _stats(machine: Machine, device: int) -> dict[str, Any]:
    if not machine.initialised:
        return {}
    if machine.backend == "pluggable":
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
    assert 0 <= device < machine.count
    recorded = golden_case_named(machine.heaps[device]).raw["stats"] if device in machine.heaps else {}
    if machine.backend == "cudaMallocAsync":  # has only these, for both pools together
        recorded = {key: recorded[key] for key in recorded if key.startswith(ASYNC_TELLS)}
        return {family: _family(recorded, family) for family in POOL_FAMILIES} | {"allocation": {"all": {"current": 0}}}
    stats: dict[str, Any] = {family: _family(recorded, family) for family in POOL_FAMILIES}
    stats["allocation"] = {"all": {"allocated": machine.allocations}}
    stats |= dict.fromkeys(("num_alloc_retries", "num_ooms"), 0)
    if machine.release >= (2, 3):
        stats |= {"num_sync_all_streams": 0, "num_device_alloc": 160, "num_device_free": 0}
    return stats | (machine.counters if device in machine.heaps else {})


def _family(recorded: dict[str, int], family: str) -> dict[str, dict[str, int]]:
    """The recording leaves the large pool out where it is the rest."""
    whole, small = (
        {key: recorded.get(f"{family}.{pool}.{key}", 0) for key in ("current", "peak")}
        for pool in ("all", "small_pool")
    )
    return {"all": whole, "small_pool": small, "large_pool": {key: whole[key] - small[key] for key in whole}}


def _mem_get_info(machine: Machine, device: int) -> tuple[int, int]:
    assert machine.initialised, "this would initialise CUDA"
    assert device in machine.contexts, "this would create a context"
    return machine.free, SIZE


def _properties(machine: Machine, device: int) -> SimpleNamespace:
    assert machine.initialised, "this would initialise CUDA"
    properties = SimpleNamespace(name="a GPU", total_memory=SIZE)
    if machine.release >= (2, 4):
        properties.uuid = f"0000000{device}-1111-2222-3333-444444444444"
    return properties


def _fraction(machine: Machine, device: int) -> float:
    assert machine.initialised, "this would initialise CUDA"
    assert device in machine.contexts, "this would create a context"
    return 1.0 if machine.fraction == 1.0 else int(machine.fraction * SIZE) / SIZE


class _Initialising:
    """Torch's thread-local: it has the attribute only while the thread initialises CUDA."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> bool:
        if name != "is_initializing" or not self._machine.initialising:
            raise AttributeError(name)
        return True


def _attach(machine: Machine, observer: Callable[[int, int, int, int], None]) -> None:
    assert machine.initialised or machine.initialising, "this would initialise CUDA"
    if machine.backend != "native":
        raise RuntimeError(f"{machine.backend} does not yet support attachOutOfMemoryObserver")
    machine.observers.append(observer)


def _history_call(
    torch: Any,
    enabled: Any = "all",
    context: Any = "all",
    stacks: Any = "all",
    max_entries: int = sys.maxsize,
    **more: bool,
) -> None:
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert more.keys() <= ({"clear_history", "global_record_annotations"} if release >= (2, 8) else set())
    if isinstance(enabled, bool):
        torch._C._cuda_record_memory_history_legacy(enabled)
    else:
        torch._C._cuda_record_memory_history(enabled, context, stacks, max_entries, *more.values())


def _record(machine: Machine, enabled: Any, *arguments: Any) -> None:
    assert machine.initialised, "this would initialise CUDA"
    if machine.backend != "native":
        raise RuntimeError(f"{machine.backend} does not support recordHistory")
    machine.history, machine.recorded = bool(enabled), arguments
    machine.trace.clear()


def _history(machine: Machine) -> bool:
    assert machine.initialised, "this would read out of bounds"
    return machine.history


def _snapshot_function(machine: Machine) -> Callable[..., Any]:
    if machine.release < (2, 8):
        return lambda: _snapshot(machine)
    if machine.release < (2, 11):
        return lambda pool: _snapshot_of_pool(machine, pool, triple=False)
    return lambda pool: _snapshot_of_pool(machine, pool, triple=True)


def _snapshot_of_pool(machine: Machine, pool: object, triple: bool) -> dict[str, Any]:
    if pool is not None and not (isinstance(pool, tuple) and len(pool) in ((2, 3) if triple else (2,))):
        raise TypeError(f"mempool_id must be None or a pair, got {pool!r}")
    return _snapshot(machine, traces=not isinstance(pool, tuple) or len(pool) < 3 or pool[2])


def _snapshot(machine: Machine, traces: bool = True) -> dict[str, Any]:
    if machine.backend != "native":
        raise RuntimeError(f"Calling snapshot with backend:{machine.backend} is not meaningful")
    cases = {device: golden_case_named(name) for device, name in machine.heaps.items()}
    segments = [{**segment, "device": d} for d, case in cases.items() for segment in case.raw["segments"]]
    settings = next((case.raw["settings"] for case in cases.values()), {})
    known = {"allocator_settings": settings} if machine.release >= (2, 3) else {}
    shown = list(machine.trace) if machine.history and traces else []
    return {"segments": segments, "device_traces": [shown, *[[]] * (machine.count - 1)], **known}
