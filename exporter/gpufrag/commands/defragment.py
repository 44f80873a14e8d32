"""gpufrag defragment: move the tensors of a running job so that its free memory becomes usable, without a restart."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..errors import UsageError, one_line
from ..units import argument, format_bytes, format_duration, parse_duration, parse_memory
from ..wire.codec import dumps
from . import processes

if TYPE_CHECKING:
    from ..checkpoint.protocol import RankState, Saved
    from ..wire.defragmentation import Result

MAX_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    processes.add_arguments(parser, "defragment", "defragment all ranks of this host's job at the same step")
    parser.add_argument("--plan", action="store_true", help="show what would move, but move nothing")
    parser.add_argument("--target-ratio", metavar="X", type=float, help="stop at this fragmentation ratio, such as 1.5")
    parser.add_argument(
        "--target-bytes",
        metavar="SIZE",
        type=argument(parse_memory),
        help="stop when one request of this size fits; without a target, move everything that helps",
    )
    parser.add_argument("--verify", action="store_true", help="compare a checksum of each tensor before and after")
    parser.add_argument(
        "--allow-graphs",
        action="store_true",
        help="move memory even if the job has CUDA graphs or memory pools; graphs that read moved tensors then break",
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=argument(parse_duration),
        default=120.0,
        help="give up after this time, including the wait for a step to end (default: 2m)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if unknown)")


def run(options: argparse.Namespace) -> int:
    """Raises DefragmentationFailed: then no rank, or only those that it does not name, have moved memory."""
    from ..checkpoint.coordinator import Coordinator, defragmentation, ranks_in
    from ..wire.defragmentation import DefragmentOptions

    folder = processes.folder_of(options)
    if not 0 < options.timeout <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds (got {options.timeout:g})")
    if options.target_ratio is not None and not 1 <= options.target_ratio < 1e6:
        raise UsageError(f"--target-ratio must be at least 1 (got {options.target_ratio:g})")
    chosen = processes.find(folder, options)
    order = DefragmentOptions(
        plan_only=options.plan,
        verify=options.verify,
        target_ratio=options.target_ratio,
        target_bytes=options.target_bytes,
        allow_graphs=options.allow_graphs,
    )
    pids = None if options.all_ranks else frozenset(one.name.pid for one in chosen)
    terms = defragmentation(order, options.timeout, alone=not options.all_ranks)
    coordinator = Coordinator(ranks_in(folder, pids), terms)
    try:
        done = coordinator.save()
    except BaseException:  # Ctrl-C too: a rank that has not begun must not begin later
        coordinator.give_up()
        raise
    assert done is not None, "only a checkpoint ends without a result"
    coordinator.release(end=False)
    print(dumps(_record(done), 2) if options.json else "\n".join(_lines(done, options.plan)))
    return 0


def _record(done: Saved) -> dict[str, object]:
    ranks = [
        {"rank": one.rank, "pid": one.pid, "devices": [asdict(result) for result in one.results]} for one in done.states
    ]
    return {"step": done.step, "ranks": ranks}


def _lines(done: Saved, plan: bool) -> Iterator[str]:
    yield f"step {done.step}:"
    for one in done.states:
        for result in one.results:
            yield f"  {_name(one)}, device {result.device}: {_moved(result, plan)}"
            if result.left:
                left = one_line(", ".join(f"{count} {reason}" for reason, count in sorted(result.left.items())))
                yield f"    blocks left in place: {left}"


def _name(one: RankState) -> str:
    return f"process {one.pid}" if one.rank is None else f"rank {one.rank}"


def _moved(result: Result, plan: bool) -> str:
    largest, ratio = _size(result.largest_allocatable_before), _ratio(result.ratio_before)
    if not result.moved_bytes:
        return f"nothing to move; largest allocation {largest}, ratio {ratio}"
    what = f"{format_bytes(result.moved_bytes)} in {result.moved_storages} tensors"
    seconds = format_duration(result.expected_seconds if plan else result.seconds)
    verb = f"would move {what} in about {seconds}" if plan else f"moved {what} in {seconds}"
    after = _size(result.largest_allocatable_after)
    return f"{verb}; largest allocation {largest} -> {after}, ratio {ratio} -> {_ratio(result.ratio_after)}"


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _ratio(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"
