"""Searching for restarts that somebody left half way: a job that stays suspended is worse than one never restarted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from .errors import Away, ClusterError, Denied
from .kubernetes.cluster import Cluster, GroupKind, Owner
from .record import CLAIMED, Memory


@dataclass
class Sweep:
    """Remembers which claims it has seen, and since when: only one that nobody ends is taken up.

    A claimed job runs on, and its claimant may be waiting for its checkpoint; a suspended one waits for somebody.
    """

    cluster: Cluster
    kinds: tuple[GroupKind, ...]
    namespaces: tuple[str, ...]
    claim_lasts_s: float
    _seen: dict[tuple[str, str | None], float] = field(default_factory=dict)

    def left_behind(self, now_s: float, ours: Iterable[str]) -> tuple[list[Owner], ClusterError | None]:
        """Owners under way, but for those with the uids `ours`; and what kept it from looking everywhere.

        `now_s` is by a clock that does not jump.
        """
        uids = set(ours)
        found: list[Owner] = []
        errors: list[ClusterError] = []
        for namespace, kind in product(self.namespaces, self.kinds):
            try:
                found += [owner for owner in self.cluster.list_marked(kind, namespace) if owner.uid not in uids]
            except ClusterError as error:
                errors.append(error)
                if isinstance(error, Away):  # the next would only wait for as long
                    break
        claims = {_claim(owner): self._seen.get(_claim(owner), now_s) for owner in found if is_claim(owner)}
        self._seen = claims
        return [
            owner for owner in found if now_s - claims.get(_claim(owner), now_s) >= self._patience(owner)
        ], self._serious(errors)

    def _patience(self, owner: Owner) -> float:
        return self.claim_lasts_s if is_claim(owner) else 0.0

    def _serious(self, errors: list[ClusterError]) -> ClusterError | None:
        """Kinds that are not used are not in the Role; where nothing at all is permitted, something is wrong."""
        nothing_permitted = len(errors) == len(self.namespaces) * len(self.kinds)
        return next((error for error in errors if nothing_permitted or not isinstance(error, Denied)), None)


def is_claim(owner: Owner) -> bool:
    return Memory.read(owner.annotations).phase == CLAIMED


def _claim(owner: Owner) -> tuple[str, str | None]:
    return owner.uid, Memory.read(owner.annotations).by
