"""The parent of a job with --summary: passes signals on, and prints what the job needed once it has ended.

It reads the agents' files of the job's processes, which stay in the folder after their ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, NewerVersion, Unavailable, one_line
from ..model.needs import RECORDED, Needs, better_setting, step_needs
from ..reports import recorded_step
from ..units import format_bytes
from ..wire import recording, sample
from ..wire.folder import FileName, open_plain, write_file
from ..wire.recording import DeviceRecording
from ..wire.sample import DeviceSample, Identity, ProcessSample
from .command import Run, adopt_orphans
from .supervisor import END_SIGNALS, GROUP_SIGNALS, HANDLED_SIGNALS

POLL_S = 0.5
"""Between two looks at the job's processes; a process that ends earlier is missed unless it is the command itself."""
LONGEST_S = 120.0
"""The job's exit code waits this long for the summary."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Peak:
    """The device with the most reserved memory of the job."""

    identity: Identity
    device: DeviceSample
    reserved: int
    active: int | None

    @property
    def where(self) -> str:
        rank = f"process {self.identity.pid}" if self.identity.rank is None else f"rank {self.identity.rank}"
        return f"{rank}, device {self.device.device}"


def run_with_summary(command: Sequence[str], environment: Mapping[str, str], folder: Path, report: Path) -> int:
    """Run the command, print the summary, and return the command's wait status.

    report: where the HTML report goes. Raises OSError if the command cannot be started.
    """
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    handled = HANDLED_SIGNALS - {number for number in END_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    begin = time.time()
    run = Run(command, environment, mask)
    pids = {run.pid}
    while run.status is None:
        _handle_signal(run, signal.sigtimedwait(handled, POLL_S))
        pids.update(run.processes())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        with _time_limit(LONGEST_S):
            lines = summarize(read_samples(folder, pids, begin), folder, report)
    except Exception as error:  # the job's exit code matters more
        lines = [f"no summary: {type(error).__name__}: {error}"]
    with suppress(OSError, ValueError):  # stderr is closed
        print("".join(f"gpufrag: {one_line(line)}\n" for line in lines), end="", file=sys.stderr, flush=True)
    return run.status


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise Unavailable in the block after this time. Others may write to the folder, recordings of any length too."""

    def expire(number: int, frame: object) -> None:
        raise Unavailable(f"it takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _handle_signal(run: Run, info: signal.struct_siginfo | None) -> None:
    if info is None or info.si_signo == signal.SIGCHLD:
        run.reap()
    elif info.si_signo in GROUP_SIGNALS:
        run.signal_group(info.si_signo)
    else:
        run.signal(info.si_signo)


def read_samples(folder: Path, pids: Iterable[int], begin: float) -> list[ProcessSample]:
    """Return the last samples of these processes. begin: when the job started, so that a reused pid is left out."""
    found = []
    for entry in os.listdir(folder) if folder.is_dir() else ():
        name = FileName.parse(entry)
        if name is None or entry != name.sample or name.pid not in pids or name.start < (begin - 1) * 1000:
            continue
        with suppress(OSError, BadInput, NewerVersion), open_plain(folder / entry) as file:
            found.append(sample.decode(file.read(sample.MAX_BYTES + 1)))
    return sorted(found, key=lambda one: (one.identity.rank or 0, one.identity.pid))


def summarize(samples: Sequence[ProcessSample], folder: Path, report: Path) -> list[str]:
    """Return the lines of the summary, and write the report if a step was recorded."""
    peak = max(filter(None, map(_peak, samples)), key=lambda one: one.reserved, default=None)
    if peak is None:
        return ["no process of the job used a GPU through a supported framework"]
    found = _recording(folder / FileName.of(peak.identity).recording, peak.device.device)
    active = UNKNOWN if peak.active is None else format_bytes(peak.active)
    lines = [
        f"peak in use: {active} ({peak.where})",
        f"peak reserved: {format_bytes(peak.reserved)} ({peak.where})",
        *_needs(found),
        _faults(samples),
    ]
    if found is None:
        return [*lines, "report: none, because no step was recorded; see docs/agent-reference.md"]
    try:
        write_file(report, recorded_step.render([found], f"recorded step of {peak.where}"))
    except BadInput as error:
        return [*lines, f"report: none, because the recording is damaged: {error}"]
    except OSError as error:
        return [*lines, f"report: cannot write {report}: {error.strerror}"]
    return [*lines, f"report: {report}"]


def _peak(one: ProcessSample) -> Peak | None:
    peaks = []
    for device in one.devices:
        totals = device.totals or device.sums
        if totals is not None and totals.peak_reserved is not None:
            peaks.append(Peak(one.identity, device, totals.peak_reserved, totals.peak_active))
    return max(peaks, key=lambda peak: peak.reserved, default=None)


def _recording(path: Path, device: int) -> DeviceRecording | None:
    with suppress(OSError, BadInput, NewerVersion), open_plain(path) as file:
        found = recording.decode(file.read(recording.MAX_BYTES + 1))
        return next((one for one in found.devices if one.device == device and one.events), None)
    return None


def _needs(found: DeviceRecording | None) -> list[str]:
    try:
        needs = step_needs(found.device, found.heap, found.events, found.driver) if found and found.events else None
    except BadInput:
        needs = None
    if needs is None or RECORDED not in needs.smallest_limits:
        return ["smallest limit: unknown, because no step was recorded", "other settings: unknown"]
    margin = "" if needs.margin is None else f"; {format_bytes(needs.margin)} below the limit"
    needed = f"smallest limit: {format_bytes(needs.smallest_limits[RECORDED])} for the last recorded step{margin}"
    return [needed, _other_setting(needs)]


def _other_setting(needs: Needs) -> str:
    better = better_setting(needs.smallest_limits)
    if better is None:
        return "other settings: none needs at least 2 % less"
    cost = f": {better.cost}" if better.cost else ""
    return f"other settings: {better.name} needs {format_bytes(better.saves)} less in a replay of that step{cost}"


def _faults(samples: Sequence[ProcessSample]) -> str:
    devices = [device for one in samples for device in one.devices]
    totals = [device.totals or device.sums for device in devices]
    ooms = sum(each.counters.ooms or 0 for each in totals if each)
    leaks = [device.leak for device in devices if device.leak is not None and device.leak.rate > 0]
    worst = max(leaks, key=lambda leak: leak.rate, default=None)
    grows = "" if worst is None else f" ({format_bytes(round(worst.rate))} per {worst.unit})"
    return f"out-of-memory errors: {ooms}; leaks: {len(leaks)}{grows}"
