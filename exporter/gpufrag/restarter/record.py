"""What a job's annotations record about its restarts.

    gpufrag.dev/restart-phase        how far the restart is; absent if none is in progress
    gpufrag.dev/restart-order        what the backend needs to recognise the effect of its order
    gpufrag.dev/restart-at           when the last restart began, RFC 3339
    gpufrag.dev/restart-by           the restarter and attempt that wrote this
    gpufrag.dev/restart-fingerprint  of the alert
    gpufrag.dev/restart-count        number of restarts
    gpufrag.dev/restart-history      when the restarts of the last day began
    gpufrag.dev/restart-ineffective  how many of the last restarts in a row did not help
    gpufrag.dev/defragmented-at      when a defragmentation last made a restart unnecessary, RFC 3339
    gpufrag.dev/restart-stopped      why this job is not restarted until a person removes the annotation

People can write annotations too: unreadable values count as absent, except that any text in restart-stopped stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone

ANNOTATIONS = "gpufrag.dev"
OPT_IN = f"{ANNOTATIONS}/restart"
PAUSE = f"{ANNOTATIONS}/pause"
DEFRAGMENT = f"{ANNOTATIONS}/defragment"
"""Set by the user: defragment before a restart."""
PHASE = f"{ANNOTATIONS}/restart-phase"
ORDER = f"{ANNOTATIONS}/restart-order"
AT = f"{ANNOTATIONS}/restart-at"
BY = f"{ANNOTATIONS}/restart-by"
FINGERPRINT = f"{ANNOTATIONS}/restart-fingerprint"
COUNT = f"{ANNOTATIONS}/restart-count"
HISTORY = f"{ANNOTATIONS}/restart-history"
INEFFECTIVE = f"{ANNOTATIONS}/restart-ineffective"
STOPPED = f"{ANNOTATIONS}/restart-stopped"
DEFRAGMENTED = f"{ANNOTATIONS}/defragmented-at"

CLAIMED = "claimed"
"""The job runs and is asked for a checkpoint."""
SUSPENDED = "suspended-by-gpufrag"
"""The job was stopped, and gpufrag must start it."""
WAITING = "waiting"
"""The job was restarted or started, and does not run completely yet."""

DAY_S = 86400.0
MAX_TIMES = 64
_MAX_COUNT = 10**9


@dataclass(frozen=True)
class RestartRecord:
    """The annotations of one job. Times are Unix seconds."""

    phase: str | None = None
    order: str | None = None
    at_s: float | None = None
    by: str | None = None
    fingerprint: str | None = None
    count: int = 0
    history_s: tuple[float, ...] = ()
    ineffective: int = 0
    stopped: str | None = None
    defragmented_s: float | None = None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> RestartRecord:
        """Never raises. An unknown phase counts as WAITING."""
        phase = annotations.get(PHASE)
        return cls(
            phase=phase if phase in (CLAIMED, SUSPENDED, WAITING) else WAITING if phase else None,
            order=annotations.get(ORDER) or None,
            at_s=_time(annotations.get(AT, "")),
            by=annotations.get(BY) or None,
            fingerprint=annotations.get(FINGERPRINT) or None,
            count=_count(annotations.get(COUNT, "")),
            history_s=read_times(annotations.get(HISTORY, "")),
            ineffective=_count(annotations.get(INEFFECTIVE, "")),
            stopped=annotations.get(STOPPED) or None,
            defragmented_s=_time(annotations.get(DEFRAGMENTED, "")),
        )

    def annotations(self) -> dict[str, str | None]:
        """Return all annotations for a merge patch; None removes one."""
        return {
            PHASE: self.phase,
            ORDER: self.order,
            AT: _text(self.at_s),
            BY: self.by,
            FINGERPRINT: self.fingerprint,
            COUNT: str(self.count) if self.count else None,
            HISTORY: write_times(self.history_s),
            INEFFECTIVE: str(self.ineffective) if self.ineffective else None,
            STOPPED: self.stopped,
            DEFRAGMENTED: _text(self.defragmented_s),
        }

    def claimed(self, now_s: float, by: str, fingerprint: str, ineffective: int) -> RestartRecord:
        """Return the record with one more restart, which begins now."""
        return replace(
            self,
            phase=CLAIMED,
            order=None,
            at_s=now_s,
            by=by,
            fingerprint=fingerprint,
            count=min(self.count + 1, _MAX_COUNT),
            history_s=(*self.within_day(now_s), now_s)[-MAX_TIMES:],
            ineffective=ineffective,
        )

    def claimed_to_defragment(self, by: str, fingerprint: str) -> RestartRecord:
        """This is no restart, so it counts as none."""
        return replace(self, phase=CLAIMED, order=None, by=by, fingerprint=fingerprint)

    def closed(self) -> RestartRecord:
        return replace(self, phase=None, order=None)

    def within_day(self, now_s: float) -> tuple[float, ...]:
        """Return the restarts that began less than a day ago, including any in the future."""
        return tuple(at for at in self.history_s if now_s - at < DAY_S)

    @property
    def latest_s(self) -> float | None:
        """When the last restart began."""
        return max((at for at in (self.at_s, *self.history_s) if at is not None), default=None)


def _text(at_s: float | None) -> str | None:
    return None if at_s is None else _rfc3339(at_s)


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(round(at_s), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> float | None:
    with suppress(ValueError, OverflowError):
        when = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
        return when if when >= 0 else None
    return None


def read_times(text: str) -> tuple[float, ...]:
    """Return the times in a comma-separated list, earliest first. Skips unreadable entries."""
    found = (_time(part.strip()) for part in text.split(",")[-MAX_TIMES:])
    return tuple(sorted(at for at in found if at is not None))


def write_times(times_s: tuple[float, ...]) -> str | None:
    return ",".join(map(_rfc3339, times_s[-MAX_TIMES:])) or None


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
