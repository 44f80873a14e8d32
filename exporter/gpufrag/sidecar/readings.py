"""What NVML reports: plain records, in bytes and seconds of the system clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """size = free + used + reserved. An older driver reports no reserved memory (None) and counts it as used."""

    size: int
    free: int
    used: int
    reserved: int | None


@dataclass(frozen=True)
class Instance:
    """A GPU instance of a GPU in MIG mode: the unit with its own memory."""

    id: int
    uuids: tuple[str, ...]
    """`MIG-…` of its compute instances, which share the memory."""
    profile: str | None
    """As in `1g.10gb`."""
    memory: Memory | None
    processes: Mapping[int, int | None] | None


@dataclass(frozen=True)
class Device:
    """A GPU that answered. None: not available."""

    index: int
    uuid: str
    name: str | None
    memory: Memory | None
    processes: Mapping[int, int | None] | None
    """Bytes by pid; NVML lists only processes that the reader's pid namespace can see."""
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Problem:
    """What the GPU at `index` did not report, and why. A lost GPU has no other record."""

    index: int
    text: str
    lost: bool


@dataclass(frozen=True)
class NvmlReading:
    """One reading, begun at `time`."""

    time: float
    driver_version: str | None
    devices: tuple[Device, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def pids(self) -> frozenset[int]:
        """Every process on any device."""
        units: list[Device | Instance] = [*self.devices]
        units += (instance for device in self.devices for instance in device.instances)
        return frozenset(pid for unit in units for pid in unit.processes or ())
