"""Where the memory of ranks is: parts that add up, each with its expression and its colour in every picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..recording import FREE_TOTAL
from .selection import Selection

MOMENT = 'at=~"$at"'
"""Matches the moment that the dashboard's variable `at` names."""


class Part(NamedTuple):
    name: str
    expr: str
    colour: str


def parts(selection: Selection, by: str) -> Iterator[Part]:
    """Parts that add up to reserved + headroom + what others hold on the device, as `sum by (by)`.

    Headroom is free_total - stranded - reclaimable, and is asked for so: its own series are a detail.

    Everything inside the allocator but its internal waste is of one snapshot, so no byte is counted twice. Torch
    counts internal waste afresh, at no snapshot: as much is taken from the part in use, so the sum stays whole.
    Figures are taken from each other place by place, then summed: there are allocators that tell only some of them.
    """

    def series(metric: str) -> str:
        return selection.series(metric, MOMENT)

    stranded, reclaimable = series("gpufrag_allocator_stranded_bytes"), series("gpufrag_allocator_reclaimable_bytes")
    active, waste = series("gpufrag_snapshot_active_bytes"), _waste(selection)
    awaiting = _of_pools(f"{stranded} + {reclaimable} - {series('gpufrag_allocator_free_cached_bytes')}")
    inside = (
        ("in use", f"{active} - {awaiting} - ignoring (at) group_left () {waste}", "#3274D9"),
        ("internal waste", waste, "#8F3BB8"),
        ("stranded", stranded, "#C4162A"),
        ("reclaimable", reclaimable, "#F2CC0C"),
        ("captive", series("gpufrag_allocator_captive_bytes"), "#FF780A"),
        ("context", selection.series("gpufrag_process_context_memory_bytes"), "#A0A7B4"),
    )
    free = f"{series(FREE_TOTAL)} - {_of_pools(f'{stranded} + {reclaimable}')}"
    yield from (Part(name, f"sum by ({by}) ({expr})", colour) for name, expr, colour in inside)
    yield Part("others", _others(selection, by), "#5F6773")
    yield Part("free", f"sum by ({by}) ({free})", "#3F7A45")


def _waste(selection: Selection) -> str:
    active, requested = (selection.series(f"gpufrag_allocator_{what}_bytes") for what in ("active", "requested"))
    return _of_pools(f"{active} - {requested}")


def _of_pools(expr: str) -> str:
    return f"sum without (pool) ({expr})"


def _others(selection: Selection, by: str) -> str:
    """What the device holds beyond this rank: the context belongs to it too where no driver tells it apart."""
    used = selection.target("gpufrag_device_memory_used_bytes")
    on_device = f"sum by ({by}) ({used} * on (instance, uuid) group_right () {ranks_by_device(selection)})"
    reserved = f"sum by ({by}) ({selection.series('gpufrag_allocator_reserved_bytes')})"
    context = f"sum by ({by}) ({selection.series('gpufrag_process_context_memory_bytes')})"
    return f"clamp_min({on_device} - {reserved} - ({context} or 0 * {reserved}), 0)"


def ranks_by_device(selection: Selection) -> str:
    """process_info whose `uuid` is the one of the device metrics: the MIG instance's where there is one."""
    info = selection.series("gpufrag_process_info")
    return f'label_replace({info}, "uuid", "$1", "mig_uuid", "(.+)")'


MEANING = (
    "in use: what tensors need. internal waste: lost to rounding and to blocks larger than their request. stranded: "
    "free, but pinned between blocks in use, so nobody gets it: the price of fragmentation. reclaimable: free, and "
    "given back by torch itself before it reports out-of-memory. captive: free inside CUDA graphs and private pools. "
    "context: CUDA, NCCL and libraries. others: other processes on the device (and the context, where the driver does "
    "not tell them apart). free: what the job can still take. The variable Moment says which snapshots are shown."
)
