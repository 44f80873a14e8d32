"""The objects of the fake: versions, uids, conflicts, patches, deletion. A request is one tick of time."""

from __future__ import annotations

import copy
import datetime
import threading
from collections.abc import Collection
from typing import Any

from restarter.fake_api import schemas, status
from restarter.fake_api.served import Served, of

Key = tuple[Served, str, str]
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
IMMUTABLE = {"Job": ("template", "selector", "completionMode"), "StatefulSet": ("selector", "serviceName")}


class Store:
    """All objects, with one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[Key, dict[str, Any]] = {}
        self.ticks = 0
        self.pods_made = 0
        self._version = 1000
        self._uids = 0

    def now(self) -> str:
        return (EPOCH + datetime.timedelta(seconds=self.ticks)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def get(self, served: Served, namespace: str, name: str) -> dict[str, Any]:
        try:
            return self.objects[served, namespace, name]
        except KeyError:
            raise status.not_found(served, name) from None

    def of_kind(self, served: Served, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return them sorted by name, as a server does."""
        found = [(key, raw) for key, raw in self.objects.items() if key[0] == served and namespace in (None, key[1])]
        return [raw for _, raw in sorted(found, key=lambda pair: pair[0][1:])]

    def create(self, served: Served, namespace: str, body: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        raw = copy.deepcopy(body)
        meta = raw.setdefault("metadata", {})
        self._uids += 1
        if "name" not in meta:
            meta["name"] = f"{meta['generateName']}{self._uids:05x}"
        if (served, namespace, meta["name"]) in self.objects:
            raise status.already_exists(served, meta["name"])
        raw |= {"apiVersion": served.group_version, "kind": served.kind}
        meta |= {"namespace": namespace, "uid": f"{self._uids:08x}-0000-4000-8000-00000000cafe", "generation": 1}
        meta["creationTimestamp"] = self.now()
        self._check(served, raw)
        if dry_run:
            return raw
        self.pods_made += served.kind == "Pod"
        return self._store(served, raw)

    def patch(
        self, served: Served, namespace: str, name: str, change: dict[str, Any], dry_run: bool = False, part: str = ""
    ) -> dict[str, Any]:
        """`part` "status" changes only the status; otherwise everything but the status."""
        old = self.get(served, namespace, name)
        new = merge(copy.deepcopy(old), change)
        self._compare(served, old, change.get("metadata") or {})
        if part == "status":
            new = {**old, "status": new.get("status", {})}
        elif "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        self._check(served, new)
        self._check_immutable(served, old, new)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if new == old:
            return new
        return new if dry_run else self._store(served, new)

    def delete(self, raw: dict[str, Any], grace_ticks: int = 0) -> None:
        """Delete at once, or a pod after `grace_ticks`."""
        if grace_ticks and "deletionTimestamp" not in raw["metadata"]:
            raw["metadata"]["deletionTimestamp"] = self.now()
            raw["metadata"]["deletionGracePeriodSeconds"] = grace_ticks
            self.touch(raw)
        elif not grace_ticks:
            self.objects.pop(self.key(raw), None)

    def touch(self, raw: dict[str, Any]) -> None:
        """Give it a new version after a controller changed it."""
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)

    def key(self, raw: dict[str, Any]) -> Key:
        return of(raw["apiVersion"], raw["kind"]), raw["metadata"]["namespace"], raw["metadata"]["name"]

    def owned(self, owner: dict[str, Any], served: Served) -> list[dict[str, Any]]:
        uid = owner["metadata"]["uid"]
        return [raw for raw in self.of_kind(served, owner["metadata"]["namespace"]) if uid in controllers_of(raw)]

    def _store(self, served: Served, raw: dict[str, Any]) -> dict[str, Any]:
        self.touch(raw)
        self.objects[self.key(raw)] = raw
        return raw

    def _compare(self, served: Served, old: dict[str, Any], wanted: dict[str, Any]) -> None:
        name, meta = old["metadata"]["name"], old["metadata"]
        if wanted.get("uid", meta["uid"]) != meta["uid"]:
            causes = [("metadata.uid", f'"{wanted["uid"]}": field is immutable')]
            if served.kind == "Job":  # a real server lists several causes for a Job
                causes.append(("spec.selector", "field is immutable"))
            raise status.invalid(served, name, causes)
        if wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            raise status.conflict(served, name)

    def _check(self, served: Served, raw: dict[str, Any]) -> None:
        if wrong := schemas.problems(served, raw):
            raise status.invalid(served, raw["metadata"]["name"], wrong)

    def _check_immutable(self, served: Served, old: dict[str, Any], new: dict[str, Any]) -> None:
        for field in () if served.custom else IMMUTABLE.get(served.kind, ()):
            if (old.get("spec") or {}).get(field) != (new.get("spec") or {}).get(field):
                raise status.invalid(served, old["metadata"]["name"], [(f"spec.{field}", "field is immutable")])


def merge(target: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def controllers_of(raw: dict[str, Any], kinds: Collection[tuple[str, str]] | None = None) -> list[str]:
    """Return the uids of its controllers, optionally only of these kinds."""
    references = [one for one in raw["metadata"].get("ownerReferences") or () if one.get("controller")]
    return [one["uid"] for one in references if kinds is None or (one["apiVersion"], one["kind"]) in kinds]
