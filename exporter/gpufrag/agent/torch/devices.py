"""Torch's devices: which ones this process uses, what they are, and how much of each it may reserve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...model.settings import Settings
from ..sources import DRIVER_VERSION_FILES, DeviceFacts, device_facts
from .api import TorchSurface


def in_use(surface: TorchSurface) -> list[int]:
    """The devices with a context of this process; all visible ones if torch does not report it."""
    if not surface.ask("cuda.is_initialized"):
        return []
    devices = range(surface.ask("cuda.device_count") or 0)
    if surface.find("_C._cuda_hasPrimaryContext") is None:
        return list(devices)
    return [device for device in devices if has_context(surface, device)]


def has_context(surface: TorchSurface, device: int) -> bool:
    """False if unknown: a question to the driver would create the context."""
    return bool(surface.ask("_C._cuda_hasPrimaryContext", device))


def facts(
    surface: TorchSurface,
    device: int,
    environment: Mapping[str, str],
    version_files: Sequence[Path] = DRIVER_VERSION_FILES,
) -> DeviceFacts:
    """About a device in use."""
    uuid = getattr(surface.ask("cuda.get_device_properties", device), "uuid", None)
    backend = surface.ask("cuda.get_allocator_backend") or "unknown"
    return device_facts(backend, device, environment, str(uuid) if uuid else None, version_files)


def limit(surface: TorchSurface, device: int, settings: Settings) -> int | None:
    """Bytes that the process may reserve; None without a fraction below 1, or if (torch < 2.6) it cannot be read."""
    size = getattr(surface.ask("cuda.get_device_properties", device), "total_memory", None)
    if size is None:
        return None
    if surface.find("cuda.get_per_process_memory_fraction") is not None:
        fraction = surface.ask("cuda.get_per_process_memory_fraction", device)
        # torch divides its whole number of bytes by the size, which rounding undoes
        return None if fraction is None or fraction >= 1 else round(fraction * size)
    fraction = settings.per_process_memory_fraction
    whole = int if surface.release < (2, 13) else round
    return whole(fraction * size) if fraction < 1 else None
