"""The last hour of each device, in memory, for the page's charts."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from ..metrics.places import NamedRank, name_ranks
from ..metrics.view import Fleet
from ..model.fragmentation import Fragmentation
from ..wire.sample import DeviceSample, Sums

INTERVAL_SECONDS = 30.0
POINTS = 120  # an hour
MAX_DEVICES = 1024

Key = tuple[tuple[tuple[str, str], ...], int, str | None]


class Point(NamedTuple):
    time: float
    ratio: float | None
    largest_allocatable: int | None


class History:
    """At most one point per INTERVAL_SECONDS. Beyond MAX_DEVICES, the device unseen for longest is dropped."""

    def __init__(self) -> None:
        self._points: OrderedDict[Key, deque[Point]] = OrderedDict()

    def add(self, fleet: Fleet) -> None:
        for rank in name_ranks(fleet.ranks):
            for device in rank.view.sample.devices if rank.view.alive else ():
                self._add(key_of(rank, device), fleet.time, latest_values(device))
        while self._points and fleet.time - next(iter(self._points.values()))[-1].time > INTERVAL_SECONDS * POINTS:
            self._points.popitem(last=False)

    def points(self, key: Key) -> Sequence[Point]:
        return self._points.get(key, ())

    def _add(self, key: Key, now: float, values: Fragmentation | Sums | None) -> None:
        points = self._points.setdefault(key, deque(maxlen=POINTS))
        if points and 0 <= now - points[-1].time < INTERVAL_SECONDS:
            return
        ratio, largest = (values.ratio, values.largest_allocatable) if values else (None, None)
        points.append(Point(now, ratio, largest))
        self._points.move_to_end(key)
        while len(self._points) > MAX_DEVICES:
            self._points.popitem(last=False)


def key_of(rank: NamedRank, device: DeviceSample) -> Key:
    return tuple(rank.labels.items()), device.device, device.framework


def latest_values(device: DeviceSample, at: str | None = None) -> Fragmentation | Sums | None:
    """Return the values of the latest snapshot (taken at this moment, if given), else the sums of an allocator
    without snapshots."""
    snapshots = [snapshot for snapshot in device.snapshots if at in (None, snapshot.at)]
    latest = max(snapshots, key=lambda snapshot: snapshot.time, default=None)
    return latest.measured if latest else device.sums if at is None else None
