"""Recordings of a real GPU (tests/golden), repeated by the allocator over the stub, and compared."""

from collections.abc import Mapping, Sequence
from typing import Any

PAGE = 2 << 20
SHARING_STREAMS = range(10, 30)
"""Streams that no recording uses: a block that became free late was in use on one of them."""


def program_of(name: str, case: Mapping[str, Any]) -> str:
    """Return the program that makes the requests of a recording, with its addresses, at its events."""
    lines = [
        f"program {name} total={case['driver_total']} free={case['driver_free_before']} limit={case['cap_bytes']}",
        "pending 1",
    ]
    events = case["events"]
    lines += [f"address {address} {size}" for action, address, size, _ in events if action == "segment_alloc"]
    streams: dict[int, int] = {0: 0}
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for index, (action, address, size, handle) in enumerate(events):
        stream = streams.setdefault(handle, len(streams))
        if action in ("alloc", "oom"):
            lines.append(f"malloc {index} {size} {stream}")
            live[address] = index
        elif action == "free_requested":
            block = live.pop(address)
            following = events[index + 1][:2] if index + 1 < len(events) else None
            if following != ["free_completed", address]:
                waiting[address] = block
                lines.append(f"share {block} {SHARING_STREAMS[block % len(SHARING_STREAMS)]}")
            lines.append(f"free {block}")
        elif action == "free_completed" and address in waiting:
            lines.append(f"pass {waiting.pop(address)}")
    return "\n".join(lines)


def difference(recorded: Mapping[str, Any], made: Mapping[str, Any]) -> str | None:
    """Return the first thing in which two recordings differ, apart from the addresses of segments; None if nothing."""
    ours, theirs = _ordered(made["events"]), _ordered(recorded["events"])
    moved: dict[int, int] = {}  # by page: bytes between the two addresses
    streams: dict[int, int] = {}
    for index, (a, b) in enumerate(zip(ours, theirs)):
        same = a[0] == b[0] and a[2] == b[2] and streams.setdefault(b[3], a[3]) == a[3]
        if same and b[0] != "oom":
            if b[0] in ("segment_alloc", "segment_map"):
                moved |= dict.fromkeys(range(b[1] // PAGE, (b[1] + b[2]) // PAGE), a[1] - b[1])
            same = a[1] - b[1] == moved.get(b[1] // PAGE)
        if not same:
            return f"event {index} is {a}, recorded {b}"
    if len(ours) != len(theirs):
        return f"{len(ours)} events, recorded {len(theirs)}"
    if _heap(made["segments"], {}) != _heap(recorded["segments"], moved):
        return "the heaps at the end differ"
    if made["ooms"] != recorded["ooms"]:
        return f"{made['ooms']} out-of-memory errors, recorded {recorded['ooms']}"
    return None


def _ordered(events: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Sort the blocks that one call finds unused: torch reports them in the order of a hash table of streams."""
    ordered: list[Sequence[Any]] = []
    run: list[Sequence[Any]] = []
    for event in events:
        if event[0] == "free_completed":
            run.append(event)
            continue
        ordered += sorted(run, key=lambda e: (e[2], e[1]))
        ordered.append(event)
        run = []
    return ordered + sorted(run, key=lambda e: (e[2], e[1]))


def _heap(segments: Sequence[Mapping[str, Any]], moved: Mapping[int, int]) -> list[Any]:
    sizes = ("total_size", "segment_type", "is_expandable", "allocated_size", "active_size", "requested_size")
    block = ("size", "state", "requested_size")
    return sorted(
        [
            segment["address"] + moved.get(segment["address"] // PAGE, 0),
            *(segment[key] for key in sizes),
            [[b[key] for key in block] for b in segment["blocks"]],
        ]
        for segment in segments
    )
