"""The other frameworks of a process: their cheap figures are added to the sample of its first framework."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..wire.sample import Identity, ProcessSample
from .sampler import Sampler
from .sources import ADAPTERS, Source


class SecondaryFrameworks:
    """`add` and `close` are called in the program's thread, everything else in the agent's."""

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

    def added_to(self, sample: ProcessSample) -> ProcessSample:
        """`sample` with the devices of all, and the cost of reading them.

        The first framework's devices come last: a reader that knows only one keeps the last of each number.
        """
        if not self._samples:
            return sample
        stalls = Counter(sample.health.stall_seconds)
        for other in self._samples:
            stalls.update(other.health.stall_seconds)
        others = [
            replace(device, framework=other.identity.framework, framework_version=other.identity.framework_version)
            for other in self._samples
            for device in other.devices
        ]
        health = replace(sample.health, stall_seconds=dict(stalls))
        return replace(sample, devices=(*others, *sample.devices), health=health)

    def close(self) -> None:
        for source, _ in self._samplers.values():
            source.close()


def is_primary(source: Source, other: Source) -> bool:
    """Whether `source` reports more than `other` and should be the process's first framework."""
    order = [name for name in ADAPTERS if name in (source.framework, other.framework)]
    return order == [source.framework, other.framework]
