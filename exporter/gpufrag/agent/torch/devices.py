"""Torch's devices: which this process uses, who they are, and how much of each it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...model.settings import Settings
from ..device_names import DRIVER_VERSION_FILES, named
from ..sources import DeviceFacts
from .api import TorchSurface


def in_use(surface: TorchSurface) -> list[int]:
    """Where the process has a context already, or may have one because this torch cannot tell."""
    if not surface.ask("cuda.is_initialized"):
        return []
    devices = range(surface.ask("cuda.device_count") or 0)
    if surface.find("_C._cuda_hasPrimaryContext") is None:
        return list(devices)
    return [device for device in devices if has_context(surface, device)]


def has_context(surface: TorchSurface, device: int) -> bool:
    """False where it is not known: a question to the driver would create the context."""
    return bool(surface.ask("_C._cuda_hasPrimaryContext", device))


def facts(
    surface: TorchSurface,
    device: int,
    environment: Mapping[str, str],
    version_files: Sequence[Path] = DRIVER_VERSION_FILES,
) -> DeviceFacts:
    """About a device in use."""
    told = getattr(surface.ask("cuda.get_device_properties", device), "uuid", None)
    backend = surface.ask("cuda.get_allocator_backend") or "unknown"
    return named(backend, device, environment, str(told) if told else None, version_files)


def limit(surface: TorchSurface, device: int, settings: Settings) -> int | None:
    """Bytes that the process may reserve; None where no fraction below 1 is set, or (torch < 2.6) none can be read."""
    size = getattr(surface.ask("cuda.get_device_properties", device), "total_memory", None)
    if size is None:
        return None
    if surface.find("cuda.get_per_process_memory_fraction") is not None:
        fraction = surface.ask("cuda.get_per_process_memory_fraction", device)
        # torch divides its whole number of bytes by the size: rounding undoes just that
        return None if fraction is None or fraction >= 1 else round(fraction * size)
    fraction = settings.per_process_memory_fraction
    whole = int if surface.release < (2, 13) else round
    return whole(fraction * size) if fraction < 1 else None
