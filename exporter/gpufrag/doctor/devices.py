"""The driver's view of the GPUs beside the ranks'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..errors import Unavailable
from ..sidecar.readings import NvmlReading
from ..wire.sample import ProcessSample
from .ranks import Rank
from .results import Fail, Ok, Result, Warn, some

ELSEWHERE = "its folder comes from another host, or this container does not have its GPU"


def compare(read: Callable[[], NvmlReading], ranks: Sequence[tuple[Rank, ProcessSample]]) -> Result:
    """Without NVML, the ranks' own readings of the driver stand in for it."""
    try:
        reading = read()
    except Unavailable as error:
        return Warn(f"NVML: {error}")
    lost = [problem for problem in reading.problems if problem.lost]
    if lost:
        return Fail(f"GPU {lost[0].index}: {lost[0].text}")
    known = set(_uuids(reading))
    foreign = [rank for rank, sample in ranks for uuid in _used(sample) if uuid not in known]
    if foreign:
        return Warn(f"{some(foreign)} uses a GPU that NVML does not show here: {ELSEWHERE}")
    return Ok(f"driver {reading.driver_version or 'unknown'}, {len(reading.devices)} GPU(s), all of the ranks' shown")


def _uuids(reading: NvmlReading) -> Iterator[str]:
    for device in reading.devices:
        yield _bare(device.uuid)
        yield from (_bare(uuid) for part in device.instances for uuid in part.uuids)


def _used(sample: ProcessSample) -> Iterator[str]:
    for device in sample.devices:
        if uuid := device.mig_uuid or device.uuid:
            yield _bare(uuid)


def _bare(uuid: str) -> str:
    """Torch writes it without the prefix that NVML gives it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")
