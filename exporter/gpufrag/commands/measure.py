"""`gpufrag measure`: every quantity of a saved snapshot."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from ..errors import BadInput, UsageError
from ..model.allocatable import Driver
from ..model.heap import Heap
from ..model.settings import Settings, read_conf
from ..reports import measure, terminal
from ..snapshot_file import name_of, read
from ..units import argument, parse_bytes, whole
from .arguments import refuse_more_free_than_there_is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size = argument(parse_bytes)
    parser.add_argument(
        "file", metavar="FILE", help="torch's pickle or JSON of it, gzipped or not; - is standard input"
    )
    parser.add_argument("--driver-free", metavar="SIZE", type=size, help="free memory of the device at the snapshot")
    parser.add_argument("--driver-size", metavar="SIZE", type=size, help="memory of the device (both: mem_get_info)")
    parser.add_argument("--limit", metavar="SIZE", type=size, help="what set_per_process_memory_fraction allows")
    parser.add_argument("--device", metavar="D", type=argument(whole(0)), help="this device only")
    parser.add_argument(
        "--stream",
        metavar="N",
        type=argument(whole(0)),
        help="where the next request is made (default: the busiest)",
    )
    parser.add_argument(
        "--alloc-conf", metavar="TEXT", type=_settings, help="PYTORCH_CUDA_ALLOC_CONF, where the file has none"
    )
    parser.add_argument("--json", action="store_true", help="for programs: bytes, null for what cannot be told")


def run(options: argparse.Namespace) -> int:
    name = name_of(options.file)
    saved = read(options.file, options.alloc_conf)
    heap = _narrowed(saved.heap, name, options)
    devices = measure.measured(heap, _told(saved.driver, options), options.stream)
    if options.json:
        record = {
            "file": name,
            "settings_known": saved.knows_settings,
            "devices": list(map(measure.as_record, devices)),
        }
        print(json.dumps(record, indent=2))
        return 0
    print("\n\n".join(measure.as_text(device, name, terminal.bold(sys.stdout)) for device in devices))
    if not saved.knows_settings:
        print("note: the file records no allocator settings, torch's own defaults were taken: add --alloc-conf")
    return 0


def _settings(text: str) -> Settings:
    try:
        return read_conf(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _narrowed(heap: Heap, name: str, options: argparse.Namespace) -> Heap:
    """Raises UsageError for a device that is not there, and for figures of one device when there are several."""
    held = ", ".join(map(str, heap.devices))
    if options.device is not None:
        if options.device not in heap.devices:
            raise UsageError(f"--device {options.device}: {name} holds memory of device {held or '(none)'}")
        return heap.on_device(options.device)
    given = (options.driver_free, options.driver_size, options.limit, options.stream)
    if len(heap.devices) > 1 and any(value is not None for value in given):
        raise UsageError(f"{name} holds devices {held}: say by --device which of them the figures are of")
    return heap


def _told(recorded: Driver, options: argparse.Namespace) -> Driver:
    """The file's own reading of the driver, with what flags say instead. Raises UsageError for an impossible one."""
    told = {"free": options.driver_free, "size": options.driver_size, "limit": options.limit}
    driver = replace(recorded, **{name: value for name, value in told.items() if value is not None})
    refuse_more_free_than_there_is(driver.free, driver.size)
    return driver
