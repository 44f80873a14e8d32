"""Where metrics are read: every place of a fleet that has figures, with the labels that tell it apart.

A place is (labels, item). Several metrics share a source, so the labels of a place are built once a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from ..model.fragmentation import Fragmentation, Pool
from ..wire.sample import DeviceSample, PoolTotals, Snapshot, Sums, Totals
from .identity import Labels, NamedRank, clean, name_ranks
from .view import CollectorResult, DeviceView, Fleet, ProcessView

T = TypeVar("T")
Places = Iterable[tuple[Labels, T]]


class OnDevice(NamedTuple):
    """One device of one process: the process, what its agent says of the device, and what the driver says."""

    rank: NamedRank
    sample: DeviceSample
    memory: ProcessView


class Scene:
    """A fleet whose processes have names. Each source is walked once."""

    def __init__(self, fleet: Fleet, ranks: Sequence[NamedRank]) -> None:
        self.fleet = fleet
        self.ranks = ranks
        self._walked: dict[Source[Any], list[tuple[Labels, Any]]] = {}

    def places(self, source: Source[T]) -> list[tuple[Labels, T]]:
        if source not in self._walked:
            self._walked[source] = list(_told_apart(source.walk(self)))
        return self._walked[source]

    def living(self) -> Scene:
        """The same fleet without the processes that have ended."""
        return Scene(self.fleet, [rank for rank in self.ranks if rank.view.alive])


def scene_of(fleet: Fleet) -> Scene:
    return Scene(fleet, name_ranks(fleet.ranks))


@dataclass(frozen=True, eq=False)
class Source(Generic[T]):
    """The label names of a kind of place, and the walk over all places of that kind."""

    labels: tuple[str, ...]
    walk: Callable[[Scene], Places[T]]


def _told_apart(places: Places[T]) -> Places[T]:
    """Of places with one set of labels the first: a series said twice would spoil the scrape for all.

    Labels that were different may be alike once they are cut, and an empty one is none to Prometheus.
    """
    seen = set()
    for labels, item in places:
        key = frozenset(label for label in labels.items() if label[1])
        if key not in seen:
            seen.add(key)
            yield labels, item


def _ranks(scene: Scene) -> Places[NamedRank]:
    return [(rank.labels, rank) for rank in scene.ranks]


def _devices(scene: Scene) -> Places[OnDevice]:
    for rank in scene.ranks:
        own = {sample.device: sample for sample in rank.view.sample.devices if sample.framework is None}
        others = {(s.device, s.framework): s for s in rank.view.sample.devices if s.framework is not None}
        for device, sample in sorted(own.items()):
            memory = rank.view.memory.get(device, ProcessView())
            yield {**rank.labels, "device": clean(device)}, OnDevice(rank, sample, memory)
        for (device, framework), sample in sorted(others.items()):
            labels = {**rank.labels, "device": clean(device), "framework": clean(framework)}
            memory = rank.view.memory.get(device, ProcessView())
            alone = OnDevice(rank, sample, memory)
            # what the driver tells of a process, and its device's name, stand once: sums and joins count them once
            shared = OnDevice(rank, replace(sample, uuid=None, mig_uuid=None), ProcessView())
            yield labels, shared if device in own else alone


def _totals(scene: Scene) -> Places[Totals | Sums]:
    for labels, place in scene.places(DEVICE):
        if (told := place.sample.totals or place.sample.sums) is not None:
            yield labels, told


def _pool_totals(scene: Scene) -> Places[PoolTotals | Sums]:
    """An allocator without pools has no label `pool`: a sum over pools is right of both kinds, and no 0 is made up."""
    for labels, totals in scene.places(TOTALS):
        if isinstance(totals, Sums):
            yield labels, totals
        else:
            yield {**labels, "pool": "large"}, totals.large
            yield {**labels, "pool": "small"}, totals.small


def _snapshots(scene: Scene) -> Places[Snapshot]:
    for labels, place in scene.places(DEVICE):
        latest = {snapshot.at: snapshot for snapshot in sorted(place.sample.snapshots, key=_taken)}
        for at, snapshot in sorted(latest.items()):
            yield {**labels, "at": clean(at)}, snapshot


def _taken(snapshot: Snapshot) -> float:
    return snapshot.time


def _pools(scene: Scene) -> Places[Pool]:
    for labels, snapshot in scene.places(SNAPSHOT):
        yield {**labels, "pool": "large"}, snapshot.measured.large
        yield {**labels, "pool": "small"}, snapshot.measured.small


def _clocked(scene: Scene) -> Places[Sums]:
    """What some allocators tell of their free memory without a snapshot, as cheaply as all else: by the clock."""
    for labels, place in scene.places(DEVICE):
        if place.sample.sums is not None:
            yield {**labels, "at": "timer"}, place.sample.sums


def _free(scene: Scene) -> Places[Fragmentation | Sums]:
    yield from ((labels, snapshot.measured) for labels, snapshot in scene.places(SNAPSHOT))
    yield from _clocked(scene)


def _free_pools(scene: Scene) -> Places[Pool | Sums]:
    yield from scene.places(SNAPSHOT_POOL)
    yield from _clocked(scene)


def _gpus(scene: Scene) -> Places[DeviceView]:
    by_uuid = {view.uuid: view for view in scene.fleet.devices}
    for uuid, view in sorted(by_uuid.items(), key=lambda item: (item[1].device, item[0])):
        yield {"uuid": clean(uuid), "device": clean(view.device)}, view


def _collectors(scene: Scene) -> Places[CollectorResult]:
    for name, result in sorted(scene.fleet.collectors.items()):
        yield {"collector": clean(name)}, result


FLEET: Source[Fleet] = Source((), lambda scene: [({}, scene.fleet)])
COLLECTOR = Source(("collector",), _collectors)
GPU = Source(("uuid", "device"), _gpus)
RANK = Source(("rank",), _ranks)
DEVICE = Source(("rank", "device"), _devices)
TOTALS = Source(("rank", "device"), _totals)
TOTALS_POOL = Source(("rank", "device", "pool"), _pool_totals)
SNAPSHOT = Source(("rank", "device", "at"), _snapshots)
SNAPSHOT_POOL = Source(("rank", "device", "pool", "at"), _pools)
FREE = Source(("rank", "device", "at"), _free)
FREE_POOL = Source(("rank", "device", "pool", "at"), _free_pools)
