"""Jobs off Kubernetes: what they are called, and how they are restarted, which is by one command.

The words are those of a cluster: a job is an owner, and what an alert names is its pod, of which it has one. All jobs
are in one namespace; whose jobs are touched is not its matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Invalid, Refused
from .kubernetes.cluster import Cluster, GroupKind, Owner, Pod, Ref
from .kubernetes.steps import COMMANDED, Command, Step

PROCESS = GroupKind("gpufrag.dev", "Process")
SLURM_JOB = GroupKind("slurm.schedmd.com", "Job")
VERSION = "v1"
RESTART, START_NOW = "restart", "start-now"


@dataclass(frozen=True)
class Commanded:
    """A job whose `status` counts its restarts: `restarts`, and tells whether it is `running`.

    `waits`: whether it has been put back into a queue, and would wait there for nothing.
    """

    kind: GroupKind
    lost: str
    refusal: Callable[[Owner], Refused | None]
    waits: Callable[[Owner], bool] = lambda owner: False

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        if refusal := self.refusal(owner):
            raise refusal
        return (Command(restarts_of(owner), action=RESTART),)

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        """The command again, unless the count shows that it has been carried out; or what ends a needless wait."""
        commanded = owner.annotations.get(COMMANDED)
        if commanded == str(restarts_of(owner)):
            return (Command(restarts_of(owner), action=RESTART),)
        if commanded is not None and commanded.isdigit() and self.waits(owner):
            return (Command(int(commanded), START_NOW, START_NOW),)
        return ()

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, owner.name)

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        return not owner.status["running"]

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        return bool(owner.status["running"]) and owner.annotations.get(COMMANDED) != str(restarts_of(owner))


def restarts_of(owner: Owner) -> int:
    return int(owner.status["restarts"])


def expected_restarts(command_name: str) -> int:
    """What a command that `steps.Command` has named believes the count to be. Raises Invalid."""
    number = command_name.rpartition("-")[2]
    if not number.isdecimal():
        raise Invalid(f"{command_name!r:.80}: a command without a count of restarts")
    return int(number)


def reference(kind: GroupKind, namespace: str, name: str, uid: str) -> Ref:
    return Ref(f"{kind.group}/{VERSION}", kind.kind, namespace, name, uid)


def owner(ref: Ref, version: int, annotations: Mapping[str, str], status: Mapping[str, Any], **more: Any) -> Owner:
    """`more`: finished and deleting."""
    raw = {"metadata": {}, "status": dict(status)}
    return Owner(
        ref.group_version, ref.kind, ref.namespace, ref.name, ref.uid, str(version), annotations, raw=raw, **more
    )


def pod(ref: Ref, name: str, ip: str | None, running: bool) -> Pod:
    """The one that stands for the job `ref`; `name` is what alerts call it."""
    controller = {
        "apiVersion": ref.group_version,
        "kind": ref.kind,
        "name": ref.name,
        "uid": ref.uid,
        "controller": True,
    }
    return Pod(ref.namespace, name, ref.uid, (controller,), phase="Running", ready=running, ip=ip)
