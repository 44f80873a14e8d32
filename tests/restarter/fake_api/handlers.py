"""The verbs of the API, answered as a 1.36 server was seen to answer."""

from __future__ import annotations

import copy
from typing import Any

from restarter.fake_api import schemas, selectors, served, status
from restarter.fake_api.pods import POD, deleting, ready, set_condition
from restarter.fake_api.requests import Answer, Place, Request
from restarter.fake_api.served import Served, of
from restarter.fake_api.status import NoSuchPath
from restarter.fake_api.store import Store, merge

BUDGET = of("policy/v1", "PodDisruptionBudget")
JOB = of("batch/v1", "Job")
EVICTION = Served("policy", "v1", "evictions", "Eviction")
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
EVENT_NEEDS = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
GRACE_TICKS = 30


def verb_of(request: Request, place: Place) -> str:
    return "list" if request.method == "GET" and place.name is None else VERBS.get(request.method, "update")


def handle(store: Store, request: Request, place: Place) -> Answer:
    match request.method, place.name, place.part:
        case "GET", None, "":
            return Answer(200, _list(store, request, place))
        case "GET", str(name), "":
            return Answer(200, store.get(place.served, place.namespace, name))
        case "POST", None, "":
            return _create(store, request, place)
        case "PATCH", str(name), "" | "status":
            return _patch(store, request, place, name)
        case "DELETE", str(name), "":
            return _delete(store, request, place, name)
        case "POST", str(name), "eviction" if place.served == POD:
            return _evict(store, request, place, name)
    raise NoSuchPath


def group_of(name: str) -> Answer:
    """Return the versions of a group."""
    versions = [{"groupVersion": one.group_version, "version": one.version} for one in served.ALL if one.group == name]
    if not versions:
        raise NoSuchPath
    body = {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions[:1],
        "preferredVersion": versions[0],
    }
    return Answer(200, body)


def check(kind: Served, body: Any) -> None:
    """Validate an object that is not stored."""
    wrong = schemas.problems(kind, body) + [(".".join(path), "unknown") for path in schemas.unknown_fields(kind, body)]
    if wrong:
        raise status.invalid(kind, "", wrong)


def _list(store: Store, request: Request, place: Place) -> dict[str, Any]:
    found = [
        {key: value for key, value in raw.items() if key not in ("kind", "apiVersion")}
        for raw in store.of_kind(place.served, place.namespace)
        if selectors.matches(request.query.get("labelSelector", ""), raw["metadata"].get("labels") or {})
    ]
    start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "0")) or len(found)
    more = {"continue": str(start + limit)} if start + limit < len(found) else {}
    kind, version = f"{place.served.kind}List", place.served.group_version
    meta = {"resourceVersion": str(store.ticks), **more}
    return {"kind": kind, "apiVersion": version, "metadata": meta, "items": found[start : start + limit]}


def _create(store: Store, request: Request, place: Place) -> Answer:
    body, headers = _known(request, place, request.json())
    if place.served.group == "events.k8s.io" and (lacking := [key for key in EVENT_NEEDS if not body.get(key)]):
        raise status.invalid(place.served, "", [(key, "Required value") for key in lacking])
    return Answer(201, store.create(place.served, place.namespace, body, request.dry_run), headers)


def _patch(store: Store, request: Request, place: Place, name: str) -> Answer:
    given = request.headers.get("content-type", "")
    taken = [MERGE] if place.served.custom else [MERGE, STRATEGIC]
    if given not in taken:
        raise status.unsupported_media_type(given, taken)
    old = store.get(place.served, place.namespace, name)
    change = request.json()
    _, headers = _known(request, place, merge(copy.deepcopy(old), change), change)
    raw = store.patch(place.served, place.namespace, name, change, request.dry_run, place.part)
    return Answer(200, raw, headers)


def _known(request: Request, place: Place, whole: dict[str, Any], body: Any = None) -> tuple[Any, dict[str, str]]:
    """Return the body without unknown fields, and a warning header. In strict mode, unknown fields are an error."""
    body = whole if body is None else body
    unknown = schemas.unknown_fields(place.served, whole)
    if not unknown:
        return body, {}
    text = ", ".join(f'unknown field "{".".join(map(str, path))}"' for path in unknown)
    if request.strict:
        raise status.invalid(
            place.served, whole["metadata"].get("name", ""), [("patch", f"strict decoding error: {text}")]
        )
    for path in unknown:
        schemas.drop(body, path)
    return body, {"Warning": f"299 - {text!r}".replace("'", '"')}


def _delete(store: Store, request: Request, place: Place, name: str) -> Answer:
    raw = store.get(place.served, place.namespace, name)
    options = request.json() if request.content else {}
    wanted = (options.get("preconditions") or {}).get("uid", raw["metadata"]["uid"])
    if wanted != raw["metadata"]["uid"]:
        raise status.uid_differs(place.served, name, wanted, raw["metadata"]["uid"])
    policy = options.get("propagationPolicy") or request.query.get("propagationPolicy")
    warns = place.served == JOB and not policy
    if not request.dry_run:
        store.delete(raw, GRACE_TICKS if place.served == POD else 0)
    text = '299 - "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background"'
    return Answer(200, {**status.success(), "code": 200}, {"Warning": text} if warns else {})


def _evict(store: Store, request: Request, place: Place, name: str) -> Answer:
    pod = store.get(POD, place.namespace, name)
    body = request.json()
    check(EVICTION, body)
    options = body.get("deleteOptions") or {}
    wanted = (options.get("preconditions") or {}).get("uid", pod["metadata"]["uid"])
    if wanted != pod["metadata"]["uid"]:
        raise status.uid_differs(POD, name, wanted, pod["metadata"]["uid"])
    for budget in store.of_kind(BUDGET, place.namespace):
        if _forbids(store, budget, pod):
            raise status.disruption_budget(budget["metadata"]["name"])
    if not request.dry_run and not deleting(pod):
        set_condition(pod["status"], "DisruptionTarget", True, "EvictionByEvictionAPI")
        store.delete(pod, GRACE_TICKS)
    return Answer(201, status.success())


def _forbids(store: Store, budget: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Supports only `minAvailable` as a number."""
    wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items())
    if not selectors.matches(selector, pod["metadata"].get("labels") or {}):
        return False
    pods = store.of_kind(POD, pod["metadata"]["namespace"])
    healthy = [one for one in pods if selectors.matches(selector, one["metadata"].get("labels") or {}) and ready(one)]
    return len([one for one in healthy if not deleting(one)]) <= budget["spec"].get("minAvailable", 0)
