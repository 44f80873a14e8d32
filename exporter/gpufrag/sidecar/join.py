"""Join the data of agents, NVML and /proc: each rank's memory as the driver sees it, and the devices. Pure.

Devices are matched by UUID, which torch writes without its prefix. A process is matched only where /proc shows
that the pid NVML lists is the agent's own process; an equal pid may belong to another container.
If NVML does not report a device's memory, the agents' own readings of the driver are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ..metrics.view import DeviceView, ProcessView, RankView
from ..wire.sample import DeviceSample, Identity
from .procfs import VisibleProcesses
from .readings import Memory, NvmlReading

START_TOLERANCE_SECONDS = 2.0
"""Two readings of one process's start may differ: the boot time has whole seconds and changes with the clock."""
MAX_APART_SECONDS = 2.0
"""Values of NVML and of the allocator read further apart are not subtracted."""


@dataclass(frozen=True)
class Joined:
    ranks: tuple[RankView, ...]
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True)
class _Slot:
    """A GPU or GPU instance as NVML reports it: one unit of memory."""

    view: DeviceView
    uuids: tuple[str, ...]
    processes: Mapping[int, int | None] | None

    @property
    def gpu(self) -> str:
        return self.view.parent_uuid or self.view.uuid


@dataclass(frozen=True)
class _Place:
    """One process on one device, which is one of `possible`. If known: `slot` is the device, `pid` NVML's pid."""

    rank: RankView
    sample: DeviceSample
    possible: tuple[_Slot, ...]
    slot: _Slot | None = None
    pid: int | None = None


def join(ranks: Sequence[RankView], reading: NvmlReading | None, visible: VisibleProcesses) -> Joined:
    """Return the ranks with their driver memory, and every device that NVML or an agent reports."""
    slots = tuple(_slots(reading)) if reading else ()
    places = [[_place(rank, sample, slots, visible) for sample in rank.sample.devices] for rank in ranks]
    joined = tuple(
        replace(rank, memory={place.sample.device: _process_view(place, reading) for place in of_rank})
        for rank, of_rank in zip(ranks, places)
    )
    alive = [place for of_rank in places for place in of_rank if place.rank.alive]
    views = [*_agent_views(alive)]
    for slot in slots:
        view = replace(slot.view, other_used=_other_used(slot, alive, visible))
        here = [place for place in alive if place.slot == slot]
        views.append(view if view.size is not None else _with_driver_reading(view, here))
    return Joined(joined, tuple(sorted(views, key=lambda view: (view.device, view.uuid))))


def _slots(reading: NvmlReading) -> Iterator[_Slot]:
    for device in reading.devices:
        whole = DeviceView(device.uuid, device.index, name=device.name, driver_version=reading.driver_version)
        if not device.instances:
            yield _Slot(_with_memory(whole, device.memory), (device.uuid,), device.processes)
        for part in device.instances:
            view = replace(whole, uuid=part.uuids[0], mig_profile=part.profile, parent_uuid=device.uuid)
            yield _Slot(_with_memory(view, part.memory), part.uuids, part.processes)


def _with_memory(view: DeviceView, memory: Memory | None) -> DeviceView:
    return replace(view, **asdict(memory)) if memory else view


def _place(rank: RankView, sample: DeviceSample, slots: Sequence[_Slot], visible: VisibleProcesses) -> _Place:
    possible = _possible(sample, slots)
    who = rank.sample.identity
    own = {
        pid
        for pid, process in visible.by_pid.items()
        if process.pid == who.pid and abs(process.start - who.start) <= START_TOLERANCE_SECONDS
    }
    found = [(slot, pid) for slot in possible for pid in slot.processes or () if pid in own]
    if len(found) == 1:
        return _Place(rank, sample, possible, *found[0])
    # not seen, or several containers with equal pids and starts: only the UUID can decide
    certain = len(possible) == 1 and (sample.uuid or sample.mig_uuid)
    return _Place(rank, sample, possible, possible[0] if certain else None)


