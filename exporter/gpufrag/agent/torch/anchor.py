"""The anchor: memory of the device, reserved in one piece and left free in torch's cache. Off by default.

Fragmentation begins when segments are made one by one, each as large as the request of that moment. With one large
segment from the start, blocks are carved out of it and merge again when freed, so a later large request finds room.
This is the only code here that allocates on a device: one block through torch's own allocator, freed at once.

Torch does not return the segment to the driver while any block in it lives, so other processes cannot use it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ...model.anchor import GRID, SMALLEST, settings_obstacle
from ...model.settings import Settings
from ...wire.error_counter import ErrorCounter
from ..settings import LARGEST_ANCHOR
from . import devices as torch_devices
from . import snapshot as torch_snapshot
from .api import REFUSALS, TorchSurface


class Anchor:
    """Drops one anchor, in the thread that uses the device, and never raises.

    size: bytes, or a share of the device (float).
    """

    def __init__(
        self, torch: ModuleType, size: int | float, errors: ErrorCounter, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._surface, self._size = TorchSurface(torch, errors), size
        self._errors, self._environment = errors, environment
        self._hook: Any = None

    def drop_when_chosen(self) -> None:
        """Drop it now if one device is visible; else at the first forward pass, when the process has chosen one.

        A launcher's process initialises CUDA before it selects its device: all ranks would take the first.
        """
        if (self._surface.ask("cuda.device_count") or 0) == 1:
            self.drop()
            return
        register = self._surface.find("nn.modules.module.register_module_forward_pre_hook")
        if register is None:
            self._refuse("this torch has no hook for forward passes")
        else:
            self._hook = register(self._before_forward)

    def drop(self) -> None:
        """Reserve it on the current device unless there is an obstacle."""
        try:
            device = self._surface.find("cuda.current_device")
            if device is not None and (obstacle := self._reserve(int(device()))) is not None:
                self._refuse(obstacle)
        except REFUSALS as error:  # torch's own OutOfMemoryError is one
            self._errors.note("anchor", error, "the job continues without it")

    def _before_forward(self, module: object, arguments: object) -> None:
        """At each forward pass until the device is in use and no graph is captured."""
        if self._hook is None or not self._surface.ask("cuda.is_initialized"):
            return
        if self._surface.ask("cuda.is_current_stream_capturing") is not False:
            return
        hook, self._hook = self._hook, None
        hook.remove()
        self.drop()

    def _reserve(self, device: int) -> str | None:
        """Return the obstacle, or None after reserving. Raises what torch raises."""
        backend = self._surface.ask("cuda.get_allocator_backend")
        if backend != "native":
            return f"the allocator is {backend}, which keeps no segments"
        snapshot = torch_snapshot.take(self._surface, self._errors) or {}
        settings = torch_snapshot.settings(torch_snapshot.conf(snapshot, self._environment), self._errors)
        properties = self._surface.ask("cuda.get_device_properties", device)
        total = int(getattr(properties, "total_memory", 0))
        size = (self._size if isinstance(self._size, int) else int(total * self._size)) // GRID * GRID
        if size > LARGEST_ANCHOR * total:
            return f"{size} bytes are more than {LARGEST_ANCHOR:.0%} of device {device}"
        if (obstacle := settings_obstacle(settings) or self._room_obstacle(device, size, settings)) is not None:
            return obstacle
        allocate = self._surface.find("cuda.caching_allocator_alloc")
        delete = self._surface.find("cuda.caching_allocator_delete")
        if allocate is None or delete is None:
            return "this torch has no caching_allocator_alloc"
        delete(allocate(size, device))
        return None

    def _room_obstacle(self, device: int, size: int, settings: Settings) -> str | None:
        """Checked before torch is asked: a failed allocation would empty the cache and be reported as an OOM."""
        if size < SMALLEST:
            return f"{size} bytes are too few for a segment"
        limit = torch_devices.limit(self._surface, device, settings)
        stats = self._surface.ask("cuda.memory_stats_as_nested_dict", device) or {}
        reserved = stats.get("reserved_bytes", {}).get("all", {}).get("current", 0)
        if limit is not None and reserved + size > limit:
            return f"{size} bytes in addition to {reserved} exceed the process's limit of {limit}"
        free = self._surface.ask("cuda.mem_get_info", device)
        if free is None or free[0] < size:
            return f"{size} bytes are not free on device {device}"
        return None

    def _refuse(self, obstacle: str) -> None:
        self._errors.note("anchor", obstacle, "the job continues without it")
