"""The checks of a cluster: credentials, permissions, pods, PodMonitors, jobs, and the restarter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

from ..restarter import circuit
from ..restarter.backend import Away, Denied, NotFound
from ..restarter.kubernetes import objects as kinds
from ..restarter.kubernetes.objects import Owner, Ref
from ..restarter.kubernetes.owners import resolve
from ..restarter.kubernetes.permissions import CIRCUIT, PERMISSIONS
from ..restarter.kubernetes.targets import TARGETS
from ..restarter.reasons import Refused
from ..restarter.record import OPT_IN, PAUSE, STOPPED, SUSPENDED, RestartRecord
from .checks import Check, Fail, Ok, Result, Unknown, Warn, some
from .pods import INJECT, Sidecar, port_names, selects, sidecar_of, volume_problem

if TYPE_CHECKING:
    from ..restarter.kubernetes.client import KubernetesClient

MAX_PODS = 50
"""Pods whose owners are looked up, to limit the number of requests."""
SUSPENDED_TOO_LONG_S = 1800.0
EVERY_NAMESPACE_HAS = "kube-root-ca.crt"
"""A ConfigMap that Kubernetes creates in every namespace."""
EXAMPLE = "see deploy/kubernetes/sidecar/pod.yaml"


@dataclass(frozen=True)
class Place:
    """`namespace` has the jobs, `release` the restarter and the objects named after it. `now` is in Unix seconds."""

    cluster: KubernetesClient
    namespace: str
    now: float
    release: str = "gpufrag"
    restarter: str = "gpufrag-restarter"

    @cached_property
    def running(self) -> list[Owner]:
        """Pods that have not ended. Raises BackendError."""
        found = self.cluster.list_all(kinds.POD, self.namespace)
        return [pod for pod in found if pod.status.get("phase") not in ("Succeeded", "Failed")]

    @cached_property
    def pods(self) -> list[tuple[Owner, Sidecar]]:
        """Running pods with the sidecar. Raises BackendError."""
        return [(pod, sidecar) for pod in self.running if (sidecar := sidecar_of(pod.raw))]

    def config_map(self, name: str, namespace: str) -> Owner:
        return self.cluster.get_owner(Ref("v1", "ConfigMap", namespace, name, ""))


def _credentials(place: Place) -> Result:
    try:
        return Ok(f"the API server accepts {place.cluster.whoami()}")
    except (Denied, Away) as error:
        return Fail(f"cannot use the API server: {error}")


def _namespace(place: Place) -> Result:
    try:
        place.config_map(EVERY_NAMESPACE_HAS, place.namespace)
    except NotFound:
        return Fail(f"namespace {place.namespace} does not exist; choose another with --namespace")
    except Denied:
        return Ok(f"{place.namespace} (these credentials may not check whether it exists)")
    return Ok(place.namespace)


def _permissions(place: Place) -> Result:
    who = place.cluster.whoami()
    granted = {
        (row, verb): place.cluster.can_i(verb, row.kind, place.namespace, row.subresource)
        for row in PERMISSIONS
        for verb in row.verbs
    }
    restartable = {row.kind for (row, _), yes in granted.items() if yes and row.targets == (row.kind,)}
    left_out = set(TARGETS) - restartable
    missing = [
        f"{verb} {row.resource} ({row.why})"
        for (row, verb), yes in granted.items()
        if not yes and (not row.targets or set(row.targets) - left_out)
    ]
    if missing:
        return Fail(
            f"{who} lacks permissions in {place.namespace}: {some(missing)}; grant them, or use the restarter's "
            "credentials"
        )
    if not restartable:
        return Fail(f"{who} may restart nothing in {place.namespace}; add it to the chart's allowedNamespaces")
    return Ok(f"{who} may restart in {place.namespace}: {', '.join(sorted(map(str, restartable)))}")


def _injection(place: Place) -> Result:
    labelled = [pod for pod in place.running if pod.labels.get(INJECT) == "true"]
    missing = [pod.name for pod in labelled if sidecar_of(pod.raw) is None]
    if missing:
        return Fail(
            f"{some(missing)}: labelled {INJECT}=true but without the sidecar; set injection.enabled in the chart, and "
            "check that the pod has no volume named gpufrag-samples, gpufrag-agent or gpufrag-checkpoint"
        )
    return Ok(f"{len(labelled)} labelled pod(s), all with the sidecar")


def _pods(place: Place) -> Result:
    if not place.pods:
        return Warn(f"no pod of {place.namespace} has the sidecar; add it to a job ({EXAMPLE})")
    return Ok(f"{len(place.pods)} pod(s) of {place.namespace} have the sidecar")


def _sidecars(place: Place) -> Result:
    plain = [pod.name for pod, sidecar in place.pods if not sidecar.native]
    if plain:
        return Warn(
            f"{some(plain)}: the sidecar is not a native one (an init container with restartPolicy: Always), so a Job "
            f"never completes; {EXAMPLE}"
        )
    return Ok("every sidecar is a native one")


def _volumes(place: Place) -> Result:
    problems = {pod.name: text for pod, sidecar in place.pods if (text := volume_problem(pod.raw, sidecar))}
    if not problems:
        return Ok("sidecars and ranks share a volume in memory")
    first = min(problems)
    only_slow = all("medium: Memory" in text for text in problems.values())
    return (Warn if only_slow else Fail)(f"{some(problems)}: in {first}, {problems[first]}; {EXAMPLE}")


def _pod_monitor(place: Place) -> Result:
    found = [
        one for where in {place.namespace, place.release} for one in place.cluster.list_all(kinds.POD_MONITOR, where)
    ]
    if not found:
        return Warn(
            f"no PodMonitor in {place.namespace} or {place.release}; this is fine if Prometheus discovers pods itself "
            "(deploy/prometheus/kubernetes.yml), otherwise set the chart's podMonitor.enabled"
        )
    selected = {
        pod.name: [one.name for one in found if selects(one, pod, port_names(sidecar.container))]
        for pod, sidecar in place.pods
    }
    unseen = [pod for pod, monitors in selected.items() if not monitors]
    if unseen:
        every = some(one.name for one in found)
        return Fail(f"{some(unseen)}: no PodMonitor selects it ({every}); compare labels, namespace and port name")
    used = {name for monitors in selected.values() for name in monitors}
    return Ok(f"all {len(place.pods)} pod(s) are selected by {some(used)}")


def _jobs(place: Place) -> Result:
    owners, refused = _owners(place)
    if refused:
        return Warn(f"{len(refused)} pod(s) belong to no job that can be restarted: {refused[0]}")
    stopped = [str(one.ref) for one in owners if RestartRecord.read(one.annotations).stopped]
    if stopped:
        return Warn(f"{some(stopped)}: restarts are stopped; fix the cause, then remove {STOPPED}")
    paused = [str(one.ref) for one in owners if one.annotations.get(PAUSE, "false") != "false"]
    if paused:
        return Warn(f"{some(paused)}: paused; remove the annotation {PAUSE} to allow restarts")
    opted_in = [one for one in owners if one.annotations.get(OPT_IN) == "true"]
    if not opted_in:
        return Warn(f"none of {len(owners)} job(s) has opted in; run kubectl annotate with {OPT_IN}=true")
    return Ok(f"{len(opted_in)} of {len(owners)} job(s) have opted in: {some(one.ref for one in opted_in)}")


def _owners(place: Place) -> tuple[list[Owner], list[str]]:
    """Return each job once, and why some pods have none. Raises BackendError."""
    owners: dict[Ref, Owner] = {}
    refused: list[str] = []
    for pod, _ in place.pods[:MAX_PODS]:
        try:
            owner = resolve(place.cluster, pod.namespace, pod.name, pod.uid).owner
            owners[owner.ref] = owner
        except Refused as error:
            refused.append(str(error))
    return list(owners.values()), refused


def _suspended(place: Place) -> Result:
    """A suspended job has no pods, so jobs are listed by kind."""
    found, denied = [], []
    for kind in TARGETS:
        try:
            for owner in place.cluster.list_all(kind, place.namespace):
                memory = RestartRecord.read(owner.annotations)
                if memory.phase == SUSPENDED and place.now - (memory.at_s or 0.0) > SUSPENDED_TOO_LONG_S:
                    found.append(owner.ref)
        except Denied:
            denied.append(str(kind))
    if found:
        minutes = SUSPENDED_TOO_LONG_S / 60
        return Fail(
            f"{some(found)}: suspended by gpufrag for more than {minutes:.0f} min; resume it, or start the restarter"
        )
    if len(denied) == len(TARGETS):
        return Unknown("these credentials cannot list jobs")
    return Ok("no job is left suspended")


def _restarter(place: Place) -> Result:
    """Reads the ConfigMap of its config, and the status of its Deployment."""
    found = _release_config_map(place, f"{place.restarter}-config")
    config: Any = yaml.safe_load((found.raw.get("data") or {}).get("restarter.yaml", "")) or {}
    policy = config.get("policy") or {}
    try:
        deployment = place.cluster.get_owner(Ref("apps/v1", "Deployment", place.release, place.restarter, ""))
    except NotFound:
        return Fail(f"no Deployment {place.release}/{place.restarter}: the restarter is not installed")
    if not deployment.status.get("readyReplicas"):
        return Fail(f"Deployment {place.release}/{place.restarter} has no ready pod: nothing is restarted")
    if place.namespace not in (policy.get("namespaces") or ()):
        return Warn(f"policy.namespaces does not contain {place.namespace}, so its jobs are not restarted; add it")
    if policy.get("enabled") is False:
        return Warn("policy.enabled is false: nothing is restarted")
    if policy.get("dry_run", True):
        return Warn("dry run: it only reports; set policy.dry_run to false (the chart's dryRun) to restart jobs")
    return Ok(f"runs and restarts jobs in {', '.join(policy['namespaces'])}")


def _circuit(place: Place) -> Result:
    opened = _release_config_map(place, place.restarter).annotations.get(circuit.OPEN)
    if opened:
        return Warn(f"open ({opened:.200}): nothing is restarted until a person closes it; see restarter.md")
    missing = [
        verb
        for verb in CIRCUIT.verbs
        if not place.cluster.can_i(verb, CIRCUIT.kind, place.release, name=place.restarter)
    ]
    if missing:
        what = f"{some(missing)} ConfigMap {place.release}/{place.restarter} ({CIRCUIT.why})"
        return Fail(f"{place.cluster.whoami()} may not {what}; grant it, or use the restarter's credentials")
    return Ok("closed")


def _release_config_map(place: Place, name: str) -> Owner:
    try:
        return place.config_map(name, place.release)
    except NotFound:
        where = f"{place.release}/{name}"
        raise NotFound(f"no ConfigMap {where}: set --release-namespace and --restarter, or install the chart") from None


def _or_unknown(check: Check[Place]) -> Check[Place]:
    """What these credentials may not read is not a fault of the cluster, but it is not fine either."""

    def run(place: Place) -> Result:
        try:
            return check.run(place)
        except Denied as error:
            return Unknown(f"cannot check this: {error}")

    return Check(check.name, check.looks_at, run, check.gate)


def _checks() -> Iterator[Check[Place]]:
    yield Check("credentials", "does the API server accept these credentials", _credentials, gate=True)
    yield Check("namespace", "does the namespace exist", _namespace, gate=True)
    yield Check("permissions", "may these credentials do what a restart needs", _permissions)
    yield Check("restarter", "does the restarter run, and is it configured for this namespace", _restarter)
    yield Check("circuit", "is the circuit breaker closed, and can the restarter open it", _circuit)
    yield Check("suspended", "did a restart leave a job suspended", _suspended)
    yield Check("injection", "do labelled pods have the sidecar", _injection)
    yield Check("pods", "do pods have the sidecar", _pods, gate=True)
    yield Check("sidecars", "is each sidecar a native one", _sidecars)
    yield Check("volumes", "do sidecar and ranks share a volume in memory", _volumes)
    yield Check("podmonitor", "does a PodMonitor select the pods with the sidecar", _pod_monitor)
    yield Check("jobs", "have the jobs of these pods opted in", _jobs)


CHECKS: tuple[Check[Place], ...] = tuple(map(_or_unknown, _checks()))