def _possible(sample: DeviceSample, slots: Sequence[_Slot]) -> tuple[_Slot, ...]:
    """Return the slot with the process's UUID, else those of its GPU, else (an old torch has no UUID) all."""
    named = {_key(uuid) for uuid in (sample.uuid, sample.mig_uuid) if uuid}
    exact = tuple(slot for slot in slots if named.intersection(map(_key, slot.uuids)))
    return exact or tuple(slot for slot in slots if not named or _key(slot.gpu) in named)


def _process_view(place: _Place, reading: NvmlReading | None) -> ProcessView:
    uuid, mig_uuid = _names(place)
    listed = place.slot.processes if place.slot else None
    used = listed[place.pid] if listed and place.pid is not None else None
    samples = [sample for sample in place.rank.sample.devices if sample.device == place.sample.device]
    context = _context(used, samples, reading.time) if used is not None and reading else None
    return ProcessView(uuid, mig_uuid, used, context)


def _context(used: int, samples: Sequence[DeviceSample], time: float) -> int | None:
    """Return what the process holds outside its frameworks; None if the two sides do not fit together in time."""
    sources = [sample.totals or sample.sums for sample in samples]
    if any(figures is None or abs(figures.time - time) > MAX_APART_SECONDS for figures in sources):
        return None
    reserved = _total(sample.reserved for sample in samples)
    return used - reserved if reserved is not None and used >= reserved else None


def _names(place: _Place) -> tuple[str | None, str | None]:
    """Return the UUIDs of the GPU and of the MIG device, as the driver writes them."""
    uuid, mig_uuid, slot = place.sample.uuid, place.sample.mig_uuid, place.slot
    if slot and not slot.view.parent_uuid:
        return slot.gpu, None
    if slot:
        named = {_key(name) for name in (uuid, mig_uuid) if name}
        return slot.gpu, next((name for name in slot.uuids if _key(name) in named), slot.uuids[0])
    if uuid and mig_uuid and _key(uuid) == _key(mig_uuid):  # CUDA reports the MIG device's UUID as the GPU's
        uuid = None
    return uuid and f"GPU-{_key(uuid)}", mig_uuid and f"MIG-{_key(mig_uuid)}"


def _key(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()


def _with_driver_reading(view: DeviceView, places: Iterable[_Place]) -> DeviceView:
    """Return the view with the memory that the latest of the processes read."""
    readings = [place.sample.driver for place in places if place.sample.driver and place.sample.driver.size > 0]
    if not readings:
        return view
    latest = max(readings, key=lambda reading: reading.time)
    return replace(view, size=latest.size, free=latest.free, used=latest.size - latest.free)


def _other_used(slot: _Slot, alive: Iterable[_Place], visible: VisibleProcesses) -> int | None:
    """None unless every process is visible and every rank that may be on the device was found."""
    here = [place for place in alive if slot in ((place.slot,) if place.slot else place.possible)]
    if slot.processes is None or not visible.complete or any(place.pid is None for place in here):
        return None
    ours = {place.pid for place in here}
    return _total(used for pid, used in slot.processes.items() if pid not in ours)


def _total(figures: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one is unknown."""
    known = list(figures)
    return None if None in known else sum(figure for figure in known if figure is not None)


def _agent_views(alive: Iterable[_Place]) -> Iterator[DeviceView]:
    """Yield devices that NVML does not report, from the agents' latest readings."""
    by_uuid: dict[str, list[_Place]] = {}
    for place in alive:
        uuid, mig_uuid = _names(place)
        if not place.possible and place.sample.driver and (known := mig_uuid or uuid):
            by_uuid.setdefault(known, []).append(place)
    for uuid, places in by_uuid.items():
        first = min(places, key=lambda place: _rank_order(place.rank.sample.identity))
        parent = _names(first)[0] if uuid.startswith("MIG-") else None
        sample = first.sample
        view = DeviceView(uuid, sample.device, driver_version=sample.driver_version, parent_uuid=parent)
        yield _with_driver_reading(view, places)


def _rank_order(who: Identity) -> tuple[bool, int, int]:
    """Processes without a rank come last, by pid."""
    return who.rank is None, who.rank or 0, who.pid
