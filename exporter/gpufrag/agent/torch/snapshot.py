"""Torch's snapshot in the cheapest form that each version has, and the settings that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import BadInput
from ...model.settings import Settings, parse_conf
from ...wire.error_counter import ErrorCounter
from .api import REFUSALS, TorchSurface

ARGUMENTS: tuple[tuple[tuple[int, int], tuple[Any, ...]], ...] = (
    ((2, 11), ((0, 0, False),)),  # of all pools, as torch's own callers have it, and without the trace
    ((2, 8), (None,)),
    ((0, 0), ()),
)
"""From which torch on the raw snapshot takes which arguments; newest first."""

CONF_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def take(surface: TorchSurface, trouble: ErrorCounter) -> Mapping[str, Any] | None:
    """All devices and pools, with torch's keys; None where this torch gives none."""
    function = surface.find("_C._cuda_memorySnapshot")
    if function is None or surface.ask("_C._MemPoolContext.active_pool"):  # torch 2.6, 2.7: shows that pool alone
        return None
    for arguments in [arguments for since, arguments in ARGUMENTS if surface.release >= since]:
        try:
            taken = function(*arguments)
        except TypeError:  # a build from between two releases: the form before
            continue
        except REFUSALS as error:
            trouble.note("torch._C._cuda_memorySnapshot", error, "fragmentation figures are absent")
            return None
        return taken if isinstance(taken, Mapping) else {"segments": taken}
    trouble.note("torch._C._cuda_memorySnapshot", f"unknown to torch {surface.version}", "a newer gpufrag may know it")
    return None


def conf(snapshot: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """The settings' text as the allocator holds it (torch >= 2.3), else as the environment has it."""
    recorded = snapshot.get("allocator_settings") or {}
    told = recorded.get("PYTORCH_CUDA_ALLOC_CONF")
    return told or next((text for name in CONF_VARIABLES if (text := environment.get(name))), None)


def settings(text: str | None, trouble: ErrorCounter) -> Settings:
    """For a snapshot that does not bring its own (torch < 2.3)."""
    try:
        return parse_conf(text or "")
    except BadInput as error:
        trouble.note("torch allocator settings", error, "the defaults are assumed")
        return Settings()
