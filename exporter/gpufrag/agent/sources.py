"""What the agent asks of a framework, and the frameworks it knows.

A source answers for one process. It reads and never acts: no synchronisation, no release of memory, no reset of a
statistic, no first use of a device. All memory is in bytes, all times in seconds of the system clock. What a
framework cannot tell is None; a device that it does not use is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, Protocol, runtime_checkable

from ..model.call_sites import Sites
from ..model.heap import Heap
from ..wire.error_counter import ErrorCounter
from ..wire.sample import DriverReading, Sums, Totals
from .peak import Level

ADAPTERS = {"torch": "torch.source", "jax": "jax", "tensorflow": "tensorflow"}
"""By the framework's module: the module here whose `connect(framework, trouble)` gives its Source. In a process that
uses several, the first of them tells most, and is the one that snapshots, steps and errors are of."""


@dataclass(frozen=True)
class DeviceFacts:
    """What stays the same about a device as long as the process lives."""

    backend: str
    """The allocator that serves it: native, cudaMallocAsync, pluggable, …"""
    uuid: str | None = None
    mig_uuid: str | None = None
    driver_version: str | None = None


@dataclass(frozen=True)
class DeviceReading:
    """The cheap figures of one device, read together. `device` is the ordinal by which the process knows it."""

    device: int
    totals: Totals | None = None
    """Its counters never fall, whatever the user resets."""
    driver: DriverReading | None = None
    held: float = 0.0
    """Seconds for which the reading kept all of the process's threads from running Python."""
    sums: Sums | None = None
    """What is told in place of `totals` by an allocator without torch's two pools."""
    limit: int | None = None
    """The most that the process may reserve, where a cheap reading tells that too."""


class Live(NamedTuple):
    """What the program holds just now: bytes, and in how many allocations; None where that is not told."""

    allocated: int
    blocks: int | None


@dataclass(frozen=True)
class Capture:
    """The heap of every device at one moment, copied but not yet understood.

    Copying holds the process up; `heap` does the rest of the work, later and in another thread. `readings` are
    taken directly after the copy.
    """

    heap: Callable[[], Heap]
    readings: Sequence[DeviceReading]
    limits: Mapping[int, int] = field(default_factory=dict)
    """By device: the most that the process may reserve; a device without a limit is left out."""
    alloc_conf: str | None = None
    """The allocator's settings as their user wrote them."""
    held: float = 0.0
    """Seconds for which the copy kept all of the process's threads from running Python."""
    waited: float = 0.0
    """How many of them went by in waiting for the allocator's lock."""
    sites: Callable[[], Sites] | None = None
    """Live memory by the place in the program that asked for it; None where the user records no history."""


class Fault(NamedTuple):
    """A request for memory that has just failed for good, told in the thread that made it."""

    device: int
    requested: int
    """What the allocator asked the driver for; the program's own request is at most that."""
    driver_free: int


@runtime_checkable
class TellsFaults(Protocol):
    """What some sources can do besides."""

    def watch_ooms(self, on_oom: Callable[[Fault], None]) -> bool:
        """Have `on_oom` called at each out-of-memory error, before it is raised; `capture` may be called there.

        False where this framework cannot, or not yet. It is not called any more once the source is closed.
        """
        ...


@runtime_checkable
class TellsLevel(Protocol):
    """What some sources can do besides: their memory can be followed through a step."""

    def level(self, device: int) -> Level | None:
        """A device that `read` has named, in some ten microseconds; None where it cannot be told. In any thread."""
        ...


@runtime_checkable
class TellsLive(Protocol):
    """What some sources can do besides."""

    def live(self, device: int) -> Live | None:
        """A device that `read` has named, in some ten microseconds; None where it cannot be told. In any thread."""
        ...


class Source(Protocol):
    """One framework in this process. All but `capture` and `graph_underway` is asked in the agent's thread only."""

    @property
    def framework(self) -> str: ...

    @property
    def framework_version(self) -> str | None: ...

    def facts(self, device: int) -> DeviceFacts:
        """About a device that `read` or `capture` has named."""
        ...

    def read(self) -> Sequence[DeviceReading]:
        """Every device whose allocator holds memory; some ten microseconds a device, called about once a second."""
        ...

    def capture(self) -> Capture | None:
        """A copy of the heap as it is now, of the devices that `read` has told; None where there is none.

        May be called in any thread, at any time at which `graph_underway` is false there.
        """
        ...

    def recording(self) -> bool:
        """Whether the user records the allocator's history: each capture then leaves an entry in it."""
        ...

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        """Have `on_step(optimizer)` called after each optimizer step, in the thread that made the step.

        False where the framework has no such hook. Called once, from the user's own thread.
        """
        ...

    def graph_underway(self) -> bool:
        """Whether the calling thread records a graph of the device's work, which a question could break."""
        ...

    def close(self) -> None:
        """Stop calling `on_step`."""
        ...


def connect(framework: ModuleType, trouble: ErrorCounter) -> Source:
    """The source for a framework that this process uses; what it swallows is noted in `trouble`."""
    adapter = import_module(f".{ADAPTERS[framework.__name__]}", __package__)
    source: Source = adapter.connect(framework, trouble)
    return source
