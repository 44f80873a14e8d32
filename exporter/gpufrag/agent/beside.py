"""The frameworks of a process beside its first one: each is read like that, and their devices go into one sample."""

from __future__ import annotations

from dataclasses import replace

from ..sample import DeviceSample, Identity, ProcessSample
from .sampler import Sampler
from .sources import ADAPTERS, Source


class Beside:
    """Samplers of their own, for the cheap figures only. For the agent's thread, but `add` and `close`."""

    def __init__(self) -> None:
        self._samplers: dict[str, tuple[Source, Sampler]] = {}

    def __contains__(self, framework: str) -> bool:
        return framework in self._samplers

    def add(self, source: Source, sampler: Sampler) -> None:
        self._samplers[source.framework] = source, sampler

    def added(self, sample: ProcessSample) -> ProcessSample:
        """`sample` with the devices of all. Those of the first framework come last: a reader that takes every device
        for torch's keeps the last of each number."""
        others = [
            device for _, sampler in tuple(self._samplers.values()) for device in _devices(sampler, sample.identity)
        ]
        return replace(sample, devices=(*others, *sample.devices)) if others else sample

    def close(self) -> None:
        for source, _ in self._samplers.values():
            source.close()


def leads(source: Source, other: Source) -> bool:
    """Whether `source` should be the process's first framework: the one that tells more."""
    order = list(ADAPTERS)
    return source.framework in order and order.index(source.framework) < _place(other, order)


def _place(source: Source, order: list[str]) -> int:
    return order.index(source.framework) if source.framework in order else -1


def _devices(sampler: Sampler, identity: Identity) -> list[DeviceSample]:
    sampler.read()
    sample = sampler.sample(identity)
    who = sample.identity
    return [
        replace(device, framework=who.framework, framework_version=who.framework_version) for device in sample.devices
    ]
