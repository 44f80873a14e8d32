"""The frameworks of a process beside its first one: each is read like that, and their devices go into one sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..wire.sample import DeviceSample, Identity, ProcessSample
from .sampler import Sampler
from .sources import ADAPTERS, Source


class Beside:
    """Samplers of their own, for the cheap figures only. For the agent's thread, but `add` and `close`."""

    def __init__(self) -> None:
        self._samplers: dict[str, tuple[Source, Sampler]] = {}
        self._samples: tuple[ProcessSample, ...] = ()

    def __contains__(self, framework: str) -> bool:
        return framework in self._samplers

    def add(self, source: Source, sampler: Sampler) -> None:
        self._samplers[source.framework] = source, sampler

    def read(self, identity: Identity) -> None:
        """Raises what a framework raises; then none of them is in the next sample."""
        samplers, self._samples = [sampler for _, sampler in tuple(self._samplers.values())], ()
        for sampler in samplers:
            sampler.read()
        self._samples = tuple(sampler.sample(identity) for sampler in samplers)

    def added(self, sample: ProcessSample) -> ProcessSample:
        """`sample` with the devices of all, and with what it cost to read them.

        Those of the first framework come last: a reader that knows of one only keeps the last of each number.
        """
        if not self._samples:
            return sample
        stalls = Counter(sample.health.stall_seconds)
        for other in self._samples:
            stalls.update(other.health.stall_seconds)
        others = [device for other in self._samples for device in _named(other)]
        health = replace(sample.health, stall_seconds=dict(stalls))
        return replace(sample, devices=(*others, *sample.devices), health=health)

    def close(self) -> None:
        for source, _ in self._samplers.values():
            source.close()


def leads(source: Source, other: Source) -> bool:
    """Whether `source` should be the process's first framework: the one that tells more."""
    order = list(ADAPTERS)
    return source.framework in order and order.index(source.framework) < _place(other, order)


def _place(source: Source, order: list[str]) -> int:
    return order.index(source.framework) if source.framework in order else -1


def _named(sample: ProcessSample) -> list[DeviceSample]:
    who = sample.identity
    return [
        replace(device, framework=who.framework, framework_version=who.framework_version) for device in sample.devices
    ]
