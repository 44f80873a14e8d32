"""The checks of a cluster: what these credentials may do, the pods, who scrapes them, the jobs, the restarter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import yaml

from ..restarter import circuit
from ..restarter.errors import Denied, NotFound, Refused
from ..restarter.kubernetes import kinds
from ..restarter.kubernetes.cluster import Cluster, GroupKind, Owner, Ref
from ..restarter.kubernetes.owners import resolve
from ..restarter.kubernetes.permissions import CIRCUIT, PERMISSIONS, Permission
from ..restarter.kubernetes.targets import TARGETS
from ..restarter.policy import OPT_IN, PAUSE
from ..restarter.record import STOPPED, Memory
from . import monitors
from .containers import Sidecar, ports, sidecar_of, volume_trouble
from .results import Check, Fail, Ok, Result, Warn, some

MOST_PODS = 50
"""Whose owners are asked for: enough to see what is wrong, and no storm of requests."""
COPY = "see deploy/kubernetes/sidecar/pod.yaml for the form"


class Reader(Cluster, Protocol):
    """Of a cluster, what is only read."""

    def list_all(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]: ...


@dataclass(frozen=True)
class Place:
    """`namespace` has the jobs; `release` the restarter and its ConfigMaps, whose names begin with `restarter`."""

    cluster: Reader
    namespace: str
    release: str = "gpufrag"
    restarter: str = "gpufrag-restarter"

    @cached_property
    def pods(self) -> list[tuple[Owner, Sidecar]]:
        """Those that live and have our sidecar. Raises ClusterError."""
        found = self.cluster.list_all(kinds.POD, self.namespace)
        living = [pod for pod in found if pod.status.get("phase") not in ("Succeeded", "Failed")]
        return [(pod, sidecar) for pod in living if (sidecar := sidecar_of(pod.raw))]

    @property
    def no_pods(self) -> Warn:
        return Warn(f"no pod of {self.namespace} has our sidecar: add it to a job ({COPY}), or name another namespace")


def _permissions(place: Place) -> Result:
    who = place.cluster.whoami()
    granted = {(row, verb): _may(place, row, verb) for row in PERMISSIONS for verb in row.verbs}
    restartable = {row.kind for (row, _), yes in granted.items() if yes and row.targets == (row.kind,)}
    left_out = set(TARGETS) - restartable
    lacking = [
        f"{verb} {row.resource} ({row.why})"
        for (row, verb), yes in granted.items()
        if not yes and (not row.targets or set(row.targets) - left_out)
    ]
    if lacking:
        return Fail(f"{who} may not, in {place.namespace}: {some(lacking)}; grant it, or ask as the restarter does")
    if not restartable:
        return Fail(f"{who} may restart nothing in {place.namespace}: add it to the chart's allowedNamespaces")
    return Ok(f"{who} may restart in {place.namespace}: {', '.join(sorted(map(str, restartable)))}")


def _may(place: Place, row: Permission, verb: str) -> bool:
    return place.cluster.can_i(verb, row.kind, place.namespace, row.subresource)


def _sidecars(place: Place) -> Result:
    if not place.pods:
        return place.no_pods
    bound = [pod.name for pod, sidecar in place.pods if not sidecar.native]
    if bound:
        return Warn(
            f"{some(bound)}: the sidecar is no native one (an init container with restartPolicy: Always), so a Job "
            f"beside it never ends; {COPY}"
        )
    return Ok(f"{len(place.pods)} pod(s) of {place.namespace} have it")


def _volumes(place: Place) -> Result:
    if not place.pods:
        return place.no_pods
    troubles = {pod.name: text for pod, sidecar in place.pods if (text := volume_trouble(pod.raw, sidecar))}
    if not troubles:
        return Ok("sidecars and ranks share a volume in memory")
    first = min(troubles)
    only_slow = all("medium: Memory" in text for text in troubles.values())
    return (Warn if only_slow else Fail)(f"{some(troubles)}: in {first}, {troubles[first]}; {COPY}")


def _pod_monitor(place: Place) -> Result:
    if not place.pods:
        return place.no_pods
    found = [one for where in {place.namespace, place.release} for one in _monitors(place, where)]
    if not found:
        return Warn(
            f"no PodMonitor in {place.namespace} or {place.release}: right where Prometheus discovers pods itself "
            "(deploy/prometheus/kubernetes.yml); else set the chart's podMonitor.enabled"
        )
    unseen = [
        pod.name
        for pod, sidecar in place.pods
        if not any(monitors.selects(monitor, pod, ports(sidecar.container)) for monitor in found)
    ]
    if unseen:
        names = some(one.name for one in found)
        return Fail(
            f"{some(unseen)}: selected by no PodMonitor ({names}): compare labels, namespace and the port's name"
        )
    return Ok(f"{some(one.name for one in found)} selects all {len(place.pods)} pod(s)")


def _monitors(place: Place, namespace: str) -> tuple[Owner, ...]:
    return place.cluster.list_all(kinds.POD_MONITOR, namespace)


def _jobs(place: Place) -> Result:
    if not place.pods:
        return place.no_pods
    owners, refused = _owners(place)
    if refused:
        return Warn(f"{len(refused)} pod(s) belong to no job that can be restarted; {refused[0]}")
    stopped = [str(one.ref) for one in owners if Memory.read(one.annotations).stopped]
    if stopped:
        return Warn(f"{some(stopped)}: restarts were stopped for it; mend the cause, then remove {STOPPED}")
    paused = [str(one.ref) for one in owners if one.annotations.get(PAUSE, "false") != "false"]
    if paused:
        return Warn(f"{some(paused)}: paused; remove the annotation {PAUSE} to let it be restarted")
    opted_in = [one for one in owners if one.annotations.get(OPT_IN) == "true"]
    if not opted_in:
        return Warn(f"none of {len(owners)} job(s) has opted in: kubectl annotate it {OPT_IN}=true")
    return Ok(f"{len(opted_in)} of {len(owners)} job(s) have opted in: {some(one.ref for one in opted_in)}")


def _owners(place: Place) -> tuple[list[Owner], list[str]]:
    """Each job once, and why some pods have none. Raises ClusterError."""
    owners: dict[Ref, Owner] = {}
    refused: list[str] = []
    for pod, _ in place.pods[:MOST_PODS]:
        try:
            owner = resolve(place.cluster, pod.namespace, pod.name, pod.uid).owner
            owners[owner.ref] = owner
        except Refused as error:
            refused.append(str(error))
    return list(owners.values()), refused


def _restarter(place: Place) -> Result:
    """By the ConfigMap that its config is mounted from."""
    config = _config(place)
    policy = config.get("policy") or {}
    if place.namespace not in (policy.get("namespaces") or ()):
        return Warn(f"policy.namespaces does not have {place.namespace}: no job there is restarted; add it")
    if policy.get("enabled") is False:
        return Warn("policy.enabled is false: nothing is restarted")
    if policy.get("dry_run", True):
        return Warn("a dry run: it says what it would do; set policy.dry_run to false (the chart's dryRun) to restart")
    return Ok(f"restarts in {', '.join(policy['namespaces'])}")


def _config(place: Place) -> Any:
    found = _config_map(place, f"{place.restarter}-config")
    return yaml.safe_load((found.raw.get("data") or {}).get("restarter.yaml", "")) or {}


def _circuit(place: Place) -> Result:
    opened = _config_map(place, place.restarter).annotations.get(circuit.OPEN)
    lacking = [verb for verb in CIRCUIT.verbs if not _may_circuit(place, verb)]
    if lacking:
        what = f"{some(lacking)} ConfigMap {place.release}/{place.restarter} ({CIRCUIT.why})"
        return Fail(f"{place.cluster.whoami()} may not {what}; grant it, or ask as the restarter does")
    if opened:
        return Warn(f"open ({opened:.200}): nothing is restarted until a person closes it; see restarter.md")
    return Ok("closed")


def _may_circuit(place: Place, verb: str) -> bool:
    return place.cluster.can_i(verb, CIRCUIT.kind, place.release, name=place.restarter)


def _config_map(place: Place, name: str) -> Owner:
    try:
        return place.cluster.get_owner(Ref("v1", "ConfigMap", place.release, name, ""))
    except NotFound:
        where = f"{place.release}/{name}"
        raise NotFound(f"no ConfigMap {where}: name its namespace by --release-namespace, or make it") from None


def _allowed(check: Check[Place]) -> Check[Place]:
    """What these credentials may not look at is no fault of the cluster."""

    def run(place: Place) -> Result:
        try:
            return check.run(place)
        except Denied as error:
            return Warn(f"not looked at: {error}")

    return Check(check.name, check.looks_at, run)


def _checks() -> Iterator[Check[Place]]:
    yield Check("permissions", "may these credentials do what a restart takes", _permissions)
    yield Check("sidecars", "have pods our sidecar in its native form", _sidecars)
    yield Check("volumes", "do sidecar and ranks share a volume in memory", _volumes)
    yield Check("podmonitor", "does a PodMonitor select the pods with our sidecar", _pod_monitor)
    yield Check("jobs", "have the jobs of these pods opted in", _jobs)
    yield Check("restarter", "is it configured for this namespace, and does it act", _restarter)
    yield Check(
        "circuit", "is the circuit over all restarts closed, and may it be written down when it opens", _circuit
    )


CHECKS: tuple[Check[Place], ...] = tuple(map(_allowed, _checks()))
