"""What an owner remembers of its restarts: annotations, which go with the patch that suspends or resumes it.

    gpufrag.dev/restart-phase        how far a restart is; absent when none is under way
    gpufrag.dev/restart-at           when the last one began, RFC 3339
    gpufrag.dev/restart-by           the receiver and restart that wrote this
    gpufrag.dev/restart-fingerprint  of the alert that brought it
    gpufrag.dev/restart-count        all restarts ever
    gpufrag.dev/restart-history      when those of the last day began
    gpufrag.dev/restart-useless      how many in a row did not help
    gpufrag.dev/restart-stopped      why this owner is not restarted again until a person removes the annotation

People can write annotations too: what cannot be read counts as absent, except `restart-stopped`, where any text stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from .kubernetes.cluster import ANNOTATIONS, PHASE

AT = f"{ANNOTATIONS}/restart-at"
BY = f"{ANNOTATIONS}/restart-by"
FINGERPRINT = f"{ANNOTATIONS}/restart-fingerprint"
COUNT = f"{ANNOTATIONS}/restart-count"
HISTORY = f"{ANNOTATIONS}/restart-history"
USELESS = f"{ANNOTATIONS}/restart-useless"
STOPPED = f"{ANNOTATIONS}/restart-stopped"

CLAIMED = "claimed"
"""It is asked for a checkpoint, and runs on meanwhile."""
SUSPENDED = "suspended-by-gpufrag"
"""It was told to stop, and must be told to go on."""
WAITING = "waiting"
"""It was told to go on, and is not seen to run yet."""
PHASES = (CLAIMED, SUSPENDED, WAITING)

DAY_S = 86400.0
_MOST = 64
"""Times kept; a budget of more a day would be no budget."""
_MOST_COUNT = 10**9


@dataclass(frozen=True)
class Memory:
    """All that is remembered of one owner; times are Unix seconds."""

    phase: str | None = None
    at_s: float | None = None
    by: str | None = None
    fingerprint: str | None = None
    count: int = 0
    history_s: tuple[float, ...] = ()
    useless: int = 0
    stopped: str | None = None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Memory:
        """Never raises."""
        phase = annotations.get(PHASE)
        return cls(
            phase=phase if phase in PHASES else WAITING if phase else None,
            at_s=_time(annotations.get(AT, "")),
            by=annotations.get(BY) or None,
            fingerprint=annotations.get(FINGERPRINT) or None,
            count=_count(annotations.get(COUNT, "")),
            history_s=read_times(annotations.get(HISTORY, "")),
            useless=_count(annotations.get(USELESS, "")),
            stopped=annotations.get(STOPPED) or None,
        )

    def annotations(self) -> dict[str, str | None]:
        """Every annotation of ours, for a merge patch: None removes one."""
        return {
            PHASE: self.phase,
            AT: None if self.at_s is None else _rfc3339(self.at_s),
            BY: self.by,
            FINGERPRINT: self.fingerprint,
            COUNT: str(self.count) if self.count else None,
            HISTORY: write_times(self.history_s),
            USELESS: str(self.useless) if self.useless else None,
            STOPPED: self.stopped,
        }

    def begun(self, now_s: float, by: str, fingerprint: str, useless: int) -> Memory:
        """With one more restart, which begins now; `useless`: how many before it, in a row, did not help."""
        history = (*self.within_day(now_s), now_s)[-_MOST:]
        return replace(
            self,
            at_s=now_s,
            by=by,
            fingerprint=fingerprint,
            count=min(self.count + 1, _MOST_COUNT),
            history_s=history,
            useless=useless,
        )

    def within_day(self, now_s: float) -> tuple[float, ...]:
        """Restarts that began less than a day ago; one that a clock put into the future counts."""
        return tuple(at for at in self.history_s if now_s - at < DAY_S)

    @property
    def latest_s(self) -> float | None:
        """When the last restart began, by whichever annotation says so."""
        return max((at for at in (self.at_s, *self.history_s) if at is not None), default=None)


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(round(at_s), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> float | None:
    with suppress(ValueError, OverflowError):
        when = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
        return when if when >= 0 else None
    return None


def read_times(text: str) -> tuple[float, ...]:
    """The times in a list with commas, the earliest first; what is none is passed over."""
    found = (_time(part.strip()) for part in text.split(",")[-_MOST:])
    return tuple(sorted(at for at in found if at is not None))


def write_times(times_s: tuple[float, ...]) -> str | None:
    return ",".join(map(_rfc3339, times_s[-_MOST:])) or None


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
