"""Where metrics are read: walks over a fleet that yield (labels, item) for every place with figures.

A process with a rank is labelled `rank`, and its successor after a restart continues the same series. A process without
a rank is labelled `process` = its pid. If several processes have one rank, the oldest living one (else the one that
died last) gets the plain labels, and the others also get `process`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from ..model.fragmentation import Fragmentation, Pool
from ..wire.sample import DeviceSample, Identity, PoolTotals, Snapshot, Sums, Totals
from .names import Label
from .view import CollectorResult, DeviceView, Fleet, ProcessView, RankView, StepView

T = TypeVar("T")
Labels = dict[str, str]
Name = tuple[tuple[str, str], ...]
Places = Iterable[tuple[Labels, T]]
MAX_LABEL = 256


class NamedRank(NamedTuple):
    labels: Labels
    view: RankView


class OnDevice(NamedTuple):
    """One device of one process: the process, the agent's sample of the device, and the driver's figures."""

    rank: NamedRank
    sample: DeviceSample
    memory: ProcessView


class Scene:
    """A fleet with labelled processes. Each source is walked once per scene."""

    def __init__(self, fleet: Fleet, ranks: Sequence[NamedRank]) -> None:
        self.fleet = fleet
        self.ranks = ranks
        self._walked: dict[Source[Any], list[tuple[Labels, Any]]] = {}

    def places(self, source: Source[T]) -> list[tuple[Labels, T]]:
        if source not in self._walked:
            self._walked[source] = list(_distinct(source.walk(self)))
        return self._walked[source]

    def living(self) -> Scene:
        """The same fleet without exited processes."""
        return Scene(self.fleet, [rank for rank in self.ranks if rank.view.alive])


@dataclass(frozen=True, eq=False)
class Source(Generic[T]):
    """The labels of one kind of place, and the walk over all places of that kind."""

    labels: tuple[str, ...]
    walk: Callable[[Scene], Places[T]]


def scene_of(fleet: Fleet) -> Scene:
    return Scene(fleet, name_ranks(fleet.ranks))


def clean(value: object) -> str:
    """Return `value` as a label value: valid UTF-8, at most MAX_LABEL characters. Its content is not trusted."""
    text = str(value)
    if len(text) > MAX_LABEL:
        text = f"{text[: MAX_LABEL - 1]}…"
    return text.encode("utf-8", "replace").decode()


def name_ranks(views: Sequence[RankView]) -> list[NamedRank]:
    """Return every process with unique labels, sorted by rank. A process that is listed twice appears once."""
    named: dict[Name, RankView] = {}
    seen = set()
    for view in sorted(views, key=_claim):
        who = view.sample.identity
        if (identity := (who.host, who.pid, who.start)) not in seen:
            seen.add(identity)
            name = next(name for name in _names(who) if name not in named)
            named[name] = view
    return [NamedRank(dict(name), named[name]) for name in sorted(named, key=lambda name: _order(named[name], name))]


def _claim(view: RankView) -> tuple[bool, float, str, int]:
    """Sort key: the process with the best claim to the plain labels comes first."""
    who = view.sample.identity
    return not view.alive, who.start if view.alive else -who.start, who.host, who.pid


def _names(who: Identity) -> Iterator[Name]:
    """Yield ever longer label sets: containers that share a folder can have equal pids."""
    rank: Name = () if who.rank is None else ((Label.RANK, clean(who.rank)),)
    if rank:
        yield rank
    yield (*rank, (Label.PROCESS, clean(who.pid)))
    yield (*rank, (Label.PROCESS, clean(f"{who.pid}-{who.start}")))
    for number in count(2):
        yield (*rank, (Label.PROCESS, f"{who.pid}-{who.start}-{number}"))


def _order(view: RankView, name: Name) -> tuple[bool, int, Name]:
    rank = view.sample.identity.rank
    return rank is None, rank or 0, name


def _distinct(places: Places[T]) -> Places[T]:
    """Keep the first of places with equal labels: a duplicate series makes Prometheus drop the whole scrape.

    Different labels can become equal when they are cut, and Prometheus treats an empty label as absent.
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
            yield {**rank.labels, Label.DEVICE: clean(device)}, OnDevice(rank, sample, memory)
        for (device, framework), sample in sorted(others.items()):
            labels = {**rank.labels, Label.DEVICE: clean(device), Label.FRAMEWORK: clean(framework)}
            memory = rank.view.memory.get(device, ProcessView())
            if device in own:  # the driver's figures and the uuid appear once, so that sums and joins count them once
                sample, memory = replace(sample, uuid=None, mig_uuid=None), ProcessView()
            yield labels, OnDevice(rank, sample, memory)


