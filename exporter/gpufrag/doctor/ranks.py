"""What the ranks have left in their folder. Every look is anew: a doctor is called once."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..checkpoint.coordinator import ask_folder
from ..errors import Unavailable
from ..sidecar import sample_files
from ..sidecar.sample_files import REMEDIES, Skip
from ..wire.control_client import ControlError, ask, listens
from ..wire.folder import FileName
from ..wire.sample import MAX_BYTES, ProcessSample
from .results import Fail, Ok, Result, Warn, some

STALE_S = 120.0
"""The alert GpuFragSampleStale takes the same."""
PATIENCE_S = 3.0
"""For an answer; a rank's interpreter may be busy for a while."""
OLDEST, NEWEST = (2, 1), (2, 13)
"""Versions of torch that gpufrag was tried with."""
NONE = Warn("no rank lives here: start a job by `gpufrag run -- CMD`, and look again")


class Rank(NamedTuple):
    """A process that has a file here. `sample` is why there is none, where it cannot be read."""

    name: FileName
    sample: ProcessSample | Skip
    alive: bool | None
    """None where its socket may not be asked."""

    def __str__(self) -> str:
        rank = self.sample.identity.rank if isinstance(self.sample, ProcessSample) else None
        return f"pid {self.name.pid}" if rank is None else f"rank {rank}"


def found(folder: Path) -> list[Rank]:
    """Raises Unavailable where the folder cannot be listed."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:  # the check `folder` says so
        return []
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; see the check `folder`") from None
    parsed = [name for entry in names if (name := FileName.parse(entry)) and entry == name.sample]
    return list(_read(folder, parsed))


def _read(folder: Path, names: list[FileName]) -> Iterator[Rank]:
    for name in names:
        sample = sample_files.read(folder / name.sample, MAX_BYTES)
        if sample is not None:
            yield Rank(name, sample, _listens(folder / name.socket))


def _listens(path: Path) -> bool | None:
    try:
        return listens(path)
    except PermissionError:
        return None


def alive(folder: Path) -> list[tuple[Rank, ProcessSample]]:
    """Those that live and can be read."""
    return [(rank, rank.sample) for rank in found(folder) if rank.alive and isinstance(rank.sample, ProcessSample)]


def files(folder: Path) -> Result:
    ranks = found(folder)
    bad: dict[Skip, list[str]] = defaultdict(list)
    for rank in ranks:
        if isinstance(rank.sample, Skip):
            bad[rank.sample].append(rank.name.sample)
        elif rank.alive is None:
            bad[Skip.DENIED].append(rank.name.socket)
    if bad:
        told = [f"{reason.value}: {some(names)}; {_remedy(reason)}" for reason, names in sorted(bad.items())]
        return (Fail if Skip.DENIED in bad else Warn)(f"{folder}: {'. '.join(told)}")
    living = sum(rank.alive is True for rank in ranks)
    return Ok(f"{living} living, {len(ranks) - living} ended") if ranks else NONE


def _remedy(reason: Skip) -> str:
    return REMEDIES.get(reason, "remove it, if it is no rank's")


def samples(folder: Path, now: float) -> Result:
    ages = {str(rank): now - sample.time for rank, sample in alive(folder)}
    if not ages:
        return NONE
    late = {rank: age for rank, age in ages.items() if age > STALE_S}
    if late:
        return Fail(
            f"nothing new for {max(late.values()):.0f} s of {some(late)}: stopped, swapped out, or the disk of "
            f"{folder} is full; see `df` and the job's log"
        )
    early = [rank for rank, age in ages.items() if age < -STALE_S]
    if early:
        return Warn(f"{some(early)} writes of the future: the clock of this host or of that container is wrong")
    return Ok(f"the oldest is {max(ages.values()):.0f} s old")


def sockets(folder: Path) -> Result:
    living = [rank for rank in found(folder) if rank.alive]
    if not living:
        return NONE
    silent = [rank for rank in living if not _answers(folder / rank.name.socket)]
    if silent:
        return Warn(
            f"{some(silent)} lives and does not answer within {PATIENCE_S:.0f} s: no checkpoint can be asked for; its "
            "interpreter is kept busy (`py-spy dump` tells by what)"
        )
    return Ok(f"all {len(living)} answer")


def _answers(path: Path) -> bool:
    try:
        ask(path, {"command": "ping"}, PATIENCE_S)
    except ControlError:
        return False
    return True


def steps(folder: Path) -> Result:
    ranks = alive(folder)
    if not ranks:
        return NONE
    return _first(
        _told(ranks, lambda one: one.steps is None, "has no step hook: its snapshots come by the clock; see agent.md"),
        _told(ranks, lambda one: one.steps == 0, "has a step hook that has seen no step yet; look again in a while"),
        Ok("every rank has seen steps"),
    )


def checkpoint(folder: Path) -> Result:
    """Asked by a command that changes nothing."""
    heard = ask_folder(folder, "status", {"id": "doctor"})
    if not heard.ranks:
        return Warn(f"{heard.silent[0]}: see the check `sockets`") if heard.silent else NONE
    unable = [rank for rank in heard.ranks if not rank.callback]
    if unable:
        return Warn(
            f"{some(unable)} has no checkpoint callback: a restart loses the work since the last checkpoint; call "
            "gpufrag.on_checkpoint (checkpoint.md)"
        )
    if excused := [rank for rank in heard.ranks if rank.error]:
        return Warn(f"{some(excused)} cannot save: {excused[0].error}")
    return Ok(f"all {len(heard.ranks)} have told how to save")


def versions(folder: Path) -> Result:
    ranks = alive(folder)
    if not ranks:
        return NONE
    tried = f"{_dotted(OLDEST)} to {_dotted(NEWEST)} were tried"
    return _first(
        _told(ranks, lambda one: _torch(one) < OLDEST, f"has an older torch than gpufrag knows: {tried}; upgrade it"),
        _told(ranks, lambda one: _torch(one) > NEWEST, f"has a newer torch than gpufrag knows: {tried}; see the log"),
        Ok(f"{some({_framework(sample) for _, sample in ranks})}"),
    )


def _first(*results: Result | None) -> Result:
    return next(result for result in results if result)


def _told(ranks: list[tuple[Rank, ProcessSample]], wrong: Callable[[ProcessSample], bool], what: str) -> Warn | None:
    which = [rank for rank, sample in ranks if wrong(sample)]
    return Warn(f"{some(which)} {what}") if which else None


def _torch(sample: ProcessSample) -> tuple[int, int]:
    """Of another framework, one that is known."""
    number = re.match(r"(\d{1,4})\.(\d{1,4})", sample.identity.framework_version or "")
    return (int(number[1]), int(number[2])) if number and sample.identity.framework == "torch" else OLDEST


def _framework(sample: ProcessSample) -> str:
    return " ".join(filter(None, (sample.identity.framework, sample.identity.framework_version)))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
