"""`gpufrag diff`: what changed between two snapshots of a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput, UsageError
from ..units import argument, whole
from ..wire.codec import dumps
from .explain import write_beside

if TYPE_CHECKING:
    from ..reports.explain import Side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="the earlier snapshot")
    parser.add_argument("after", metavar="AFTER", help="the later snapshot of the same process")
    parser.add_argument("--device", metavar="D", type=argument(whole(0)), help="only this device")
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes)")
    parser.add_argument(
        "--html",
        metavar="OUT",
        type=Path,
        help="also write a report with the memory maps of both snapshots to this file",
    )


def run(options: argparse.Namespace) -> int:
    from ..reports import explain as report
    from ..reports import terminal
    from ..snapshot_file import name_of

    before, after = _sides(options.before), _sides(options.after)
    devices = sorted(before.keys() & after.keys())
    if options.device is not None:
        devices = [device for device in devices if device == options.device]
    if not devices:
        wanted = "" if options.device is None else f" {options.device}"
        raise UsageError(f"the snapshots have no device{wanted} in common")
    records = [report.diff_record(before[device], after[device]) for device in devices]
    names = name_of(options.before), name_of(options.after)
    if options.html is not None:
        from ..reports import html

        pairs = [(before[device], after[device]) for device in devices]
        write_beside("--html", options.html, html.render_diff(records, pairs, names), options.before, options.after)
    if options.json:
        print(dumps({"before": names[0], "after": names[1], "devices": records}, 2))
    else:
        bold = terminal.bold(sys.stdout)
        print("\n\n".join(report.diff_text(record, names, bold) for record in records))
    return 0


def _sides(file: str) -> dict[int, Side]:
    from ..model.allocatable import Driver
    from ..model.fragmentation import measure
    from ..model.trace.profile import call_sites_of, frames_of_blocks
    from ..reports.explain import Side
    from ..snapshot_file import load, name_of
    from ..snapshot_file.reading import read_raw

    raw = load(file)
    try:
        heap = read_raw(raw).heap
    except BadInput as error:
        raise BadInput(f"{name_of(file)}: {error}") from None
    segments = raw["segments"] if isinstance(raw, Mapping) else raw
    parts = {device: heap.on_device(device) for device in heap.devices}
    frames = {device: frames_of_blocks(segments, device) for device in parts}
    return {
        device: Side(part, call_sites_of(frames[device]), measure(part, Driver()), frames[device])
        for device, part in parts.items()
    }
