"""`gpufrag replay`: where a replayed trace ends, as text, or as JSON that is a snapshot in torch's own form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from ..model.heap import Segment
from ..model.simulator.blocks import Totals
from ..model.trace.program import Replay
from ..model.trace.whatif import Run
from ..units import format_bytes
from .terminal import Emphasis
from .whatif import doubts, wrapped


class Replayed(NamedTuple):
    """A finished replay. `same_end`: its heap equals the recorded one, segment addresses aside.

    `difference`: how a replay under the recorded settings differs from the recording, None if it does not.
    """

    name: str
    conf: str
    replay: Replay
    same_end: bool
    run: Run
    difference: str | None = None


def as_record(result: Replayed) -> dict[str, Any]:
    """Return the object of --json, sizes in bytes; `gpufrag measure` reads it as a snapshot."""
    allocator = result.replay.allocator
    driver = allocator.driver
    return {
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": result.conf},
        "cap_bytes": driver.limit or 0,
        "driver_free": driver.free,
        "driver_total": driver.size,
        "operations": result.replay.position,
        "older_blocks": result.run.older,
        "ends_as_recorded": result.same_end,
        "difference": result.difference,
        "doubts": dict(result.run.program.doubts),
        "inferred_pools": result.run.inferred_pools,
        "unclear_segments": result.run.unclear_segments,
        "newly_failed": result.replay.failed,
        "counters": asdict(allocator.counters),
        "peak_reserved": allocator.peak_reserved,
        "peak_active": allocator.peak_active,
        "pools": {name: totals._asdict() for name, totals in _pools(result)},
        "private_pool_reserved": allocator.private_reserved(),
        "segments": [_segment_record(segment) for segment in allocator.heap().segments],
    }


def _pools(result: Replayed) -> Iterator[tuple[str, Totals]]:
    for name in ("large", "small"):
        yield name, result.replay.allocator.totals(small=name == "small")


def _segment_record(segment: Segment) -> dict[str, Any]:
    return {
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.size,
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": list(segment.pool),
        "is_expandable": segment.expandable,
        "blocks": [
            {"address": block.address, "size": block.size, "requested_size": block.requested, "state": block.state}
            for block in segment.blocks()
        ],
    }


def as_text(result: Replayed, bold: Emphasis = str) -> str:
    most = result.replay.allocator.driver.limit
    limit = "no limit" if most is None else f"a limit of {format_bytes(most)}"
    conf = result.conf or "torch's default settings"
    title = f"{result.name}: {result.replay.position:,} operations under {conf} and {limit}"
    lines = [bold(title), "", *_table(result, bold), "", *_figures(result)]
    if notes := [line for note in _notes(result) for line in wrapped(f"note: {note}")]:
        lines += ["", *notes]
    return "\n".join(lines)


def _notes(result: Replayed) -> Iterator[str]:
    if result.difference is not None:
        yield f"the replay differs from the recording: {result.difference}"
        if result.run.inferred_pools:
            yield (
                f"the difference can come from the pools of {result.run.inferred_pools:,} segments, which are "
                "inferred: the trace does not name pools; torch 2.12 and later record them"
            )
    yield from doubts(result.run)


def _table(result: Replayed, bold: Emphasis) -> Iterator[str]:
    (_, large), (_, small) = _pools(result)
    yield bold(_line("at the end, by pool", "large", "small", "both, bytes"))
    for name, a, b in zip(Totals._fields, large, small):
        yield _line(name, format_bytes(a), format_bytes(b), f"{a + b:,}")


def _figures(result: Replayed) -> Iterator[str]:
    allocator = result.replay.allocator
    sizes = {
        "private_pool_reserved": allocator.private_reserved(),
        "peak_reserved": allocator.peak_reserved,
        "peak_active": allocator.peak_active,
    }
    for name, size in sizes.items():
        yield _line(name, format_bytes(size), "", f"{size:,}")
    counts = {"segments": len(allocator.heap().segments), **asdict(allocator.counters)}
    for name, count in {**counts, "newly_failed": result.replay.failed, "older_blocks": result.run.older}.items():
        yield _line(name, f"{count:,}", "", "")
    yield _line("ends_as_recorded", "yes" if result.same_end else "no", "", "")


def _line(name: str, first: str, second: str, third: str) -> str:
    return f"  {name:<24}{first:>12}{second:>12}{third:>19}".rstrip()
