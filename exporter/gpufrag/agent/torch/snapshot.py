"""Torch's snapshot in the cheapest form that each release has, and the settings that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import BadInput
from ...model.settings import Settings, parse_conf
from ...wire.error_counter import ErrorCounter
from ...wire.interrupts import let_through
from .api import REFUSALS, TorchSurface

SNAPSHOT = "_C._cuda_memorySnapshot"
CONF_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def take(surface: TorchSurface, errors: ErrorCounter, events: bool = False) -> Mapping[str, Any] | None:
    """All devices and pools with torch's keys, and the trace of `events`; None if this torch has no snapshot.

    Before torch 2.11 a snapshot always contains the trace.
    """
    function = surface.find(SNAPSHOT)
    if function is None or surface.ask("_C._MemPoolContext.active_pool"):  # torch 2.6, 2.7: only that pool is shown
        return None
    arguments: tuple[tuple[tuple[int, int], tuple[Any, ...]], ...] = (
        ((2, 11), ((0, 0, events),)),
        ((2, 8), (None,)),
        ((0, 0), ()),
    )
    for form in [form for since, form in arguments if surface.release >= since]:
        try:
            snapshot = function(*form)
        except TypeError as error:  # a build from between two releases: try the older form
            let_through(error)
            continue
        except REFUSALS as error:
            errors.note(f"torch.{SNAPSHOT}", error, "fragmentation figures are absent")
            return None
        return snapshot if isinstance(snapshot, Mapping) else {"segments": snapshot}
    errors.note(f"torch.{SNAPSHOT}", f"unknown form in torch {surface.version}", "a newer gpufrag may support it")
    return None


def conf(snapshot: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """The text of the allocator's settings: from the snapshot (torch >= 2.3), else from the environment."""
    recorded = (snapshot.get("allocator_settings") or {}).get("PYTORCH_CUDA_ALLOC_CONF")
    return recorded or next((text for name in CONF_VARIABLES if (text := environment.get(name))), None)


def settings(text: str | None, errors: ErrorCounter) -> Settings:
    """For a snapshot without settings (torch < 2.3)."""
    try:
        return parse_conf(text or "")
    except BadInput as error:
        errors.note("torch allocator settings", error, "the defaults are assumed")
        return Settings()
