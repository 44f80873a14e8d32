"""The few things that the restarter asks of a cluster, and the records that cross that line.

`kubernetes.KubernetesCluster` is the real one. Every call either returns what the server said or raises a ClusterError
(see `errors`); none retries by itself, but for the one new try with a token that was renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

ANNOTATIONS = "gpufrag.dev"
PHASE = f"{ANNOTATIONS}/restart-phase"
"""The annotation that an owner bears from the first step of a restart to its last."""

Body = Mapping[str, Any]


class GroupKind(NamedTuple):
    """What a kind is called across versions; printed as `Job.batch`."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


@dataclass(frozen=True)
class Ref:
    """One object, and no other that later bears its name."""

    group_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind(group_of(self.group_version), self.kind)

    def __str__(self) -> str:
        return f"{self.group_kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Pod:
    """A pod, as far as a restart cares."""

    namespace: str
    name: str
    uid: str
    owner_references: tuple[Body, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: str = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool = False
    deleting: bool = False
    ip: str | None = None

    @property
    def alive(self) -> bool:
        """Its containers may still run, be it only until they have heard SIGTERM out."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def ref(self) -> Ref:
        return Ref("v1", "Pod", self.namespace, self.name, self.uid)


@dataclass(frozen=True)
class Owner:
    """The object that a restart acts on, at one moment: `resource_version` names the moment."""

    group_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    """It has come to its end, good or bad: nothing runs that could be restarted."""
    deleting: bool = False
    raw: Body = field(default_factory=dict)

    @property
    def ref(self) -> Ref:
        return Ref(self.group_version, self.kind, self.namespace, self.name, self.uid)

    @property
    def group_kind(self) -> GroupKind:
        return self.ref.group_kind

    @property
    def spec(self) -> Body:
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Body:
        return self.raw.get("status") or {}


@dataclass(frozen=True)
class Event:
    """What people read in `kubectl describe`: `reason` in CamelCase, `note` a sentence (cut at 1,024 characters)."""

    regarding: Ref
    reason: str
    note: str
    at_s: float
    """Unix time."""
    warning: bool = False
    action: str = "Restart"
    related: Ref | None = None


class Cluster(Protocol):
    """What the restarter can do to a cluster; see `permissions` for what it must be allowed."""

    def get_pod(self, namespace: str, name: str) -> Pod: ...

    def get_owner(self, ref: Ref) -> Owner:
        """The object now; NotFound also where one of the same name has another uid. An empty uid is that of any."""

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        """Merge `body` into the object and return it as it then is (or, `dry_run`, would be: nothing is stored).

        Raises Conflict unless it still has `ref.uid` and, unless None, `resource_version`: a compare-and-swap. Its
        rival need not be a restarter, for controllers write their status into the same object: read it again, and see.
        """

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        """Ask for the end of this very pod: NotFound when it is gone, TooMany when a disruption budget forbids it now.

        Raises Conflict where another pod has taken its name.
        """

    def create_event(self, event: Event) -> None: ...

    def create_command(self, ref: Ref, action: str, name: str, dry_run: bool = False) -> None:
        """Tell Volcano to do `action` (RestartJob) to its Job `ref`; Conflict where `name` is still waiting."""

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """The pods that a label selector finds. Labels prove nothing: see `owners.resolve` for who owns a pod."""

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """The owners of this kind that bear PHASE: those that a restarter, perhaps one that died, has under way.

        Empty where the server has no such kind.
        """

    def can_i(self, verb: str, kind: GroupKind, namespace: str, subresource: str = "", name: str = "") -> bool: ...

    def whoami(self) -> str:
        """The user name that the server knows these credentials by."""


def group_of(group_version: str) -> str:
    """`batch` of `batch/v1`, and the empty group of `v1`."""
    group, slash, _ = group_version.partition("/")
    return group if slash else ""
