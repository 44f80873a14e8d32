"""The anchor: a share of the device, reserved in one piece and left free in torch's cache. Off unless asked for.

Fragmentation begins where segments are made one by one, each as large as the request of that moment. One large
segment at the beginning is carved instead: what is freed in it joins again, and a later large request finds a place.
It is the one thing here that allocates on a device: a block through torch's own allocator, freed at once.

Torch does not give it back to the driver while any block in it lives, so it is lost to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..model.settings import MIB, Settings
from ..wire.error_counter import ErrorCounter
from .torch import devices as torch_devices
from .torch import snapshot as torch_snapshot
from .torch.api import REFUSALS, TorchSurface

GRID = 2 * MIB  # of torch's segments
LEAST = 20 * MIB  # torch keeps smaller segments for smaller requests


class Anchor:
    """Drops one anchor, in the thread that uses the device, and never raises."""

    def __init__(
        self, torch: ModuleType, share: float, trouble: ErrorCounter, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._surface, self._share = TorchSurface(torch, trouble), share
        self._trouble, self._environment = trouble, environment
        self._hook: Any = None

    def drop_when_chosen(self) -> None:
        """Now, where one device is visible; of several, at the first forward pass: by then the process has chosen.

        A launcher's process initialises CUDA before it says which device it is to use: all would take the first.
        """
        if (self._surface.ask("cuda.device_count") or 0) == 1:
            self.drop()
            return
        register = self._surface.find("nn.modules.module.register_module_forward_pre_hook")
        if register is None:
            self._refuse("this torch tells no forward pass")
        else:
            self._hook = register(self._before_forward)

    def drop(self) -> None:
        """Reserve the share of the current device, if nothing speaks against it."""
        try:
            device = self._surface.find("cuda.current_device")
            if device is not None and (obstacle := self._reserve(int(device()))) is not None:
                self._refuse(obstacle)
        except REFUSALS as error:  # torch's own OutOfMemoryError is one
            self._trouble.note("anchor", error, "the job goes on without it")

    def _before_forward(self, module: object, arguments: object) -> None:
        """At each forward pass until one comes in which the device is in use and no graph is recorded."""
        if self._hook is None or not self._surface.ask("cuda.is_initialized"):
            return
        if self._surface.ask("cuda.is_current_stream_capturing") is not False:
            return
        hook, self._hook = self._hook, None
        hook.remove()
        self.drop()

    def _reserve(self, device: int) -> str | None:
        """What speaks against it; None once it is done. Raises what torch raises."""
        if (found := self._backend_obstacle()) is not None:
            return found
        settings, size = self._settings(), self._size(device)
        if (found := settings_obstacle(settings) or self._room_obstacle(device, size, settings)) is not None:
            return found
        allocate = self._surface.find("cuda.caching_allocator_alloc")
        delete = self._surface.find("cuda.caching_allocator_delete")
        if allocate is None or delete is None:
            return "this torch has no caching_allocator_alloc"
        delete(allocate(size, device))
        return None

    def _size(self, device: int) -> int:
        properties = self._surface.ask("cuda.get_device_properties", device)
        return int(getattr(properties, "total_memory", 0) * self._share) // GRID * GRID

    def _settings(self) -> Settings:
        snapshot = torch_snapshot.take(self._surface, self._trouble) or {}
        return torch_snapshot.settings(torch_snapshot.conf(snapshot, self._environment), self._trouble)

    def _backend_obstacle(self) -> str | None:
        backend = self._surface.ask("cuda.get_allocator_backend")
        return None if backend == "native" else f"the allocator is {backend}, which keeps no segments"

    def _room_obstacle(self, device: int, size: int, settings: Settings) -> str | None:
        """Asked before torch is: a failed allocation would empty the cache, count as an OOM, and be reported as one."""
        if size < LEAST:
            return f"{size} bytes are too few for a segment"
        limit = torch_devices.limit(self._surface, device, settings)
        stats = self._surface.ask("cuda.memory_stats_as_nested_dict", device) or {}
        reserved = stats.get("reserved_bytes", {}).get("all", {}).get("current", 0)
        if limit is not None and reserved + size > limit:
            return f"{size} bytes on top of {reserved} are above the process's limit of {limit}"
        free = self._surface.ask("cuda.mem_get_info", device)
        if free is None or free[0] < size:
            return f"{size} bytes are not free on device {device}"
        return None

    def _refuse(self, obstacle: str) -> None:
        self._trouble.note("anchor", obstacle, "the job goes on without it")


def settings_obstacle(settings: Settings) -> str | None:
    """Why an anchor would be useless or harmful under these settings; None where it is neither."""
    if settings.expandable_segments:
        return "expandable segments already are one piece that grows: an anchor would only hold memory"
    if settings.max_split_size is not None:
        return "max_split_size forbids to carve a large block: most requests could not use the anchor"
    return None
