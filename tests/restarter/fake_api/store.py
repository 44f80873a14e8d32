"""The objects of the fake: versions, uids, conflicts, patches, deletion. A request is one tick of time."""

from __future__ import annotations

import copy
import datetime
import json
import threading
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import jsonschema
from referencing import Registry, Resource

Raw = dict[str, Any]
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
SCHEMAS = resources.files("kubernetes_validate") / "kubernetes-json-schema" / "v1.36.0-local-strict"


class Served(NamedTuple):
    """A kind that the server has."""

    group_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        return self.group_version.rpartition("/")[0]


SERVED = (  # not the restarter's own table, so each checks the other
    Served("v1", "ConfigMap", "configmaps"),
    Served("v1", "Pod", "pods"),
    Served("apps/v1", "Deployment", "deployments"),
    Served("apps/v1", "ReplicaSet", "replicasets"),
    Served("apps/v1", "StatefulSet", "statefulsets"),
    Served("batch/v1", "Job", "jobs"),
    Served("events.k8s.io/v1", "Event", "events"),
    Served("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Served("argoproj.io/v1alpha1", "Workflow", "workflows"),
    Served("batch.volcano.sh/v1alpha1", "Job", "jobs"),
    Served("bus.volcano.sh/v1alpha1", "Command", "commands"),
    Served("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
    Served("kubeflow.org/v1", "PyTorchJob", "pytorchjobs"),
    Served("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets"),
    Served("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Served("ray.io/v1", "RayCluster", "rayclusters"),
    Served("ray.io/v1", "RayJob", "rayjobs"),
    Served("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs"),
)
BUILT_IN = ("", "apps", "batch", "events.k8s.io", "policy", "authorization.k8s.io", "authentication.k8s.io")
"""Groups with published schemas. What is wrong in a custom resource is ignored by the controller that should act."""
UID_IN_JOB = (
    "spec.template.metadata.labels[controller-uid]",
    "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]",
    "spec.selector",
)
"""Generated fields of a Job that contain its uid: a real server lists them before metadata.uid."""


def of(group_version: str, kind: str) -> Served:
    return next(one for one in SERVED if one[:2] == (group_version, kind))


POD = of("v1", "Pod")


class Failure(Exception):
    """An answer outside 2xx: a Status. `fields` are the causes of a 422."""

    def __init__(self, code: int, reason: str, message: str, *fields: str) -> None:
        super().__init__(message)
        causes = [{"reason": "FieldValueInvalid", "field": field} for field in fields]
        details = {"code": code, "reason": reason, "message": message, "details": {"causes": causes}}
        self.code, self.body = code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", **details}


class Store:
    """All objects, with one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[Served, str, str], Raw] = {}
        self.ticks = self.pods_made = self._version = self._uids = 0

    def now(self, ago: int = 0) -> str:
        return (EPOCH + datetime.timedelta(seconds=self.ticks - ago)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def find(self, served: Served, namespace: str, name: str) -> Raw:
        try:
            return self.objects[served, namespace, name]
        except KeyError:
            raise Failure(404, "NotFound", f'{served.plural}.{served.group} "{name}" not found') from None

    def of_kind(self, served: Served, namespace: str | None = None, selector: str = "") -> list[Raw]:
        """Return them sorted by name, as a server does."""
        found = sorted(key for key in self.objects if key[0] == served and namespace in (None, key[1]))
        return [self.objects[key] for key in found if selects(selector, self.objects[key])]

    def owned(self, owner: Raw, served: Served) -> list[Raw]:
        uid = owner["metadata"]["uid"]
        return [raw for raw in self.of_kind(served, owner["metadata"]["namespace"]) if uid in controllers_of(raw)]

    def create(self, served: Served, namespace: str, body: Raw, dry_run: bool = False) -> Raw:
        raw = {**copy.deepcopy(body), "apiVersion": served.group_version, "kind": served.kind}
        self._uids += 1
        meta = raw["metadata"]
        meta |= {"namespace": namespace, "uid": f"{self._uids:08x}-0000-4000-8000-00000000cafe", "generation": 1}
        meta |= {"creationTimestamp": self.now(), "name": meta.get("name") or f"{meta['generateName']}{self._uids:05x}"}
        if (served, namespace, meta["name"]) in self.objects:
            raise Failure(409, "AlreadyExists", f'{served.plural}.{served.group} "{meta["name"]}" already exists')
        validate(served, raw)
        if not dry_run:
            self.pods_made += served == POD
            self._store(served, raw)
        return raw

    def patch(self, served: Served, namespace: str, name: str, change: Raw, dry_run: bool = False) -> Raw:
        """Merge `change` into all but the status."""
        old = self.find(served, namespace, name)
        before, wanted = old["metadata"], change.get("metadata") or {}
        if wanted.get("uid", before["uid"]) != before["uid"]:
            fields = [*(UID_IN_JOB if served.kind == "Job" else ()), "metadata.uid"]
            raise Failure(422, "Invalid", f'{served.kind} "{name}" is invalid: field is immutable', *fields)
        if wanted.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
            raise Failure(409, "Conflict", f'Operation cannot be fulfilled on "{name}": the object has been modified')
        new = merge(copy.deepcopy(old), {**change, "status": None})
        new |= {"status": old["status"]} if "status" in old else {}
        validate(served, new)
        if new != old:
            new["metadata"]["generation"] += new.get("spec") != old.get("spec")
            if not dry_run:
                self._store(served, new)
        return new

    def delete(self, raw: Raw, graceful: bool = False) -> None:
        """Delete at once, or let the kubelet do it after the grace period."""
        meta = raw["metadata"]
        if not graceful:
            self.objects.pop((of(raw["apiVersion"], raw["kind"]), meta["namespace"], meta["name"]), None)
        elif "deletionTimestamp" not in meta:
            meta |= {"deletionTimestamp": self.now(), "deletionGracePeriodSeconds": 30}
            self.touch(raw)

    def touch(self, raw: Raw) -> None:
        """Give it a new version after a controller changed it."""
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)

    def set_status(self, raw: Raw, status: Raw) -> None:
        if raw.get("status") != status:
            raw["status"] = status
            self.touch(raw)

    def _store(self, served: Served, raw: Raw) -> None:
        self.touch(raw)
        self.objects[served, raw["metadata"]["namespace"], raw["metadata"]["name"]] = raw


def merge(target: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        result[key] = merge(result.get(key), value)
        if value is None:
            del result[key]
    return result


def selects(selector: str, raw: Raw) -> bool:
    """Supports only `key=value,…`."""
    labels = raw["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (term.split("=") for term in selector.split(",") if term))


def controllers_of(raw: Raw) -> list[str]:
    """Return the uids of its controllers."""
    return [one["uid"] for one in raw["metadata"].get("ownerReferences") or () if one.get("controller")]


def validate(served: Served, raw: Raw) -> None:
    """By the strict schema of a built-in kind."""
    if served.group in BUILT_IN and (error := next(_validator(served).iter_errors(raw), None)):
        field = ".".join(map(str, error.absolute_path))
        raise Failure(422, "Invalid", f"{served.kind} is invalid: {field}: {error.message[:120]}", field)


@cache
def _validator(served: Served) -> Any:
    group, version = served.group.partition(".")[0], served.group_version.rpartition("/")[2]
    schema = _published("-".join(filter(None, (served.kind.lower(), group, version))))
    registry: Any = Resource.from_contents(schema) @ (Resource.from_contents(_published("_definitions")) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _published(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_bytes())
