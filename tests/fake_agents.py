"""Processes with an agent, as a sidecar sees them: a sample in the folder and a listener next to it."""

from __future__ import annotations

import os
import socket
import time as system_time
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpufrag.model.fragmentation import Fragmentation, Pool, measure
from gpufrag.sidecar.processes import Reading
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import (
    Counters,
    DeviceSample,
    DriverReading,
    Identity,
    PoolTotals,
    ProcessSample,
    Snapshot,
    Totals,
    encode,
)
from helpers import golden_case_named
from unix_sockets import bind

CASES = ("train-default", "train-expandable", "kv-default", "churn-default", "cache-default", "train-cap4")


def device_sample(case_name: str, time: float, device: int = 0) -> DeviceSample:
    """A device whose heap is a recorded one."""
    case = golden_case_named(case_name)
    measured = measure(case.heap, case.driver)
    return DeviceSample(
        device=device,
        backend="native",
        uuid=f"GPU-{case_name}",
        driver_version="580.159",
        limit=measured.limit,
        totals=_totals(measured, time),
        driver=DriverReading(time, case.driver.free, case.driver.size),
        snapshots=(Snapshot(time, "boundary", 0.0007, measured), Snapshot(time, "timer", 0.0007, measured)),
    )


def _totals(measured: Fragmentation, time: float) -> Totals:
    large, small = _pool(measured.large), _pool(measured.small)
    return Totals(time, large, small, measured.reserved, measured.reserved, Counters(3, 0, 40, 8, 0))


def _pool(pool: Pool) -> PoolTotals:
    return PoolTotals(pool.allocated, pool.active, pool.requested, pool.reserved, pool.inactive_split)


def process_sample(rank: int | None = 0, time: float = 1000.0, pid: int = 100, start: float = 900.0) -> ProcessSample:
    """Rank and device are one number, as on a host of one job."""
    device = rank or 0
    identity = Identity("host", pid + device, start, rank, rank, 8, "torch", "2.11.0")
    return ProcessSample(identity, time, (device_sample(CASES[device % len(CASES)], time, device),), steps=120)


@dataclass
class FakeAgent:
    """One process's files in `folder`. It listens from `listen` to `die`."""

    folder: Path
    sample: ProcessSample = field(default_factory=process_sample)
    _listener: socket.socket | None = None

    @property
    def name(self) -> FileName:
        return FileName.of(self.sample.identity)

    @property
    def file(self) -> Path:
        return self.folder / self.name.sample

    @property
    def socket(self) -> Path:
        return self.folder / self.name.socket

    def publish(self, **changes: object) -> None:
        """Replace the sample, whole, by one with these changes."""
        self.sample = replace(self.sample, **changes)  # type: ignore[arg-type]
        self.leave(encode(self.sample))

    def leave(self, content: bytes) -> None:
        half_written = self.folder / f".{self.name.sample}"
        half_written.write_bytes(content)
        os.replace(half_written, self.file)

    def listen(self, backlog: int = 8) -> None:
        self._listener = bind(self.socket, backlog)

    def die(self) -> None:
        """Like kill -9: the files stay, and no process listens."""
        if self._listener:
            self._listener.close()
            self._listener = None

    def start(self) -> FakeAgent:
        self.listen()
        self.publish()
        return self


class Clock:
    """The system clock, and how far the test has moved it."""

    def __init__(self) -> None:
        self.now = system_time.time()

    def __call__(self) -> float:
        return self.now


def written(agent: FakeAgent, time: float) -> None:
    """As if the agent had last written at `time`."""
    os.utime(agent.file, (time, time))


NOTHING = dict.fromkeys(("alien", "denied", "huge", "newer", "too_many", "too_much", "torn"), 0)
"""The counts of a reading that skipped nothing."""


def skipped(reading: Reading) -> dict[str, int]:
    return {reason: count for reason, count in reading.skipped.items() if count}
