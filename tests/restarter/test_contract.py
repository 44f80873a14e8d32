"""The client on every API server under test: the fake one, and a real one if GPUFRAG_TEST_KUBECONFIG names it.

A real cluster needs a node that can pull $GPUFRAG_TEST_IMAGE (default busybox). The tests create a namespace and
delete it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User as Account
from lightkube.core.generic_client import BasicRequest, GenericSyncClient

from gpufrag.restarter.backend import Conflict, Denied, Invalid, Job, NotFound, Stage, TooMany
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.client import Event, KubernetesClient
from gpufrag.restarter.kubernetes.objects import JOB, JOB_SET, POD, Owner
from gpufrag.restarter.kubernetes.owners import resolve
from gpufrag.restarter.kubernetes.permissions import needed, role_rules
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import PHASE
from restarter.fake_api.server import User, fake_api
from restarter.worker_rig import alert

REAL = os.environ.get("GPUFRAG_TEST_KUBECONFIG")
IMAGE = os.environ.get("GPUFRAG_TEST_IMAGE", "busybox")
CONTAINER = {"name": "main", "image": IMAGE, "command": ["sh", "-c", "trap 'exit 1' TERM; sleep 3600 & wait"]}
SPEC = {
    "parallelism": 2,
    "completions": 2,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}},
}
GROUP = "rbac.authorization.k8s.io"
MARK = {"metadata": {"annotations": {PHASE: "trying"}}}
ANOTHER = "11111111-0000-4000-8000-000000000000"
PATIENCE_S = 120.0
Rules = list[dict[str, Any]]


class Reply(NamedTuple):
    code: int
    body: Any


class Backend:
    """An API server used as an administrator, with a namespace for the tests. `limit` makes users with few rules."""

    def __init__(self, config: SingleConfig, namespace: str, pause_s: float) -> None:
        self._open = contextlib.ExitStack()
        self._config, self._pause_s, self.namespace = config, pause_s, namespace
        self._admin = GenericSyncClient(ConnectionParams(timeout=10.0, trust_env=pause_s > 0), config)
        self._open.callback(self._admin.close)
        self.client = self.connect(config)
        self.jobs = KubernetesBackend(self.client, (namespace,), lambda: 0.0)
        self.limit: Callable[[Rules], KubernetesClient] = self._service_account

    def close(self) -> None:
        self._open.close()

    def connect(self, config: SingleConfig | None) -> KubernetesClient:
        assert config is not None
        return self._open.enter_context(contextlib.closing(KubernetesClient(config, trust_env=self._pause_s > 0)))

    def with_token(self, token: str) -> KubernetesClient:
        one = KubeConfig.from_one(cluster=self._config.cluster, user=Account(token=token), fname=self._config.fname)
        return self.connect(one.get())

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Reply:
        """`path` is below the namespace if it starts with a group and version: `apps/v1 deployments/x`."""
        version, space, rest = path.partition(" ")
        if space:
            path = f"{'apis' if '/' in version else 'api'}/{version}/namespaces/{self.namespace}/{rest}"
        request = BasicRequest(method, path, None, query, body, {"Content-Type": "application/json"})
        response = self._admin.send(self._admin.build_adapter_request(request))
        return Reply(response.status_code, response.json())

    def create(self, path: str, name: str, **body: Any) -> Any:
        reply = self.ask("POST", path, {"metadata": {"name": name}, **body})
        assert reply.code == 201, reply.body
        return reply.body

    def eventually(self, condition: Callable[[], Any]) -> Any:
        """Return what `condition` returns once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(self._pause_s)
        return found

    def start(self, name: str, **spec: Any) -> Job:
        """Create a Job of two ranks and return it once it runs."""
        self.create("batch/v1 jobs", name, spec={**SPEC, **spec})
        self.eventually(lambda: self.status(name).get("ready") == 2)
        return self.jobs.find(alert(self.pods(name)[0]["metadata"]["name"], self.namespace))

    def status(self, name: str) -> Any:
        return self.ask("GET", f"batch/v1 jobs/{name}").body.get("status", {})

    def pods(self, job: str) -> Any:
        return self.ask("GET", "v1 pods", labelSelector=f"job-name={job}").body["items"]

    def uids(self, job: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(job)}

    def order(self, job: Job, order: Callable[[Job], None]) -> None:
        """The Job controller writes into the same object, so a conflict is normal."""

        def attempt() -> bool:
            with contextlib.suppress(Conflict):
                order(self.jobs.read(job))
                return True
            return False

        self.eventually(attempt)

    def stop(self, job: Job) -> None:
        self.order(job, lambda fresh: self.jobs.stop(fresh, fresh.record))
        self.eventually(lambda: self.jobs.state(self.jobs.read(job)).confirmed)

    def _service_account(self, rules: Rules) -> KubernetesClient:
        """Create a service account with these rules, and a token for ten minutes."""
        name = f"limited-{secrets.token_hex(3)}"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        role = {"apiGroup": GROUP, "kind": "Role", "name": name}
        self.create("v1 serviceaccounts", name)
        self.create(f"{GROUP}/v1 roles", name, rules=rules)
        self.create(f"{GROUP}/v1 rolebindings", name, subjects=[subject], roleRef=role)
        made = self.create(f"v1 serviceaccounts/{name}/token", name, spec={"expirationSeconds": 600})
        return self.with_token(made["status"]["token"])


