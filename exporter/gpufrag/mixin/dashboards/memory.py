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
    """

    def total(metric: str, *matchers: str) -> str:
        return f"sum by ({by}) ({selection.series(metric, *matchers)})"

    stranded = total("gpufrag_allocator_stranded_bytes", MOMENT)
    reclaimable = total("gpufrag_allocator_reclaimable_bytes", MOMENT)
    cached = total("gpufrag_allocator_free_cached_bytes", MOMENT)
    awaiting = f"({stranded} + {reclaimable} - {cached})"
    waste = f"{total('gpufrag_allocator_active_bytes')} - {total('gpufrag_allocator_requested_bytes')}"
    active = total("gpufrag_snapshot_active_bytes", MOMENT)
    yield Part("in use", f"{active} - {awaiting} - ({waste})", "#3274D9")
    yield Part("internal waste", waste, "#8F3BB8")
    yield Part("stranded", stranded, "#C4162A")
    yield Part("reclaimable", reclaimable, "#F2CC0C")
    yield Part("captive", total("gpufrag_allocator_captive_bytes", MOMENT), "#FF780A")
    yield Part("context", total("gpufrag_process_context_memory_bytes"), "#A0A7B4")
    yield Part("others", _others(selection, by), "#5F6773")
    yield Part("free", f"{total(FREE_TOTAL, MOMENT)} - {stranded} - {reclaimable}", "#3F7A45")


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
