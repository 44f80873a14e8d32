"""Joins what agents, NVML and /proc say: each rank's memory as the driver sees it, and the devices. Pure.

Devices are matched by UUID, which torch writes without its prefix. A process is matched only where /proc shows
that the pid NVML lists is the agent's own process; a pid that is merely equal may be another container's.
Where NVML says nothing of a device's memory, the agents' own readings of the driver stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ..metrics.view import DeviceView, ProcessView, RankView
from ..wire.sample import DeviceSample, Identity
from .readings import HostProcess, Memory, NvmlReading, Sight

START_TOLERANCE_SECONDS = 2.0
"""Two readings of one process's start may differ so much: the boot time counts whole seconds and is re-set."""
MAX_APART_SECONDS = 2.0
"""Figures of NVML and of the allocator that were read further apart are not subtracted from each other."""


@dataclass(frozen=True)
class Joined:
    ranks: tuple[RankView, ...]
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True)
class _Slot:
    """Memory that is handed out as one, as NVML told it: a GPU, or a GPU instance."""

    view: DeviceView
    uuids: tuple[str, ...]
    processes: Mapping[int, int | None] | None

    @property
    def gpu(self) -> str:
        return self.view.parent_uuid or self.view.uuid


@dataclass(frozen=True)
class _Place:
    """One process on one device. It is on one of `possible`; `slot` is the one, `pid` how NVML lists it, if known."""

    rank: RankView
    sample: DeviceSample
    possible: tuple[_Slot, ...]
    slot: _Slot | None = None
    pid: int | None = None


def join(ranks: Sequence[RankView], reading: NvmlReading | None, sight: Sight) -> Joined:
    """The ranks with their driver memory filled in, and every device that NVML or an agent knows."""
    slots = tuple(_slots(reading)) if reading else ()
    places = [[_place(rank, sample, slots, sight) for sample in rank.sample.devices] for rank in ranks]
    joined = tuple(
        replace(rank, memory={place.sample.device: _process_view(place, reading) for place in of_rank})
        for rank, of_rank in zip(ranks, places)
    )
    alive = [place for of_rank in places for place in of_rank if place.rank.alive]
    views = [_slot_view(slot, alive, sight) for slot in slots]
    views += _agent_views(alive)
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


def _place(rank: RankView, sample: DeviceSample, slots: Sequence[_Slot], sight: Sight) -> _Place:
    possible = _possible(sample, slots)
    own = {pid for pid, process in sight.processes.items() if _same(process, rank.sample.identity)}
    found = [(slot, pid) for slot in possible for pid in slot.processes or () if pid in own]
    if len(found) == 1:
        return _Place(rank, sample, possible, *found[0])
    # Not seen, or several containers whose pids and starts are alike: only the UUID can tell the slot now.
    certain = len(possible) == 1 and (sample.uuid or sample.mig_uuid)
    return _Place(rank, sample, possible, possible[0] if certain else None)


def _possible(sample: DeviceSample, slots: Sequence[_Slot]) -> tuple[_Slot, ...]:
    """The slot that the process names, or all of the GPU that it names; all there are if its torch tells no UUID."""
    named = {_key(uuid) for uuid in (sample.uuid, sample.mig_uuid) if uuid}
    exact = tuple(slot for slot in slots if named.intersection(map(_key, slot.uuids)))
    return exact or tuple(slot for slot in slots if not named or _key(slot.gpu) in named)


def _same(process: HostProcess, identity: Identity) -> bool:
    return process.pid == identity.pid and abs(process.start - identity.start) <= START_TOLERANCE_SECONDS


def _process_view(place: _Place, reading: NvmlReading | None) -> ProcessView:
    uuid, mig_uuid = _names(place)
    listed = place.slot.processes if place.slot else None
    used = listed[place.pid] if listed and place.pid is not None else None
    samples = [sample for sample in place.rank.sample.devices if sample.device == place.sample.device]
    context = _context(used, samples, reading.time) if used is not None and reading else None
    return ProcessView(uuid, mig_uuid, used, context)