@contextlib.contextmanager
def fake_backend() -> Iterator[Backend]:
    with fake_api() as api, contextlib.closing(Backend(api.config(), "ml", pause_s=0.0)) as one:

        def limit(rules: Rules) -> KubernetesClient:
            api.users["limited"] = User("limited", tuple(rules), "ml")
            return one.with_token("limited")

        one.limit = limit
        yield one


@contextlib.contextmanager
def real_backend() -> Iterator[Backend]:
    config, name = KubeConfig.from_file(Path(str(REAL))).get(), f"gpufrag-contract-{secrets.token_hex(3)}"
    assert config is not None
    with contextlib.closing(Backend(config, name, pause_s=0.5)) as one:
        one.create("api/v1/namespaces", name)
        try:
            yield one
        finally:
            one.ask("DELETE", f"api/v1/namespaces/{name}")


@pytest.fixture(scope="module", params=[fake_backend, *([real_backend] if REAL else [])])
def backend(request):
    with request.param() as one:
        yield one


@pytest.fixture
def name():
    """The name of an object that no other test uses."""
    return f"try-{secrets.token_hex(4)}"


@pytest.fixture
def owner(backend, name):
    """A running Job."""
    return backend.start(name).handle.owner


@pytest.fixture
def pod(backend, owner, name):
    return backend.client.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])


def test_object_is_created_once(backend, owner):
    reply = backend.ask("POST", "batch/v1 jobs", {"metadata": {"name": owner.name}, "spec": SPEC})
    assert (reply.code, reply.body["reason"]) == (409, "AlreadyExists")


def test_pod_leads_to_its_job(backend, owner, pod):
    found = resolve(backend.client, backend.namespace, pod.name).owner
    assert (found.group_kind, found.uid, found.finished, found.deleting) == (JOB, owner.uid, False, False)


def test_missing_objects_are_not_found(backend, name):
    with pytest.raises(Refused) as refused:
        resolve(backend.client, backend.namespace, name)
    assert refused.value.reason.label == "pod-gone"
    assert isinstance(backend.client.list_marked(JOB_SET, backend.namespace), tuple)


def test_patch_of_a_version_is_accepted_once(backend, owner):
    version = backend.client.get_owner(owner.ref).resource_version
    assert backend.client.patch(owner.ref, MARK, version).annotations[PHASE] == "trying"
    with pytest.raises(Conflict):
        backend.client.patch(owner.ref, MARK, version)


def test_object_of_another_uid_is_not_changed(backend, owner):
    with pytest.raises(Conflict):
        backend.client.patch(replace(owner.ref, uid=ANOTHER), MARK, None)
    with pytest.raises(NotFound, match="another object has its name"):
        backend.client.get_owner(replace(owner.ref, uid=ANOTHER))


@pytest.mark.parametrize("spec", [{"suspended": True}, {"parallelism": "two"}], ids=["unknown field", "wrong type"])
def test_invalid_patch_is_rejected(backend, owner, spec):
    with pytest.raises(Invalid):
        backend.client.patch(owner.ref, {"spec": spec}, None)


def test_dry_run_changes_nothing(backend, owner):
    would_be = backend.client.patch(owner.ref, {"spec": {"suspend": True}}, None, dry_run=True)
    assert would_be.spec["suspend"] is True
    assert not backend.client.get_owner(owner.ref).spec.get("suspend")


def test_marked_owners_are_found(backend, owner):
    assert owner.uid not in {one.uid for one in backend.client.list_marked(JOB, backend.namespace)}
    backend.client.patch(owner.ref, MARK, None)
    assert owner.uid in {one.uid for one in backend.client.list_marked(JOB, backend.namespace)}


