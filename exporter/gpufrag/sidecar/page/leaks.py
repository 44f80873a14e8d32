"""The page's section on leaks: whose memory grows, how fast, and where."""

from __future__ import annotations

from ...metrics.places import NamedRank, name_ranks
from ...metrics.view import Fleet
from ...units import format_bytes
from ...wire.sample import DeviceSample, GrowingStack, Leak

NO_HISTORY = "record the allocator's history to have the places named (docs/leaks.md)"
NO_STACK = "no Python stack"


def leak_rows(fleet: Fleet) -> list[dict[str, str]]:
    """A row a device of each living process that leaks."""
    return [
        _row(rank, device, device.leak)
        for rank in name_ranks(fleet.ranks)
        for device in rank.view.sample.devices
        if rank.view.alive and device.leak is not None and device.leak.rate > 0
    ]


def _row(rank: NamedRank, device: DeviceSample, leak: Leak) -> dict[str, str]:
    return {
        "rank": ", ".join(value if name == "rank" else f"{name} {value}" for name, value in rank.labels.items()),
        "device": str(device.device),
        "rate": f"{format_bytes(round(leak.rate))} a {leak.unit}",
        "low": format_bytes(round(leak.low)),
        "high": format_bytes(round(leak.high)),
        "seen": f"{leak.unit} {leak.begin:.0f} to {leak.end:.0f}",
        "where": "; ".join(map(_place, leak.stacks)) or NO_HISTORY,
    }


def _place(place: GrowingStack) -> str:
    return f"{format_bytes(place.grown)} more at {' < '.join(place.frames) or NO_STACK}"
