"""The Grafana dashboards, in the classic JSON model, built from one Config."""

from __future__ import annotations

from typing import Any

from ...errors import Unavailable
from ..config import Config


def build(config: Config) -> dict[str, dict[str, Any]]:
    """By file name. Raises Unavailable where the library that knows Grafana's JSON is not installed."""
    try:
        from . import device, fleet, frame, job
    except ModuleNotFoundError as missing:
        raise Unavailable(
            f"dashboards need {missing.name}, which is not installed: pip install 'gpufrag[mixin]' (Python >= 3.11)"
        ) from None
    built = {frame.FLEET: fleet.build, frame.JOB: job.build, frame.DEVICE: device.build}
    return {f"{uid}.json": make(config) for uid, make in built.items()}
