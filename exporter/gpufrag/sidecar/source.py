"""One view of everything: agents' files and NVML, each read on its own, joined.

No source can take the others with it: what cannot be read, or not in time, is a collector without success and a
reason, and the rest is served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.sidecar import FolderSettings, NvmlSettings
from ..logs import event
from ..metrics.view import CollectorResult, Fleet, RankView
from . import procfs
from .deadline import Answer, Worker
from .join import Joined, join
from .processes import ProcessReader, Reading
from .readings import NvmlReading
from .sample_files import Skip

if TYPE_CHECKING:
    from .nvml import Collector

log = logging.getLogger(__name__)


class FleetSource:
    """Reads the fleet for each scrape. For one thread at a time."""

    def __init__(
        self, folder: Path, settings: FolderSettings, nvml: Collector | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._folder = Worker("folder", ProcessReader(folder, settings, clock).read, settings.deadline)
        self._nvml = nvml
        self._reported: dict[str, str | None] = {}
        self.waiting_for: str | None = "the first reading"
        """What a full reading still lacks; None once there was one."""
        self.denied = 0
        """Ranks that the latest reading found and might not ask."""

    def read(self) -> Fleet:
        """Never raises for a source that fails: `collectors` tells it."""
        folder = self._folder.ask()
        reading = folder.value or Reading()
        collectors = {"folder": folder.result}
        driver = self._nvml.collect() if self._nvml else None
        if driver:
            collectors["nvml"] = driver.result
        joined, collectors["join"] = _join(reading.ranks, driver)
        self._report(collectors)
        self.waiting_for = self.waiting_for and folder.result.reason
        self.denied = reading.skipped.get(Skip.DENIED.value, 0)
        return Fleet(self._clock(), joined.ranks, joined.devices, collectors, reading.skipped, reading.ooms)

    def close(self) -> None:
        """End the threads; one that hangs ends with the process."""
        self._folder.close()
        if self._nvml:
            self._nvml.close()

    def _report(self, collectors: dict[str, CollectorResult]) -> None:
        """Log what begins to fail and what works again; not at each scrape."""
        for name, result in collectors.items():
            if result.success and self._reported.get(name):
                event(log, logging.INFO, "collector works again", collector=name)
            elif not result.success and name not in self._reported:
                level = logging.INFO if name == "nvml" else logging.WARNING  # no GPU in a sidecar is normal
                event(log, level, "collector failed", collector=name, reason=result.reason)
        self._reported = {name: result.reason for name, result in collectors.items() if not result.success}


def nvml_collector(settings: NvmlSettings) -> Collector | None:
    """None where NVML is not wanted."""
    if not settings.enabled:
        return None
    from .nvml import Collector  # pynvml is half a megabyte that not everybody needs

    return Collector(settings.deadline)


def _join(ranks: tuple[RankView, ...], driver: Answer[NvmlReading] | None) -> tuple[Joined, CollectorResult]:
    begun = time.monotonic()
    reading = driver.value if driver else None
    try:
        joined = join(ranks, reading, procfs.look(reading.pids if reading else ()))
    except Exception as error:  # a fault in here must not take the agents' own figures out of the scrape
        log.exception("the join of agents and driver failed")
        reason = f"a fault in gpufrag itself ({type(error).__name__}: {error})"
        return Joined(ranks, ()), CollectorResult(False, time.monotonic() - begun, reason)
    return joined, CollectorResult(True, time.monotonic() - begun)
