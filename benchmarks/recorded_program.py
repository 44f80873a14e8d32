"""A random program on the real allocator, and all that can be known of what it did there."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from random_programs import Case, Step

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import DEFAULT_POOL, parse
from gpufrag.model.trace.events import EMPTY_CACHE, GROWS, RETRY, SHRINKS, Event, parse_trace

MIB = 1 << 20
KEPT = "expandable_segments:False,large_segment_size_mb:20"
"""What torch keeps from one setting to the next where the next does not name it."""
ROOM_FOR_A_CAPTURE = 320 * MIB
"""Beside what is asked for: an out-of-memory error while a capture begins or ends would end the program."""


class Call(NamedTuple):
    """Torch's counters after a call: trace events so far, flushes of requests, waits for all streams.

    `pool` is where it allocated; None where only the segments can tell.
    """

    events: int
    retries: int
    waits: int
    pool: tuple[int, int] | None


class Place(NamedTuple):
    address: int
    size: int
    pool: tuple[int, int]


class Recorded(NamedTuple):
    """What the real allocator did."""

    conf: str
    limit: int
    snapshot: dict[str, Any]
    stats: dict[str, Any]
    calls: list[Call]
    driver: Driver

    def events(self) -> list[Event]:
        """As a user's trace has them, but each with its pool."""
        return [event for event in self.marked() if event.action not in (EMPTY_CACHE, RETRY)]

    def marked(self) -> list[Event]:
        """With what the counters say of each call."""
        trace = [event for event in parse_trace(self.snapshot["device_traces"][0]) if event.action != EMPTY_CACHE]
        made = [Place(segment.address, segment.size, segment.pool) for segment in parse(self.snapshot).segments]
        marked: list[Event] = []
        before = Call(0, 0, 0, DEFAULT_POOL)
        for call in self.calls:
            retried = call.retries - before.retries
            emptied = call.waits - before.waits - retried
            marked += [Event(EMPTY_CACHE, None, 0, 0)] * emptied + [Event(RETRY, None, 0, 0)] * min(retried, 1)
            marked += [_pooled(event, call.pool, made) for event in trace[before.events : call.events]]
            before = call
        assert before.events == len(trace), "torch's counters and its trace disagree"
        return marked

    def told_by_stacks(self) -> int:
        """The empty_cache calls that a trace with stacks shows."""
        return sum(event.action == EMPTY_CACHE for event in parse_trace(self.snapshot["device_traces"][0]))


def _pooled(event: Event, pool: tuple[int, int] | None, made: list[Place]) -> Event:
    """With its pool: that of the call, or of the memory where it happened if an earlier call made that."""
    address = event.address or 0
    if pool is not None and event.action in GROWS:
        made.append(Place(address, event.size, pool))
    if pool is None or event.action in SHRINKS:
        owners = (place.pool for place in reversed(made) if place.address <= address < place.address + place.size)
        pool = next(owners, DEFAULT_POOL)
    return event._replace(pool=pool)


def record(case: Case) -> Recorded:
    """Runs the steps from an empty allocator, and leaves an empty one behind."""
    torch.cuda.memory._set_allocator_settings(f"{KEPT},{case.conf}")
    free, size = torch.cuda.mem_get_info()
    fraction = 1.0 if case.limit is None else case.limit / size
    allowed = int(fraction * size)  # torch 2.11 takes 1.0 for a limit too
    torch.cuda.set_per_process_memory_fraction(fraction)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    run = _Run(allowed)
    for step in case.steps:
        run.do(step)
    snapshot, stats = torch.cuda.memory._snapshot(), torch.cuda.memory_stats()
    torch.cuda.memory._record_memory_history(enabled=None)
    run.close()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, "the program left memory behind"
    return Recorded(case.conf, allowed, snapshot, stats, run.calls, Driver(free, size, allowed))


class _Run:
    def __init__(self, limit: int) -> None:
        self.calls: list[Call] = []
        self._limit = limit
        self._streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self._other = torch.cuda.Stream()
        self._pool = torch.cuda.MemPool()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._live: list[torch.Tensor] = []

    def do(self, step: Step) -> None:
        if step.action == "malloc":
            self._malloc(step)
        elif step.action == "capture":
            self._capture(step.size)
        elif step.action == "empty_cache":
            torch.cuda.empty_cache()
            self._end_call()
        elif self._live:
            self._free(step)

    def close(self) -> None:
        """Everything goes; a MemPool after what lies in it."""
        self._live.clear()
        self._graphs.clear()
        del self._pool

    def _end_call(self, pool: tuple[int, int] | None = DEFAULT_POOL) -> None:
        stats = torch.cuda.memory_stats_as_nested_dict()
        allocation, active = stats["allocation"]["all"], stats["active"]["all"]
        events = allocation["allocated"] + allocation["freed"] + active["freed"]
        events += stats["num_device_alloc"] + stats["num_device_free"] + stats["num_ooms"]
        self.calls.append(Call(events, stats["num_alloc_retries"], stats["num_sync_all_streams"], pool))

    def _malloc(self, step: Step) -> None:
        scope = torch.cuda.use_mem_pool(self._pool) if step.pooled else contextlib.nullcontext()
        with torch.cuda.stream(self._streams[step.stream]), scope, contextlib.suppress(torch.OutOfMemoryError):
            self._live.append(torch.empty(step.size, dtype=torch.uint8, device="cuda"))
        self._end_call(self._pool.id if step.pooled else DEFAULT_POOL)

    def _free(self, step: Step) -> None:
        tensor = self._live.pop(step.pick % len(self._live))
        if step.action == "share":
            with torch.cuda.stream(self._other):
                torch.cuda._sleep(step.pick % 2_000_000)  # up to about a millisecond
            tensor.record_stream(self._other)
        del tensor
        self._end_call()

    def _capture(self, size: int) -> None:
        """A graph of its own pool: four tensors, of which the second is gone before the last comes."""
        if torch.cuda.memory_reserved() + 3 * size + ROOM_FOR_A_CAPTURE > self._limit:
            return
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=pool):
            self._end_call(None)  # torch empties the cache before it captures
            kept = [self._zeros(size, pool)]
            passing = self._zeros(size // 2 + 1, pool)
            kept.append(self._zeros(size // 3 + 1, pool))
            del passing
            self._end_call(pool)
            kept.append(self._zeros(size // 2 + 1, pool))
        self._end_call()
        self._graphs.append(graph)
        self._live += kept

    def _zeros(self, size: int, pool: tuple[int, int]) -> torch.Tensor:
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda").zero_()
        self._end_call(pool)
        return tensor


def save(folder: Path, name: str, recorded: Recorded) -> None:
    """In the form of tests/golden, with the pool of each event and the marks of differential.py."""
    case = {
        "workload": "differential",
        "torch": torch.__version__,
        "conf": recorded.conf,
        "settings": recorded.snapshot["allocator_settings"],
        "cap_bytes": recorded.limit,
        "driver_total": recorded.driver.size,
        "driver_free_before": recorded.driver.free,
        "events_columns": ["action", "addr", "size", "stream", "pool_id"],
        "events": recorded.marked(),
        "segments": [_without_frames(segment) for segment in recorded.snapshot["segments"]],
        "stats": recorded.stats,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"{name}.json.gz", "wt") as file:
        json.dump(case, file, separators=(",", ":"))


def _without_frames(segment: dict[str, Any]) -> dict[str, Any]:
    blocks = [{key: value for key, value in block.items() if key != "frames"} for block in segment["blocks"]]
    return {**{key: value for key, value in segment.items() if key != "frames"}, "blocks": blocks}