def _context(used: int, samples: Sequence[DeviceSample], time: float) -> int | None:
    """What none of the process's frameworks holds on the device.

    None where the two sides were read at times too far apart to fit, or do not fit.
    """
    told = [sample.totals or sample.sums for sample in samples]
    if any(figures is None or abs(figures.time - time) > MAX_APART_SECONDS for figures in told):
        return None
    reserved = _total(sample.reserved for sample in samples)
    return used - reserved if reserved is not None and used >= reserved else None


def _names(place: _Place) -> tuple[str | None, str | None]:
    """The UUIDs of the GPU and of the MIG device, in the driver's spelling."""
    uuid, mig_uuid, slot = place.sample.uuid, place.sample.mig_uuid, place.slot
    if slot and not slot.view.parent_uuid:
        return slot.gpu, None
    if slot:
        named = {_key(name) for name in (uuid, mig_uuid) if name}
        return slot.gpu, next((name for name in slot.uuids if _key(name) in named), slot.uuids[0])
    if uuid and mig_uuid and _key(uuid) == _key(mig_uuid):  # CUDA gives the MIG device's UUID as the GPU's
        uuid = None
    return uuid and f"GPU-{_key(uuid)}", mig_uuid and f"MIG-{_key(mig_uuid)}"


def _key(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()


def _slot_view(slot: _Slot, alive: Sequence[_Place], sight: Sight) -> DeviceView:
    view = replace(slot.view, other_used=_other_used(slot, alive, sight))
    if view.size is not None:
        return view
    return _with_driver_reading(view, [place for place in alive if place.slot == slot])


def _with_driver_reading(view: DeviceView, places: Iterable[_Place]) -> DeviceView:
    """The memory as the latest of the processes on the device read it."""
    readings = [place.sample.driver for place in places if place.sample.driver]
    if not readings:
        return view
    latest = max(readings, key=lambda reading: reading.time)
    return replace(view, size=latest.size, free=latest.free, used=latest.size - latest.free)


def _other_used(slot: _Slot, alive: Iterable[_Place], sight: Sight) -> int | None:
    """Only where every process is seen, and every rank that may be on the device was found among them."""
    here = [place for place in alive if slot in ((place.slot,) if place.slot else place.possible)]
    if slot.processes is None or not sight.complete or any(place.pid is None for place in here):
        return None
    ours = {place.pid for place in here}
    return _total(used for pid, used in slot.processes.items() if pid not in ours)


def _total(figures: Iterable[int | None]) -> int | None:
    """The sum, or None where one of them is unknown."""
    known = list(figures)
    return None if None in known else sum(figure for figure in known if figure is not None)


def _agent_views(alive: Iterable[_Place]) -> Iterator[DeviceView]:
    """Devices that NVML does not show here, from the agents' own readings; the latest of each device."""
    by_uuid: dict[str, list[_Place]] = {}
    for place in alive:
        uuid, mig_uuid = _names(place)
        if not place.possible and place.sample.driver and (known := mig_uuid or uuid):
            by_uuid.setdefault(known, []).append(place)
    for uuid, places in by_uuid.items():
        yield _agent_view(uuid, places)


def _agent_view(uuid: str, places: Sequence[_Place]) -> DeviceView:
    first = min(places, key=_rank_order)
    parent = _names(first)[0] if uuid.startswith("MIG-") else None
    sample = first.sample
    view = DeviceView(uuid, sample.device, driver_version=sample.driver_version, parent_uuid=parent)
    return _with_driver_reading(view, places)


def _rank_order(place: _Place) -> tuple[bool, int, int]:
    """By rank; processes without one come last, by pid."""
    identity = place.rank.sample.identity
    return identity.rank is None, identity.rank or 0, identity.pid
