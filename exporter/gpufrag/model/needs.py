"""How much memory a recorded step needs, under its own allocator settings and under others.

The step is replayed on the simulated allocator with ever smaller limits. Under its own settings it begins with the heap
that it had. Under other settings it begins with only the blocks of that heap, packed in the order of their addresses,
because no trace shows how another setting would have placed them. An anchor is reserved before these blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import BadInput
from .allocatable import Driver
from .anchor import anchor_name
from .heap import Heap
from .settings import Settings, parse_conf
from .step import StepEvents
from .trace.comparison import saves_enough
from .trace.events import Event
from .trace.whatif import EMPTIED, OWN_HEAP, Run, best_anchor, read_run, smallest_limit

RECORDED = "recorded"
"""The name of the settings under which the step ran, from the heap that it had."""
RECORDED_PACKED = "recorded, packed"
"""The name of the same settings from a packed heap, with which candidates compare."""
RECORDED_EMPTIED = "recorded, empty_cache"
"""The name of the recorded settings from the job's own heap if torch.cuda.empty_cache() is called before the step."""
CANDIDATES = {
    "default": "",
    "expandable_segments": "expandable_segments:True",
    "max_split_size_mb:128": "max_split_size_mb:128",
    "roundup_power2_divisions:4": "roundup_power2_divisions:4",
}
"""Settings to compare, by the name that metrics and reports use."""


@dataclass(frozen=True)
class Needs:
    """What one device's step needs, in bytes.

    smallest_limits: the smallest memory limit under which every request of the step succeeds, to 2 MiB, by setting. A
    setting under which no limit was found is left out. RECORDED is the step's own, from its own heap: it counts the
    fragmentation that earlier steps left. RECORDED_EMPTIED begins with this heap too, without its cache. The others
    begin with a packed heap, so they compare with each other; they can be too low.
    limit: the process's limit when the step ran; None is unknown.
    """

    device: int
    limit: int | None
    smallest_limits: Mapping[str, int]

    @property
    def margin(self) -> int | None:
        """limit - smallest limit: how far the job is from an out-of-memory error, fragmentation included."""
        needed = self.smallest_limits.get(RECORDED)
        return None if self.limit is None or needed is None else self.limit - needed


class Better(NamedTuple):
    """A setting that saves memory. saves: bytes; cost: what it costs in another way, empty if nothing is known."""

    name: str
    saves: int
    cost: str = ""


EMPTY_CACHE_COST = "call torch.cuda.empty_cache() before each step, which waits for the GPU and costs time"
ANCHOR_COST = "without PYTORCH_CUDA_ALLOC_CONF; no other process can use the anchor's memory"


def better_setting(smallest_limits: Mapping[str, int]) -> Better | None:
    """Return the setting under which the step needs the least, by the rule of `gpufrag whatif`; None: keep its own.

    Every setting begins with a packed heap; empty_cache, which begins with the job's own, is named only if no setting
    saves enough. The alert GpuMemoryFragmented names a setting by the same rule, but neither an anchor nor empty_cache.
    """
    packed = {name: limit for name, limit in smallest_limits.items() if name not in (RECORDED, RECORDED_EMPTIED)}
    if RECORDED_PACKED not in packed:
        return None
    name, own = min(packed, key=lambda name: packed[name]), packed[RECORDED_PACKED]
    if saves_enough(packed[name], own):
        return Better(name, own - packed[name], ANCHOR_COST if name.startswith("anchor:") else "")
    recorded, emptied = smallest_limits.get(RECORDED), smallest_limits.get(RECORDED_EMPTIED)
    if recorded is not None and emptied is not None and saves_enough(emptied, recorded):
        return Better(RECORDED_EMPTIED, recorded - emptied, EMPTY_CACHE_COST)
    return None


def step_needs(device: int, end: Heap, events: StepEvents, driver: Driver) -> Needs:
    """Return what a step of one device needs.

    end: the device's heap after the step; events: what led to it; driver: its reading at the end of the step.
    Raises BadInput if the events do not lead to the heap.
    """
    run = step_run(end, events, driver)
    own = end.settings
    settings = {
        name: replace(parse_conf(conf, own.torch), per_process_memory_fraction=own.per_process_memory_fraction)
        for name, conf in CANDIDATES.items()
    }
    packed = {each: smallest_limit(run, each) for each in {own, *settings.values()}}
    found = {RECORDED: smallest_limit(run, own, start=OWN_HEAP), RECORDED_PACKED: packed[own]}
    found |= {name: packed[each] for name, each in settings.items()}
    if (anchor := best_anchor(run, settings["default"])) is not None:
        found[anchor_name(anchor.size)] = anchor.smallest_limit
    found[RECORDED_EMPTIED] = _smallest_limit_emptied(run, own, found[RECORDED])
    return Needs(device, driver.cap, {name: limit for name, limit in found.items() if limit is not None})


def _smallest_limit_emptied(run: Run, own: Settings, recorded: int | None) -> int | None:
    held = sum(segment.size for segment in run.beginning.segments)
    if recorded is not None and recorded < held:
        return recorded  # it does not hold the cache either: the replay under this limit releases it first
    return smallest_limit(run, own, start=EMPTIED)


def step_trace(events: StepEvents | None) -> list[Event]:
    """Return the step's memory events as a trace, in which pools are unknown; empty without a recorded step."""
    if events is None:
        return []
    return [
        Event(action, None if action == "oom" else address, size, stream, (0, 0))
        for action, address, size, stream in zip(*events)
        if action not in ("snapshot", "annotate")
    ]


def step_run(end: Heap, events: StepEvents, driver: Driver) -> Run:
    try:
        return read_run(step_trace(events), end, Driver(None, driver.size, None), driver.limit)
    except BadInput as error:
        raise BadInput(f"the step's events do not fit its heap: {error}") from None
