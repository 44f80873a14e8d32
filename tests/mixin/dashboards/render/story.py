"""A fleet in trouble, for dashboards to show: four jobs that replay recorded traces on the simulated allocator.

What happens is what the recorded programs do; only the clock is made up: a trace of seconds takes an hour and a
half. `exposition` is what Prometheus would have scraped in that time, line by line with its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from gpufrag.metrics import families
from gpufrag.metrics.view import CollectorResult, DeviceView, Fleet
from mixin.dashboards.render.process import CONTEXT, GIB, LENGTH, SCRAPE, START, Life, Place, Process

END = START + LENGTH


@dataclass(frozen=True)
class Job:
    namespace: str
    name: str
    lives: tuple[tuple[Life, ...], ...]
    """By rank: one process after the other."""
    places: tuple[Place, ...]
    step: float = 2.0
    """Seconds that an optimizer step takes."""


def _slice(number: int) -> Place:
    return Place(f"MIG-a{number:07d}", 18 * GIB, None, "NVIDIA H200 MIG 1g.18gb", "1g.18gb")


def _gpu(number: int, others: int = 0) -> Place:
    return Place(f"GPU-c{number:07d}", 12 * GIB, others, "NVIDIA GeForce RTX 3060")


FORGOTTEN = 2
"""The rank of feature-cache that is started without PYTORCH_CUDA_ALLOC_CONF, until a restart puts it right."""
JOBS = (
    Job(
        "vision",
        "small-decoder",
        tuple((Life("train-cap4", 120, share=1 - 0.04 * rank),) for rank in range(4)),
        (_gpu(0), _gpu(1), _gpu(2, others=3 * GIB), _gpu(3)),
        1.5,
    ),
    Job(
        "recsys",
        "feature-cache",
        tuple(
            (
                Life("cache-default" if rank == FORGOTTEN else "cache-maxsplit64", 60, 3660, share=1 - 0.05 * rank),
                Life("cache-maxsplit64", 3780, share=0.4 + 0.02 * rank),
            )
            for rank in range(4)
        ),
        tuple(_slice(number) for number in range(4)),
        3.0,
    ),
    Job(
        "research",
        "sequence-sweep",
        tuple((Life("churn-default", 300, share=1 - 0.1 * rank),) for rank in range(2)),
        (_gpu(4), _gpu(5)),
        2.5,
    ),
    Job(
        "speech",
        "streaming-asr",
        tuple((Life("streams-default", 0, share=1 - 0.2 * rank),) for rank in range(2)),
        (_slice(4), _slice(5)),
        1.0,
    ),
)
SILENT = ("speech", range(4200, 4500))
"""The namespace whose target does not answer, and when."""


def exposition() -> Iterator[str]:
    """The whole story in OpenMetrics lines: every scrape of every sidecar, with the labels that Prometheus adds."""
    pids = count(4001)
    for job in JOBS:
        processes = [
            [Process(life, rank, len(job.lives), place, job.step, next(pids)) for life in lives]
            for rank, (lives, place) in enumerate(zip(job.lives, job.places))
        ]
        for now in range(SCRAPE, LENGTH + 1, SCRAPE):
            yield from _scrape(job, processes, now)
    yield "# EOF\n"


def _scrape(job: Job, ranks: list[list[Process]], now: int) -> Iterator[str]:
    target = {"namespace": job.namespace, "job": "gpufrag", "job_name": job.name, "instance": f"{job.name}-0:9836"}
    answers = not (job.namespace == SILENT[0] and now in SILENT[1])
    yield _line("up", target, float(answers), now)
    fleet = _fleet(job, ranks, now)
    if answers:
        for family in families(fleet):
            for sample in family.samples:
                yield _line(sample.name, {**target, **sample.labels}, sample.value, now)


def _fleet(job: Job, ranks: list[list[Process]], now: int) -> Fleet:
    views = []
    for lives in ranks:
        for process in lives:
            if process.life.begin < now <= process.life.end:
                process.play(now)
            if process.life.begin < now <= process.life.end + 600:
                views.append(process.view(now))
    devices = tuple(_device(place, lives, now, number) for number, (place, lives) in enumerate(zip(job.places, ranks)))
    told = job.places[0].others is not None
    nvml = CollectorResult(told, 0.004, None if told else "no NVML library: figures of the agents serve")
    return Fleet(START + now, tuple(views), devices, {"folder": CollectorResult(True, 0.001), "nvml": nvml})


def _device(place: Place, lives: list[Process], now: int, number: int) -> DeviceView:
    mine = sum(process.reserved + CONTEXT for process in lives if process.life.begin < now <= process.life.end)
    kept = 300 << 20
    used = mine + (place.others or 0)
    return replace(
        DeviceView(place.uuid, number, place.size, place.size - used - kept, used, kept, place.others, place.name),
        driver_version="580.159.04",
        mig_profile=place.mig_profile,
    )


def _line(name: str, labels: dict[str, str], value: float, now: int) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value} {START + now}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
