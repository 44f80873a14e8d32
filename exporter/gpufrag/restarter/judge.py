"""A decision with all the facts that this process has: the job's, the fleet's, and what it did itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import reasons
from .circuit import STORE_ERRORS
from .clock import Clock
from .fuse import Fuse
from .inbox import Item
from .kubernetes.owners import Resolved
from .ledger import Ledger
from .policy import Facts, Restart, decide
from .reasons import Skip
from .record import DAY_S, Memory
from .settings import PolicySettings


@dataclass(frozen=True)
class Judge:
    """For the worker's thread."""

    policy: PolicySettings
    fuse: Fuse
    clock: Clock
    ledger: Ledger = field(default_factory=Ledger)

    def decide(self, item: Item, job: Resolved, under_way: int) -> Restart | Skip:
        try:
            fleet = self.fuse.fleet(under_way, self.ledger)
        except STORE_ERRORS as error:
            return Skip(reasons.NO_MEMORY, str(error))
        steady, uid = self.clock.steady(), job.owner.uid
        facts = Facts(
            alert=item.alert,
            owner=job.owner,
            pod=job.pod,
            now_s=self.clock.now(),
            fleet=fleet,
            waited_s=steady - item.came_s,
            own_age_s=self.ledger.age_s(uid, steady),
            own_day=self.ledger.within(DAY_S, steady, uid),
        )
        return decide(facts, self.policy)

    def claimed(self, job: Resolved) -> None:
        """A restart of this job begins. Raises STORE_ERRORS."""
        self.fuse.begun()
        self.ledger.begin(job.owner.uid, self.clock.steady())
        if Memory.read(job.owner.annotations).useless:
            self.fuse.failed(f"{job.owner.ref} needs another")

    def refused(self, skip: Skip, job: Resolved) -> Memory | None:
        """What a refusal means for all jobs; the memory to write, where it means something for this one."""
        memory = Memory.read(job.owner.annotations)
        if skip.reason == reasons.HOURLY:
            self.fuse.trip(skip.reason.text)
        if skip.reason != reasons.STOPPED or memory.stopped is not None:
            return None
        self.fuse.failed(f"{job.owner.ref} is stopped")
        return replace(memory, stopped=skip.detail)
