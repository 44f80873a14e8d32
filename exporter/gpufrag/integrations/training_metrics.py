"""Metrics of this process's GPU memory for a training log, from figures that the agent already has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .. import agent
from ..agent import lifecycle
from ..wire.folder import FileName
from ..wire.sample import DeviceSample, ProcessSample

RATIO, MARGIN, NEEDED, OOMS = "ratio_at_peak", "margin_bytes", "needed_bytes", "ooms"
CPU_SHARE, TIMEOUT_S = 0.02, 60.0
"""Of the analysis: share of a core, and seconds for one recording."""


class TrainingMetrics:
    """Starts the agent. `values` takes microseconds: recordings are analysed in a low-priority process.

    analyse: compute margin_bytes and needed_bytes, with 2 % of a core. Without it, they are absent.
    """

    def __init__(self, prefix: str = "gpufrag/", analyse: bool = True) -> None:
        self._prefix, self._analyse = prefix, analyse
        self._analyzer: Any = None
        agent.start()

    def values(self) -> dict[str, float]:
        """Return the metrics that are known now, of this process's worst device.

        ratio_at_peak: the fragmentation ratio at the peak of the last recorded step. needed_bytes: the smallest memory
        limit under which that step succeeds. margin_bytes: the process's limit minus that. ooms: out-of-memory errors
        that the program has survived.
        """
        sample = agent.latest()
        if sample is None:
            return {}
        found: dict[str, float] = {}
        ratios = [ratio for device in sample.devices if (ratio := _ratio_at_peak(device)) is not None]
        if ratios:
            found[RATIO] = max(ratios)
        counts = [device.totals.counters.ooms for device in sample.devices if device.totals]
        if counts:
            found[OOMS] = sum(count or 0 for count in counts)
        found |= self._needs(sample)
        return {self._prefix + name: float(value) for name, value in found.items()}

    def close(self) -> None:
        analyzer, self._analyzer, self._analyse = self._analyzer, None, False
        if analyzer is not None:
            analyzer.close()

    def _needs(self, sample: ProcessSample) -> dict[str, float]:
        folder = lifecycle.folder() if self._analyse else None
        if folder is None:
            return {}
        if self._analyzer is None:
            try:  # by name: a copy of the agent alone lacks the module
                analysis = import_module("gpufrag.sidecar.analysis")
            except ImportError:
                self._analyse = False
                return {}
            self._analyzer = analysis.Analyzer(folder, CPU_SHARE, TIMEOUT_S)
        name = FileName.of(sample.identity)
        figures = self._analyzer.look([name]).get(name)
        steps = figures.steps if figures else ()
        needed = [(step, step.smallest_limits["recorded"]) for step in steps if "recorded" in step.smallest_limits]
        found: dict[str, float] = {}
        if needed:
            found[NEEDED] = max(size for _, size in needed)
        margins = [step.limit - size for step, size in needed if step.limit is not None]
        if margins:
            found[MARGIN] = min(margins)
        return found


def _ratio_at_peak(device: DeviceSample) -> float | None:
    return next((snapshot.measured.ratio for snapshot in device.snapshots if snapshot.at == "peak"), None)
