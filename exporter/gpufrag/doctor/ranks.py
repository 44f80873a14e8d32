"""The checks of the ranks: what they have written into their folder, and whether they answer."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ..checkpoint.coordinator import ask_folder
from ..errors import Unavailable
from ..model.settings import NEWEST
from ..sidecar import sample_files
from ..sidecar.sample_files import REMEDIES, Skip
from ..wire.control_client import ControlError, ask_all, listens
from ..wire.folder import FileName
from ..wire.sample import MAX_BYTES, ProcessSample
from .checks import Check, Fail, Ok, Result, Warn, some

STALE_S = 120.0
"""As in the alert GpufragSampleStale."""
ANSWER_WITHIN_S = 3.0
OLDEST = (2, 1)
"""The oldest version of torch that gpufrag is tested with; the newest is NEWEST."""


class Rank(NamedTuple):
    """A process with a sample file. `sample` is a Skip if the file cannot be read."""

    name: FileName
    sample: ProcessSample | Skip
    alive: bool | None
    """None if this user may not connect to its socket."""

    def __str__(self) -> str:
        rank = self.sample.identity.rank if isinstance(self.sample, ProcessSample) else None
        return f"pid {self.name.pid}" if rank is None else f"rank {rank}"


@dataclass(frozen=True)
class Ranks:
    """The processes with files in `folder`. `now` is in Unix seconds."""

    folder: Path
    now: float
    proc: Path = Path("/proc")

    @cached_property
    def found(self) -> list[Rank]:
        """Raises Unavailable if the folder cannot be listed."""
        try:
            entries = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"cannot list {self.folder}: {error.strerror}") from None
        names = [name for entry in entries if (name := FileName.parse(entry)) and entry == name.sample]
        read = ((name, sample_files.read(self.folder / name.sample, MAX_BYTES)) for name in names)
        return [Rank(name, sample, _listens(self.folder / name.socket)) for name, sample in read if sample is not None]

    @property
    def alive(self) -> list[tuple[Rank, ProcessSample]]:
        """Living processes with a readable sample."""
        return [(rank, rank.sample) for rank in self.found if rank.alive and isinstance(rank.sample, ProcessSample)]


def _listens(path: Path) -> bool | None:
    try:
        return listens(path)
    except PermissionError:
        return None


def files(ranks: Ranks) -> Result:
    bad: dict[Skip, list[str]] = defaultdict(list)
    for rank in ranks.found:
        if isinstance(rank.sample, Skip):
            bad[rank.sample].append(rank.name.sample)
        elif rank.alive is None:
            bad[Skip.DENIED].append(rank.name.socket)
    if bad:
        texts = [
            f"{reason.value}: {some(names)}; {REMEDIES.get(reason, 'remove it if it belongs to no rank')}"
            for reason, names in sorted(bad.items())
        ]
        return (Fail if Skip.DENIED in bad else Warn)(f"{ranks.folder}: {'. '.join(texts)}")
    living = sum(rank.alive is True for rank in ranks.found)
    if not living:
        return Warn(f"no living rank in {ranks.folder}: {_elsewhere(ranks)}")
    return Ok(f"{living} living, {len(ranks.found) - living} exited")


def _elsewhere(ranks: Ranks) -> str:
    """Say where processes with the agent are, if they are not in this folder."""
    other: dict[str, list[int]] = defaultdict(list)
    waiting: list[int] = []
    for pid, environment in _environments(ranks.proc):
        if "gpufrag/shim" in environment.get("PYTHONPATH", "") or "GPUFRAG_DIR" in environment:
            where = environment.get("GPUFRAG_DIR", str(ranks.folder))
            (waiting if Path(where) == ranks.folder else other[where]).append(pid)
    if other:
        where = next(iter(other))
        return f"GPUFRAG_DIR={where} in pid {some(other[where])}; run doctor and the sidecar with --folder {where}"
    if waiting:
        return f"agent loaded, but no CUDA allocator used yet, in pid {some(waiting)}"
    return "no process of this user has the agent; start a job with `gpufrag run -- CMD`"


def _environments(proc: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the environment of every other process that this user may read."""
    for entry in proc.glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        try:
            text = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if pid != os.getpid():
            yield pid, dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def samples(ranks: Ranks) -> Result:
    ages = {str(rank): ranks.now - sample.time for rank, sample in ranks.alive}
    late = {rank: age for rank, age in ages.items() if age > STALE_S}
    if late:
        return Fail(
            f"{some(late)}: no sample for {max(late.values()):.0f} s: the process is stopped or hangs, or the disk"
            f" of {ranks.folder} is full; check `df` and the job's log"
        )
    early = [rank for rank, age in ages.items() if age < -STALE_S]
    if early:
        return Warn(f"{some(early)}: samples from the future: the clock of this host or its container is wrong")
    return Ok(f"the oldest is {max(ages.values()):.0f} s old")


