"""`gpufrag measure`: every quantity of a saved snapshot."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from ..errors import UsageError
from ..model.heap import Heap
from ..model.settings import read_conf
from ..reports import measure, terminal
from ..snapshot_file import name_of, read
from ..units import parse_memory, whole
from ..wire.codec import dumps
from .arguments import memory_limit, option, refuse_more_free_than_there_is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="torch's snapshot (pickle or JSON, gzipped or not); - for standard input"
    )
    option(
        parser,
        "--driver-free",
        "SIZE",
        "free memory of the device at the snapshot; the first value of torch.cuda.mem_get_info()",
        parse_memory,
    )
    option(
        parser,
        "--driver-size",
        "SIZE",
        "size of the device; the second value of torch.cuda.mem_get_info()",
        parse_memory,
    )
    option(parser, "--limit", "SIZE", "memory limit of the process (default: the device's size)", memory_limit)
    option(parser, "--device", "D", "only this device (default: all)", whole(0))
    option(
        parser,
        "--stream",
        "N",
        "compute the largest request on this stream (default: the one with most memory)",
        whole(0),
    )
    option(parser, "--alloc-conf", "TEXT", "PYTORCH_CUDA_ALLOC_CONF of the process, if the file has none", read_conf)
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if unknown)")


def run(options: argparse.Namespace) -> int:
    name = name_of(options.file)
    saved = read(options.file, options.alloc_conf)
    heap = _narrowed(saved.heap, name, options)
    given = {"free": options.driver_free, "size": options.driver_size, "limit": options.limit}
    driver = replace(saved.driver, **{name: value for name, value in given.items() if value is not None})
    refuse_more_free_than_there_is(driver.free, driver.size)
    devices = measure.measured(heap, driver, options.stream)
    if options.json:
        record = {
            "file": name,
            "settings_known": saved.knows_settings,
            "devices": list(map(measure.as_record, devices)),
        }
        print(dumps(record, 2))
        return 0
    print("\n\n".join(measure.as_text(device, name, terminal.bold(sys.stdout)) for device in devices))
    if not saved.knows_settings:
        print("note: the file records no allocator settings; torch's defaults are assumed (see --alloc-conf)")
    return 0


def _narrowed(heap: Heap, name: str, options: argparse.Namespace) -> Heap:
    """Raises UsageError for a missing device, and for figures of one device if there are several."""
    held = ", ".join(map(str, heap.devices))
    if options.device is not None:
        if options.device not in heap.devices:
            raise UsageError(f"--device {options.device}: {name} has memory of device {held or '(none)'}")
        return heap.on_device(options.device)
    given = (options.driver_free, options.driver_size, options.limit, options.stream)
    if len(heap.devices) > 1 and any(value is not None for value in given):
        raise UsageError(f"{name} has devices {held}; choose with --device the one that the figures belong to")
    return heap
