"""The Grafana dashboards, in the classic JSON model, built from one Config."""

from __future__ import annotations

import json

from ...errors import Unavailable
from ..config import Config


def files(config: Config) -> dict[str, str]:
    """Return the dashboards as JSON, by file name. Raises Unavailable if the Grafana SDK is not installed."""
    try:
        from . import device, document, fleet, job
    except ModuleNotFoundError as missing:
        raise Unavailable(
            f"cannot build dashboards: {missing.name} is not installed; run: pip install 'gpufrag[mixin]' "
            "(Python >= 3.11), or use --rules-only"
        ) from None
    built = {document.FLEET: fleet.build, document.JOB: job.build, document.DEVICE: device.build}
    return {f"{uid}.json": json.dumps(build(config), indent=2, sort_keys=True) + "\n" for uid, build in built.items()}
