"""Whether a replay under the recorded settings did what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .events import ALLOC, GROWS, OOM, SHRINKS, Event
from .program import Replay
from .whatif import Run, shape

Change = tuple[str, int, int]
"""A segment or its pages appear or go: action, address, size in bytes."""


def difference(events: Sequence[Event], seen: Sequence[Event], replay: Replay, run: Run) -> str | None:
    """Return the first difference between a recording and its finished replay in words, None if there is none.

    events: the recorded ones; seen: those that `begin` observed. Compares the segments that come and go, the requests
    that fail and the heap at the end. The number of cache flushes is not recorded.
    """
    expandable = run.end.settings.expandable_segments
    recorded, replayed = _changes(events, expandable), _changes(seen, expandable)
    for index, (ours, theirs) in enumerate(zip(replayed, recorded)):
        if ours != theirs:
            return f"change {index} of the segments is {_shown(theirs)} in the recording, {_shown(ours)} in the replay"
    if len(recorded) != len(replayed):
        return f"the segments change {len(recorded):,} times in the recording, {len(replayed):,} times in the replay"
    requests = sum(event.action in (ALLOC, OOM) for event in events)
    failed = sum(event.action == OOM for event in events)
    ooms = replay.allocator.counters.ooms
    if failed != ooms or replay.failed:
        return f"of {requests:,} requests {failed:,} fail in the recording, {ooms:,} in the replay"
    if shape(replay.allocator.heap()) != shape(run.end):
        return "the blocks at the end differ"
    return None


def _changes(events: Iterable[Event], expandable: bool) -> list[Change]:
    """Return the changes of segments; those of one flush in one order, because torch's depends on hash tables.

    Omits the addresses of expandable segments: the driver chooses where their address space begins.
    """
    found: list[Change] = []
    flush: list[Change] = []
    for event in events:
        change = (event.action, 0 if expandable else event.address or 0, event.size)
        if event.action in SHRINKS:
            flush.append(change)
        elif event.action in GROWS:
            found += [*sorted(flush), change]
            flush = []
    return found + sorted(flush)


def _shown(change: Change) -> str:
    action, address, size = change
    return f"{action} of {size:,} bytes" + (f" at {address:#x}" if address else "")