def test_pods_are_found_by_label(backend, owner):
    pods = backend.client.list_pods(backend.namespace, f"batch.kubernetes.io/controller-uid={owner.uid}")
    assert [(pod.ready, pod.deleting, pod.alive) for pod in pods] == [(True, False, True)] * 2


def test_event_is_stored(backend, owner):
    backend.client.create_event(Event(owner.ref, "WouldRestart", "a try", at_s=1.8e9))
    events = backend.ask("GET", "events.k8s.io/v1 events").body["items"]
    found = [one for one in events if one["regarding"].get("uid") == owner.uid and one["reason"] == "WouldRestart"]
    assert [(one["note"], one["type"]) for one in found] == [("a try", "Normal")]


def test_eviction_checks_the_uid(backend, pod, name):
    with pytest.raises(Conflict):
        backend.client.evict(replace(pod, uid=ANOTHER))
    backend.client.evict(pod, dry_run=True)
    assert not backend.client.get_pod(pod.namespace, pod.name).deleting
    backend.client.evict(pod)
    backend.eventually(lambda: pod.uid not in backend.uids(name))


def test_disruption_budget_forbids_an_eviction(backend, pod, name):
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"job-name": name}}}
    backend.create("policy/v1 poddisruptionbudgets", name, spec=spec)

    def refusal() -> TooMany | None:
        try:
            backend.client.evict(pod, dry_run=True)  # allowed until the budget is known
        except TooMany as error:
            return error
        return None

    assert backend.eventually(refusal).retry_after_s in (None, 10.0)


def test_bad_token_is_denied(backend, name):
    assert backend.client.whoami()
    with pytest.raises(Denied, match="401"):
        backend.with_token("nonsense").get_pod(backend.namespace, name)


def lacking(client: KubernetesClient, namespace: str) -> list[str]:
    rows = [(verb, row) for row in needed([JOB]) for verb in row.verbs]
    return [f"{verb} {row.resource}" for verb, row in rows if not client.can_i(verb, row.kind, namespace)]


def test_shipped_role_is_sufficient_and_minimal(backend, owner, pod):
    limited = backend.limit(role_rules([JOB]))
    backend.eventually(lambda: not lacking(limited, backend.namespace))
    limited.patch(owner.ref, MARK, None)
    assert [limited.can_i(verb, POD, backend.namespace) for verb in ("get", "delete")] == [True, False]
    with pytest.raises(Denied, match="403"):
        limited.evict(pod)


def test_missing_permissions_are_found(backend):
    limited = backend.limit([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    backend.eventually(lambda: limited.can_i("get", POD, backend.namespace))
    assert lacking(limited, backend.namespace) == ["create events", "get jobs", "list jobs", "patch jobs"]


def test_job_restart_counts_no_failure(backend, name):
    job, old, begun = backend.start(name), backend.uids(name), backend.status(name)["startTime"]
    backend.stop(job)
    backend.order(job, lambda fresh: backend.jobs.start(fresh, fresh.record))
    backend.eventually(lambda: backend.jobs.state(backend.jobs.read(job)).stage is Stage.RUNNING)
    backend.eventually(lambda: backend.status(name).get("ready") == 2)
    after: Owner = backend.jobs.read(job).handle.owner
    assert (after.status.get("failed", 0), after.finished) == (0, False)
    assert after.status["startTime"] >= begun
    assert not old & backend.uids(name)


def test_suspended_job_has_no_pods(backend, name):
    backend.stop(backend.start(name))
    backend.eventually(lambda: not any(backend.status(name).get(key) for key in ("active", "terminating")))  # it lags
    assert (backend.status(name).get("failed", 0), "startTime" in backend.status(name)) == (0, False)


def test_deleted_pod_counts_as_failed(backend, owner, pod, name):
    backend.ask("DELETE", f"v1 pods/{pod.name}")
    backend.eventually(lambda: backend.client.get_owner(owner.ref).finished)
    assert backend.status(name)["failed"] >= 1


def test_ignored_eviction_counts_no_failure(backend, name):
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    pod = backend.start(name, podFailurePolicy={"rules": [rule]}).handle.pod
    backend.client.evict(pod)
    backend.eventually(lambda: pod.uid not in backend.uids(name) and backend.status(name).get("ready") == 2)
    assert backend.status(name).get("failed", 0) == 0
