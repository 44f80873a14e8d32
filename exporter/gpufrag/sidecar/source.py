"""One view of everything: agents' files and NVML, each read separately, then joined.

No source can fail the others: what cannot be read in time is a collector without success and with a reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.sidecar import AnalysisSettings, FolderSettings, NvmlSettings
from ..logs import event
from ..metrics.view import CollectorResult, Fleet, RankView
from ..wire.folder import FileName
from ..wire.measuring import current
from ..wire.sample import DeviceSample
from .analysis import Analyzer, DeviceFigures, RankFigures
from .deadline import DeadlineWorker, Latest
from .join import Joined, join
from .processes import ProcessReader, Reading
from .procfs import visible_processes
from .readings import NvmlReading
from .sample_files import Skip

if TYPE_CHECKING:
    from .nvml import Collector

log = logging.getLogger(__name__)


class FleetSource:
    """Reads the fleet for each scrape. For one thread at a time."""

    def __init__(
        self,
        folder: Path,
        settings: FolderSettings,
        nvml: Collector | None,
        analysis: AnalysisSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._path = folder
        self._nvml = nvml
        self._analyzer = _analyzer(folder, analysis)
        self._folder = DeadlineWorker("folder", self._reading_of(folder, settings), settings.deadline)
        self._reported: dict[str, str | None] = {}
        self.waiting_for: str | None = "the first reading"
        """Why there was no complete reading yet; None once there was one."""
        self.denied = 0
        """Ranks of the latest reading that the sidecar has no permission for."""

    @property
    def folder(self) -> Path:
        return self._path

    def read(self) -> Fleet:
        """Return the fleet. A failed source is in its `collectors`; this never raises."""
        folder = self._folder.ask()
        reading = folder.value or Reading()
        collectors = {"folder": folder.result}
        driver = self._nvml.collect() if self._nvml else None
        if driver:
            collectors["nvml"] = driver.result
        joined, collectors["join"] = _join(self._with_figures(reading.ranks), driver)
        self._report(collectors)
        self.waiting_for = self.waiting_for and folder.result.reason
        self.denied = reading.skipped.get(Skip.DENIED.value, 0)
        analyses = dict(self._analyzer.counts) if self._analyzer else {}
        return Fleet(self._clock(), joined.ranks, joined.devices, collectors, reading.skipped, reading.ooms, analyses)

    def _with_figures(self, ranks: tuple[RankView, ...]) -> tuple[RankView, ...]:
        """The ranks with what their recordings show."""
        if self._analyzer is None:
            return ranks
        figures = self._analyzer.figures(_alive(ranks))
        now = self._clock()
        return tuple(
            _with_figures(rank, found, now) if (found := figures.get(FileName.of(rank.sample.identity))) else rank
            for rank in ranks
        )

    def _reading_of(self, folder: Path, settings: FolderSettings) -> Callable[[], Reading]:
        """Return the work that touches the folder: it may hang, so no other thread of a scrape does."""
        reader, analyzer = ProcessReader(folder, settings, self._clock), self._analyzer

        def read() -> Reading:
            reading = reader.read()
            if analyzer is not None:
                analyzer.watch(_alive(reading.ranks))
            return reading

        return read

    def reconfigure(
        self, folder: Path, settings: FolderSettings, nvml: NvmlSettings, analysis: AnalysisSettings | None = None
    ) -> None:
        """Use other settings from now on. A thread that hangs is kept, so that reloads do not add more of them."""
        before, self._analyzer = self._analyzer, _analyzer(folder, analysis)
        if before:
            before.close()
            if self._analyzer:
                self._analyzer.counts = before.counts
        read = self._reading_of(folder, settings)
        if self._folder.hangs and folder != self._path:
            self._folder.close()
            self._folder = DeadlineWorker("folder", read, settings.deadline)
        else:
            self._folder.replace_work(read, settings.deadline)
        self._path = folder
        if self._nvml is None:
            self._nvml = nvml_collector(nvml)
        elif nvml.enabled:
            self._nvml.set_deadline(nvml.deadline)
        else:
            self._nvml.close()
            self._nvml = None

    def close(self) -> None:
        """End the threads; one that hangs ends with the process."""
        self._folder.close()
        if self._nvml:
            self._nvml.close()
        if self._analyzer:
            self._analyzer.close()

    def _report(self, collectors: dict[str, CollectorResult]) -> None:
        for name, result in collectors.items():
            if result.success and self._reported.get(name):
                event(log, logging.INFO, "collector works again", collector=name)
            elif not result.success and name not in self._reported:
                level = logging.INFO if name == "nvml" else logging.WARNING  # no GPU in a sidecar is normal
                event(log, level, "collector failed", collector=name, reason=result.reason)
        self._reported = {name: result.reason for name, result in collectors.items() if not result.success}


def _alive(ranks: tuple[RankView, ...]) -> set[FileName]:
    return {FileName.of(rank.sample.identity) for rank in ranks if rank.alive}


def _analyzer(folder: Path, settings: AnalysisSettings | None) -> Analyzer | None:
    return Analyzer(folder, settings.cpu_share, settings.timeout, needs=settings.enabled) if settings else None


def _with_figures(rank: RankView, figures: RankFigures, now: float) -> RankView:
    devices = tuple(
        _with_snapshots(device, found, figures.window, now)
        if (found := figures.devices.get(device.device)) and device.framework is None
        else device
        for device in rank.sample.devices
    )
    layouts = {one.device: one.layout for one in figures.devices.values() if one.layout}
    return replace(rank, sample=replace(rank.sample, devices=devices), steps=figures.steps, layouts=layouts)


def _with_snapshots(device: DeviceSample, figures: DeviceFigures, window: float, now: float) -> DeviceSample:
    snapshots = current(figures.snapshots, now, window)
    has_peak = any(snapshot.at == "peak" for snapshot in snapshots)
    return replace(device, snapshots=snapshots, largest_recurring=figures.largest_request if has_peak else None)


def nvml_collector(settings: NvmlSettings) -> Collector | None:
    if not settings.enabled:
        return None
    from .nvml import Collector  # pynvml takes half a megabyte

    return Collector(settings.deadline)


def _join(ranks: tuple[RankView, ...], driver: Latest[NvmlReading] | None) -> tuple[Joined, CollectorResult]:
    begun = time.monotonic()
    reading = driver.value if driver else None
    try:
        joined = join(ranks, reading, visible_processes(reading.pids if reading else ()))
    except Exception as error:  # the agents' own values are served without the driver's
        log.exception("cannot join the data of agents and driver")
        reason = f"internal error ({type(error).__name__}: {error})"
        return Joined(ranks, ()), CollectorResult(False, time.monotonic() - begun, reason)
    return joined, CollectorResult(True, time.monotonic() - begun)
