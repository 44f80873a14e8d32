"""Jobs whose ranks replay films, as a sidecar would see them at a given time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...metrics.view import CollectorResult, DeviceView, Fleet, ProcessView, RankView
from ...model.verdict import Cause
from ...wire.sample import AgentHealth, DeviceSample, Identity, Leak, Ooms, ProcessSample, Snapshot, Totals
from .film import Film, Frame

HEALTHY, FRAGMENTING = "train-cap4", "cache-default"
DEVICES_PER_HOST = 8
_STEP_SECONDS = 0.5
_CONTEXT = 500 << 20  # CUDA's own memory
_SNAPSHOT_SECONDS = 0.0007
_SNAPSHOT_EVERY = 10.0


@dataclass(frozen=True)
class Job:
    """One training job. In a faulty one, the rank `fragmenting` fragments until it is restarted."""

    name: str
    namespace: str
    ranks: int
    fragmenting: int | None = None


@dataclass(frozen=True)
class Period:
    """Seconds in which a film is played, and after which the rank restarts. In between, it stays at the last frame."""

    play: float = 300.0
    restart: float = 1800.0


def jobs(number: int, ranks: int, faulty: int) -> list[Job]:
    """Return `number` jobs of `ranks` ranks in five namespaces; the first `faulty` have a fragmenting rank."""
    return [
        Job(f"job-{n:02}", f"team-{n % 5}", ranks, fragmenting=(7 * n) % ranks if n < faulty else None)
        for n in range(number)
    ]


def see(job: Job, films: Mapping[str, Film], period: Period, begun: float, now: float) -> Fleet:
    """Return the job at Unix time `now`, if it started at `begun`."""
    ranks = tuple(_rank(job, number, films, period, begun, now) for number in range(job.ranks))
    read = CollectorResult(True, 0.002)
    return Fleet(now, ranks, tuple(_devices(ranks)), {"folder": read, "join": read, "nvml": read})


def _rank(job: Job, number: int, films: Mapping[str, Film], period: Period, begun: float, now: float) -> RankView:
    fragments = number == job.fragmenting
    film = films[FRAGMENTING if fragments else HEALTHY]
    life = begun + (now - begun) // period.restart * period.restart if fragments else begun
    frame = _shown(film.frames, (now - life) / period.play, 0 if fragments else number)
    identity = Identity(job.name, 1000 + number, life, number, number % DEVICES_PER_HOST, job.ranks, "simulator", None)
    steps = int((now - life) / _STEP_SECONDS)
    copies = (now - life) / _SNAPSHOT_EVERY * _SNAPSHOT_SECONDS
    stalls = {"snapshot": copies, "stats": steps * 2e-5, "wait": 0.0, "measure": 4 * copies}
    device = _sample(film, frame, _uuid(job, number), number % DEVICES_PER_HOST, now)
    sample = ProcessSample(identity, now, (device,), steps, AgentHealth(stalls))
    memory = ProcessView(device.uuid, None, frame.boundary.reserved + _CONTEXT, _CONTEXT)
    return RankView(sample, memory={device.device: memory})


def _shown(frames: Sequence[Frame], played: float, offset: int) -> Frame:
    """Return the frame at the share `played` of the film; ranks with an offset are slightly ahead."""
    return frames[min(int(played * len(frames)) + offset % 5, len(frames) - 1)]


def _sample(film: Film, frame: Frame, uuid: str, device: int, now: float) -> DeviceSample:
    taken, reading = now - now % _SNAPSHOT_EVERY, frame.reading
    return DeviceSample(
        device=device,
        backend="native",
        uuid=uuid,
        alloc_conf=film.trace.alloc_conf or None,
        limit=film.trace.driver.limit,
        totals=replace(reading.totals, time=now) if reading.totals else None,
        driver=replace(reading.driver, time=now) if reading.driver else None,
        largest_recurring=frame.largest_recurring,
        snapshots=(
            Snapshot(taken - _STEP_SECONDS, "boundary", _SNAPSHOT_SECONDS, frame.boundary),
            Snapshot(taken, "peak", _SNAPSHOT_SECONDS, frame.peak),
        ),
        ooms=_unexplained(reading.totals),
        leak=Leak("step"),
    )


def _unexplained(totals: Totals | None) -> Ooms:
    """Return the errors of the trace, with unknown causes."""
    met = (totals.counters.ooms if totals else None) or 0
    return Ooms({cause.value: met if cause is Cause.UNKNOWN else 0 for cause in Cause})


def _devices(views: Sequence[RankView]) -> Iterator[DeviceView]:
    for view in views:
        for sample in view.sample.devices:
            used, driver = view.memory[sample.device].used, sample.driver
            if used is not None and driver is not None:
                yield DeviceView(
                    uuid=sample.uuid or "",
                    device=sample.device,
                    size=driver.size,
                    free=driver.size - used,
                    used=used,
                    other_used=0,
                    name="Simulated GPU",
                )


def _uuid(job: Job, number: int) -> str:
    return f"GPU-{job.name}-{number:04}"
