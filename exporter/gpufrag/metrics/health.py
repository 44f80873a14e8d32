"""The rows about gpufrag itself: is it there, is it fresh, what does it cost."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from .. import __version__
from .row import COUNTER, GAUGE, INFO, Metric
from .sources import COLLECTOR, FLEET, RANK
from .view import CollectorResult


def _failure(result: CollectorResult) -> Mapping[str, object] | None:
    return None if result.success or not result.reason else {"reason": result.reason}


HEALTH: tuple[Metric[Any], ...] = (
    Metric(
        "gpufrag_up", GAUGE, RANK, lambda rank: int(rank.view.alive),
        "1 while the process lives, hung or not: its control socket is open; 0 when it has ended, as long as its last "
        "words are kept.",
        outlives=True,
    ),
    Metric(
        "gpufrag_ranks", GAUGE, FLEET, lambda fleet: fleet.states,
        "Processes with an agent by state: alive, or dead with last words kept.",
        adds=("state",),
    ),
    Metric(
        "gpufrag_sample_timestamp_seconds", GAUGE, RANK, lambda rank: rank.view.sample.time,
        "When the agent last wrote its figures. One that stands still belongs to a process that hangs.",
    ),
    Metric(
        "gpufrag_stall_seconds_total", COUNTER, RANK, lambda rank: rank.view.sample.health.stall_seconds,
        "For how long the agent held up the process: reading statistics (stats), taking snapshots (snapshot), waiting "
        "for the allocator (wait); and the processor time that it took beside the process to measure them (measure).",
        adds=("cause",),
    ),
    Metric(
        "gpufrag_agent_errors_total", COUNTER, RANK, lambda rank: rank.view.sample.health.errors,
        "Errors inside the agent, by what it was doing; the process itself never sees them.",
        adds=("source",),
    ),
    Metric(
        "gpufrag_sample_files_skipped", GAUGE, FLEET, lambda fleet: fleet.skipped,
        "Files in the agents' folder that gave no process, by reason.",
        adds=("reason",),
    ),
    Metric(
        "gpufrag_collector_success", GAUGE, COLLECTOR, lambda result: int(result.success),
        "1 if this source of figures could be read. 0 for nvml is normal in a container without a GPU: the agents' "
        "own readings serve then.",
    ),
    Metric(
        "gpufrag_collector_duration_seconds", GAUGE, COLLECTOR, lambda result: result.duration_seconds,
        "How long the last finished reading of this source took.",
    ),
    Metric(
        "gpufrag_collector_failure_info", INFO, COLLECTOR, _failure,
        "Why a source could not be read; there only while it cannot.",
        adds=("reason",),
    ),
    Metric(
        "gpufrag_build_info", INFO, FLEET, lambda _: {"version": __version__, "python": platform.python_version()},
        "Which gpufrag answers; always 1.",
        adds=("version", "python"),
    ),
)  # fmt: skip
