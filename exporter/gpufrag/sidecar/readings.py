"""What NVML and /proc told at one time: plain records, in bytes and seconds of the system clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Memory:
    """size = free + used + reserved; a driver that cannot tell reserved apart (None) counts it as used."""

    size: int
    free: int
    used: int
    reserved: int | None


@dataclass(frozen=True)
class Instance:
    """A GPU instance of a GPU that is cut up by MIG: the unit that has memory of its own."""

    id: int
    uuids: tuple[str, ...]
    """`MIG-…` of its compute instances, which share the memory."""
    profile: str | None
    """As in `1g.10gb`."""
    memory: Memory | None
    processes: Mapping[int, int | None] | None


@dataclass(frozen=True)
class Device:
    """A GPU that answered. None is what it would not tell."""

    index: int
    uuid: str
    name: str | None
    memory: Memory | None
    processes: Mapping[int, int | None] | None
    """Bytes by pid; NVML lists only the processes that the reader's pid namespace can see."""
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Problem:
    """What the GPU at `index` did not tell, and why. A lost GPU is in no other record."""

    index: int
    text: str
    lost: bool


@dataclass(frozen=True)
class NvmlReading:
    """All that NVML told, begun at `time`."""

    time: float
    driver_version: str | None
    devices: tuple[Device, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def pids(self) -> frozenset[int]:
        """Every process that is listed on any device."""
        units: list[Device | Instance] = [*self.devices]
        units += (instance for device in self.devices for instance in device.instances)
        return frozenset(pid for unit in units for pid in unit.processes or ())


@dataclass(frozen=True)
class HostProcess:
    """A process as /proc tells it: its pid in its own, innermost namespace, and its start."""

    pid: int
    start: float


@dataclass(frozen=True)
class Sight:
    """How much of the machine's processes the sidecar sees."""

    processes: Mapping[int, HostProcess] = field(default_factory=dict)
    """By pid in the sidecar's namespace, for the pids that NVML listed."""
    complete: bool = False
    """Whether no process can hide: the sidecar is in the machine's first pid namespace."""