def _steps(scene: Scene) -> Places[StepView]:
    for rank in scene.ranks:
        for step in rank.view.steps:
            yield {**rank.labels, Label.DEVICE: clean(step.device)}, step


def _totals(scene: Scene) -> Places[Totals | Sums]:
    for labels, place in scene.places(DEVICE):
        if (figures := place.sample.totals or place.sample.sums) is not None:
            yield labels, figures


def _by_pool(labels: Labels, large: T, small: T) -> Places[T]:
    yield {**labels, Label.POOL: "large"}, large
    yield {**labels, Label.POOL: "small"}, small


def _pool_totals(scene: Scene) -> Places[PoolTotals | Sums]:
    """An allocator without pools has no label `pool`, so that a sum over pools is right for both kinds."""
    for labels, totals in scene.places(TOTALS):
        if isinstance(totals, Sums):
            yield labels, totals
        else:
            yield from _by_pool(labels, totals.large, totals.small)


def _snapshots(scene: Scene) -> Places[Snapshot]:
    for labels, place in scene.places(DEVICE):
        by_time = sorted(place.sample.snapshots, key=lambda snapshot: snapshot.time)
        for at, snapshot in sorted({snapshot.at: snapshot for snapshot in by_time}.items()):
            yield {**labels, Label.AT: clean(at)}, snapshot


def _snapshot_pools(scene: Scene) -> Places[Pool]:
    for labels, snapshot in scene.places(SNAPSHOT):
        yield from _by_pool(labels, snapshot.measured.large, snapshot.measured.small)


def _sums(scene: Scene) -> Places[Sums]:
    """Allocators that report their free memory without a snapshot do so at every sample: at="timer"."""
    for labels, place in scene.places(DEVICE):
        if place.sample.sums is not None:
            yield {**labels, Label.AT: "timer"}, place.sample.sums


def _free(scene: Scene) -> Places[Fragmentation | Sums]:
    yield from ((labels, snapshot.measured) for labels, snapshot in scene.places(SNAPSHOT))
    yield from _sums(scene)


def _free_pools(scene: Scene) -> Places[Pool | Sums]:
    yield from scene.places(SNAPSHOT_POOL)
    yield from _sums(scene)


def _gpus(scene: Scene) -> Places[DeviceView]:
    by_uuid = {view.uuid: view for view in scene.fleet.devices}
    for uuid, view in sorted(by_uuid.items(), key=lambda item: (item[1].device, item[0])):
        yield {Label.UUID: clean(uuid), Label.DEVICE: clean(view.device)}, view


def _collectors(scene: Scene) -> Places[CollectorResult]:
    for name, result in sorted(scene.fleet.collectors.items()):
        yield {Label.COLLECTOR: clean(name)}, result


_ON_DEVICE = (Label.RANK, Label.DEVICE)
FLEET: Source[Fleet] = Source((), lambda scene: [({}, scene.fleet)])
COLLECTOR = Source((Label.COLLECTOR,), _collectors)
GPU = Source((Label.UUID, Label.DEVICE), _gpus)
RANK = Source((Label.RANK,), _ranks)
DEVICE = Source(_ON_DEVICE, _devices)
STEP = Source(_ON_DEVICE, _steps)
TOTALS = Source(_ON_DEVICE, _totals)
TOTALS_POOL = Source((*_ON_DEVICE, Label.POOL), _pool_totals)
SNAPSHOT = Source((*_ON_DEVICE, Label.AT), _snapshots)
SNAPSHOT_POOL = Source((*_ON_DEVICE, Label.POOL, Label.AT), _snapshot_pools)
FREE = Source((*_ON_DEVICE, Label.AT), _free)
FREE_POOL = Source((*_ON_DEVICE, Label.POOL, Label.AT), _free_pools)