def sockets(ranks: Ranks) -> Result:
    paths = {ranks.folder / rank.name.socket: rank for rank in ranks.found if rank.alive}
    answers = ask_all(list(paths), {"command": "ping"}, ANSWER_WITHIN_S)
    silent = [paths[path] for path, answer in answers.items() if isinstance(answer, ControlError)]
    if silent:
        return Warn(
            f"{some(silent)}: alive, but no answer within {ANSWER_WITHIN_S:.0f} s, so checkpoint requests fail; "
            "run `py-spy dump --pid PID` to see what keeps its interpreter busy"
        )
    return Ok(f"all {len(paths)} answer")


def steps(ranks: Ranks) -> Result:
    return (
        _warning(ranks, lambda one: one.steps is None, "no step hook, so snapshots use a timer (agent-reference.md)")
        or _warning(ranks, lambda one: one.steps == 0, "step hook, but no step yet; check again later")
        or Ok("every rank has taken steps")
    )


def checkpoint(ranks: Ranks) -> Result:
    """Sends the command status, which changes nothing."""
    heard = ask_folder(ranks.folder, "status", {"id": "doctor"})
    if not heard.ranks:
        return Warn(f"no rank answers: {heard.silent[0] if heard.silent else 'see the check sockets'}")
    unable = [rank for rank in heard.ranks if not rank.callback]
    if unable:
        return Warn(
            f"{some(unable)}: no checkpoint callback, so a restart loses the work since the last checkpoint; call "
            "gpufrag.on_checkpoint (checkpoint.md)"
        )
    if failing := [rank for rank in heard.ranks if rank.error]:
        return Warn(f"{some(failing)}: saving fails: {failing[0].error}")
    return Ok(f"all {len(heard.ranks)} can save")


def versions(ranks: Ranks) -> Result:
    tested = f"gpufrag is tested with {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    return (
        _warning(ranks, lambda one: _torch(one) < OLDEST, f"torch is older: {tested}; upgrade torch")
        or _warning(ranks, lambda one: _torch(one) > NEWEST, f"torch is newer: {tested}; upgrade gpufrag")
        or Ok(some({_framework(sample) for _, sample in ranks.alive}))
    )


def _warning(ranks: Ranks, wrong: Callable[[ProcessSample], bool], what: str) -> Warn | None:
    which = [rank for rank, sample in ranks.alive if wrong(sample)]
    return Warn(f"{some(which)}: {what}") if which else None


def _torch(sample: ProcessSample) -> tuple[int, int]:
    """Return the version of torch; of another framework, a tested one."""
    number = re.match(r"(\d{1,4})\.(\d{1,4})", sample.identity.framework_version or "")
    return (int(number[1]), int(number[2])) if number and sample.identity.framework == "torch" else OLDEST


def _framework(sample: ProcessSample) -> str:
    return " ".join(filter(None, (sample.identity.framework, sample.identity.framework_version)))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


CHECKS: tuple[Check[Ranks], ...] = (
    Check("ranks", "are there running ranks, and are their files readable", files, gate=True),
    Check("samples", "how old is the last sample of each running rank", samples),
    Check("sockets", "does each running rank answer on its control socket", sockets),
    Check("steps", "does each rank have a step hook that has counted steps", steps),
    Check("checkpoint", "can each rank save a checkpoint before a restart", checkpoint),
    Check("versions", "is each rank's version of torch tested", versions),
)
