"""The client of the API server: what it sends, what it makes of each answer, how it connects."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.config.kubeconfig import KubeConfig

from gpufrag.errors import Unavailable, UsageError
from gpufrag.restarter.backend import Away, BackendError, Conflict, Denied, Invalid, NotFound, TooMany
from gpufrag.restarter.kubernetes import client as client_module
from gpufrag.restarter.kubernetes import objects as kinds
from gpufrag.restarter.kubernetes.client import MAX_TEXT, Event, KubernetesClient, connect, cut, error_of
from gpufrag.restarter.kubernetes.objects import (
    JOB,
    JOB_SET,
    VOLCANO_JOB,
    GroupKind,
    Pod,
    Ref,
    Resource,
    controller_of,
    group_version,
    merged,
    owner_from,
    pod_from,
)
from gpufrag.restarter.record import PHASE
from restarter.fake_api import manifests
from restarter.fake_api.server import CUT, STORM, TOKEN, Fault, fake_api
from restarter.fake_api.store import merge
from restarter.scene import connected

NAME = "train"
STARTING = Fault(503, body=b'{"kind": "Status", "message": "the request has been made before all known HTTP paths"}')


@pytest.fixture
def api():
    with fake_api() as one:
        one.world.apply(manifests.job())
        yield one


@pytest.fixture
def client(api):
    with contextlib.closing(connected(api)) as one:
        yield one


@pytest.fixture
def pod_name(api):
    return api.world.pods()[0]["metadata"]["name"]


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (STORM, Away, "answered 503"),
        (STARTING, Away, "before all known HTTP paths"),
        (CUT, Away, "no answer"),
        (Fault(429, {"Retry-After": "7"}), TooMany, "answered 429"),
        (Fault(401), Denied, "answered 401"),
        (Fault(200, body=b"<html>"), Away, "not JSON"),
        (Fault(200, body=b"{}"), Away, "not an object"),
        (Fault(200, body=b"[]"), Away, "not an object"),
        (Fault(302, {"Location": "http://127.0.0.1:1/"}), BackendError, "answered 302"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_failed_call_does_not_affect_the_next(api, client, fault, kind, text, pod_name):
    api.faults.at(1, fault)
    with pytest.raises(kind, match=text):
        client.get_pod("ml", pod_name)
    assert client.get_pod("ml", pod_name).ready


def test_call_is_not_retried_and_works_after_an_outage(api, client):
    api.faults.always(STORM)
    for _ in range(20):
        with pytest.raises(Away):
            client.whoami()
    assert [one.code for one in api.log] == [503] * 20
    api.faults.clear()
    assert client.whoami() == "system:serviceaccount:gpufrag:restarter"


def test_silent_server_is_given_up(api):
    never = threading.Event()
    api.faults.always(Fault(200, wait=never))
    hasty = KubernetesClient(api.config(), timeout_s=0.1, trust_env=False)
    with contextlib.closing(hasty), pytest.raises(Away, match=r"no answer: .*timed out"):
        hasty.get_pod("ml", "x")
    never.set()


def test_slow_answer_is_given_up(api, pod_name):
    """Each wait is short and their sum is not: the clock runs ahead of the bytes."""
    ticks = iter(range(0, 1000, 30))
    patient = KubernetesClient(api.config(), timeout_s=10, trust_env=False, clock=lambda: float(next(ticks)))
    with contextlib.closing(patient), pytest.raises(Away, match="not complete after 10 s"):
        patient.get_pod("ml", pod_name)


def test_large_answer_is_given_up(api, client, monkeypatch, pod_name):
    monkeypatch.setattr(client_module, "MAX_ANSWER", 100)
    with pytest.raises(Away, match="more than 0 MiB"):
        client.get_pod("ml", pod_name)


def test_refused_connection_is_away():
    with fake_api() as gone:
        config = gone.config()
    lonely = KubernetesClient(config, trust_env=False)
    with contextlib.closing(lonely), pytest.raises(Away, match="refused"):
        lonely.whoami()


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "a b", "A", "", "a" * 254, "é", "x?watch=1", "-", "..", "a\n"])
def test_invalid_name_is_never_sent(api, client, name):
    for namespace, pod in (("ml", name), (name, "x")):
        with pytest.raises(NotFound, match="not a valid name"):
            client.get_pod(namespace, pod)
    assert api.log == []


def test_writes_ask_for_strict_fields(api, client, pod_name):
    client.evict(client.get_pod("ml", pod_name), dry_run=True)
    written = [one for one in api.log if one.method != "GET"]
    assert [one.query for one in written] == [{"fieldValidation": "Strict", "dryRun": "All"}]


def test_long_list_is_read_page_by_page(api, client, monkeypatch):
    monkeypatch.setattr(client_module, "PAGE", 2)
    for number in range(5):
        job = manifests.job(f"more-{number}")
        job["metadata"]["annotations"][PHASE] = "x"
        api.world.apply(job, settle=False)
    assert [one.name for one in client.list_marked(JOB, "ml")] == [f"more-{number}" for number in range(5)]
    assert len([one for one in api.log if one.path.endswith("/jobs")]) == 3


@pytest.mark.parametrize("group", ["absent.example.com", "batch"])
def test_unknown_kind_has_no_objects(client, group, monkeypatch):
    kind = GroupKind(group, "Thing")
    monkeypatch.setitem(client_module.RESOURCES, kind, Resource("v1", "things"))  # type: ignore[arg-type]
    assert client.list_marked(kind, "ml") == ()


def test_objects_are_found_without_access_to_discovery(api, client):
    api.world.get("batch/v1", "Job", NAME)["metadata"]["annotations"][PHASE] = "x"
    api.faults.at(1, Fault(403))
    assert [one.name for one in client.list_marked(JOB, "ml")] == [NAME]


def test_objects_of_another_version_are_found(api, client, monkeypatch):
    """Otherwise a suspended job would stay suspended after an upgrade of its operator."""
    job_set = manifests.job_set()
    job_set["metadata"]["annotations"][PHASE] = "x"
    api.world.apply(job_set)
    monkeypatch.setitem(client_module.RESOURCES, JOB_SET, client_module.RESOURCES[JOB_SET]._replace(version="v1alpha1"))  # type: ignore[index]
    (found,) = client.list_marked(JOB_SET, "ml")
    assert found.group_version == "jobset.x-k8s.io/v1alpha2"


def test_endless_list_is_given_up(api, client, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_PAGES", 5)
    page = {"items": [], "metadata": {"continue": "again"}}
    api.faults.on("GET", "/pods", Fault(200, body=json.dumps(page).encode()))
    with pytest.raises(Away, match="more than 5 pages"):
        client.list_pods("ml", "a=b")
    assert len(api.log) == 5


def test_compressed_answer_is_not_expanded(api, client, pod_name):
    """1 MB of gzip may hold 1 GB."""
    bomb = Fault(200, {"Content-Encoding": "gzip"}, body=gzip.compress(b" " * 1_000_000 + b"{}"))
    api.faults.at(1, bomb)
    with pytest.raises(Away, match="not JSON"):
        client.get_pod("ml", pod_name)


ERRORS = {
    301: Invalid,
    400: Invalid,
    401: Denied,
    403: Denied,
    404: NotFound,
    405: Invalid,
    408: Away,
    409: Conflict,
    410: Away,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooMany,
    500: Away,
    503: Away,
    504: Away,
}


def status(message: str = "", **details: Any) -> bytes:
    return json.dumps({"kind": "Status", "message": message, "details": details}).encode()


@pytest.mark.parametrize(("code", "kind"), ERRORS.items())
def test_each_status_code_has_its_error(code, kind):
    error = error_of(code, {}, status("because"), "GET x")
    assert type(error) is kind
    assert str(error).startswith(f"GET x: answered {code}: because")


@given(st.integers(300, 999), st.binary(max_size=60), st.dictionaries(st.just("Retry-After"), st.text(max_size=9)))
def test_any_body_and_header_give_an_error(code, content, headers):
    assert "\n" not in str(error_of(code, headers, content, "GET x"))


@pytest.mark.parametrize("content", [b"", b"404 page not found\n", b"<html>", b"[1]", b"{}", b"\xff", b"[" * 100_000])
def test_body_that_is_no_status_is_ignored(content):
    assert str(error_of(404, {}, content, "GET x")) == "GET x: answered 404"


def test_message_is_one_short_line():
    text = str(error_of(409, {}, status("a\n b" + "c" * 5000), "GET x"))
    assert text.startswith("GET x: answered 409: a b")
    assert len(text) < MAX_TEXT + 40


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "10"}, {}, 10.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "10"}, {"retryAfterSeconds": 3}, 10.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({"Retry-After": "-1"}, {}, None),
        ({"Retry-After": "9" * 30}, {}, None),
        ({}, {}, None),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_read(headers, details, seconds, code):
    error = error_of(code, headers, status(**details), "GET x")
    assert isinstance(error, (TooMany, Away))
    assert error.retry_after_s == seconds


def test_immutable_uid_is_a_conflict():
    assert isinstance(
        error_of(422, {}, status(causes=[{"field": "spec.selector"}, {"field": "metadata.uid"}]), "x"), Conflict
    )
    assert isinstance(error_of(422, {}, status(causes=[{"field": "spec.suspend"}, "?"]), "x"), Invalid)


UID = "11111111-0000-4000-8000-000000000000"
JOB_REF = Ref("batch/v1", "Job", "ml", "train", UID)
POD = Pod("ml", "train-0", UID)
VERSIONS = [f"1.{minor}" for minor in (29, 33, 37)]


@pytest.fixture
def sent(client, monkeypatch):
    """The bodies of requests, which are answered with an empty object."""
    bodies: list[dict[str, Any]] = []

    def call(method: str, path: str, body: Any = None, *arguments: Any, **named: Any) -> Any:
        bodies.append(body)
        return {}

    monkeypatch.setattr(client, "_call", call)
    return bodies


def test_bodies_fit_their_schemas(client, sent):
    client.create_event(Event(JOB_REF, "Restarted", "the ratio was 6", at_s=1_800_000_000.25, related=POD.ref))
    client.evict(POD)
    client.can_i("create", JOB, "ml", "eviction")
    client.whoami()
    for body in sent:
        for version in VERSIONS:
            kubernetes_validate.validate(body, version, strict=True)
    event = sent[0]
    assert event["eventTime"] == "2027-01-15T08:00:00.250000Z"
    assert event["reportingController"] == "gpufrag.dev/restarter"
    assert (event["regarding"]["uid"], event["type"]) == (UID, "Normal")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**event, "notes": "x"}, VERSIONS[-1], strict=True)


def test_command_belongs_to_its_job(client, sent):
    client.create_command(Ref(group_version(VOLCANO_JOB), "Job", "ml", "train", UID), "RestartJob", "again")
    (body,) = sent
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": UID, "controller": True}
    assert (body["target"], body["metadata"]["ownerReferences"], body["action"]) == (job, [job], "RestartJob")


@given(st.text(max_size=3000), st.integers(3, 1200))
def test_text_is_cut_by_bytes(text, size):
    found = cut(text, size)
    assert len(found.encode()) <= size
    assert found == text if len(text.encode()) <= size else text.startswith(found.removesuffix("…"))


def test_event_with_a_long_text_is_accepted(client, api):
    client.create_event(Event(JOB_REF, "Restarted", "é" * 1000, at_s=0.0))
    (event,) = api.world.events()
    assert len(event["note"].encode()) <= 1024


META = {"name": "train", "namespace": "ml", "uid": "u", "resourceVersion": "7"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def condition(name: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": status}]}


FINISHED = {
    kinds.JOB: [condition(name) for name in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")],
    kinds.JOB_SET: [condition(name) for name in ("Completed", "Failed")],
    kinds.TRAIN_JOB: [condition(name) for name in ("Complete", "Failed")],
    kinds.PYTORCH_JOB: [condition(name) for name in ("Succeeded", "Failed")],
    kinds.RAY_JOB: [{"jobDeploymentStatus": name} for name in ("Complete", "Failed")],
    kinds.VOLCANO_JOB: [{"state": {"phase": name}} for name in ("Completed", "Failed", "Aborted", "Terminated")],
    kinds.WORKFLOW: [{"phase": name} for name in ("Succeeded", "Failed", "Error")],
}
UNFINISHED = {
    kinds.JOB: [None, condition("Failed", "False"), condition("Suspended")],
    kinds.PYTORCH_JOB: [condition("Running")],
    kinds.RAY_JOB: [{"jobDeploymentStatus": "Running"}, condition("Failed")],
    kinds.VOLCANO_JOB: [{"state": {"phase": "Restarting"}}],
    kinds.WORKFLOW: [{"phase": "Running"}],
    kinds.DEPLOYMENT: [condition("Available")],
}


@pytest.mark.parametrize(("table", "finished"), [(FINISHED, True), (UNFINISHED, False)], ids=["finished", "unfinished"])
def test_finished_job_is_recognised(table, finished):
    for kind, status in [(kind, status) for kind, statuses in table.items() for status in statuses]:
        found = owner_from({"metadata": META, "status": status}, group_version(kind), kind.kind)
        assert found.finished is finished, (kind, status)


def test_deletion_is_recognised():
    raw = {"metadata": {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert owner_from(raw, "batch/v1", "Job").deleting
    assert pod_from(raw).deleting


@pytest.mark.parametrize(
    ("phase", "alive"),
    [("Pending", True), ("Running", True), ("Unknown", True), ("Succeeded", False), ("Failed", False)],
)
def test_pod_is_alive_until_it_ends(phase, alive):
    assert pod_from({"metadata": META, "status": {"phase": phase}}).alive == alive


def test_object_may_lack_empty_parts():
    pod = pod_from({"metadata": {**META, "labels": None, "ownerReferences": None}, "status": None})
    assert (pod.labels, pod.owner_references, pod.phase, pod.ready, pod.ip) == ({}, (), "", False, None)


def test_controller_is_found_among_owners():
    one = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}
    other = {"apiVersion": "batch/v1", "kind": "Job", "name": "b", "uid": "2", "controller": True}
    assert controller_of([one, other], "ml") == Ref("batch/v1", "Job", "ml", "b", "2")
    assert controller_of([{**one, "controller": False}], "ml") is None


@given(JSON)
def test_value_that_is_no_object_is_an_error(raw):
    with pytest.raises(Away, match="not an object"):
        owner_from(raw, "batch/v1", "Job")


def test_unschedulable_pod_shows_the_reason():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}
    pod = pod_from({"metadata": META, "status": {"phase": "Pending", "conditions": [condition]}})
    assert pod.unschedulable == "Unschedulable: 0/8 nodes"


TEXTS = st.text(max_size=3)
PATCHES = st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)
BODIES = st.dictionaries(TEXTS, PATCHES, max_size=3)


@given(BODIES, BODIES)
def test_merged_patches_have_the_effect_of_both(one, other):
    before = repr((one, other))
    assert merge({"kept": 1}, merged(one, other)) == merge(merge({"kept": 1}, one), other)
    assert repr((one, other)) == before


@pytest.fixture
def in_a_pod(tmp_path, certificate, monkeypatch):
    """The API over HTTPS, and the folder with the token and the CA of a pod."""
    (tmp_path / "namespace").write_text("gpufrag")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_bytes(certificate.cert.read_bytes())
    with fake_api(certificate.cert, certificate.key) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        yield api, tmp_path


def from_pod(folder: Path) -> KubernetesClient:
    config = KubeConfig.from_service_account(folder).get()
    assert config is not None
    return KubernetesClient(config, trust_env=False)


def test_pod_finds_its_cluster(in_a_pod):
    with contextlib.closing(from_pod(in_a_pod[1])) as client:
        assert client.whoami() == "system:serviceaccount:gpufrag:restarter"


def test_renewed_token_is_read_and_a_write_sent_once(in_a_pod):
    api, folder = in_a_pod
    job = api.world.apply(manifests.job())
    with contextlib.closing(from_pod(folder)) as client:
        client.whoami()
        api.users["renewed"] = api.users.pop(TOKEN)
        with pytest.raises(Denied, match="401"):
            client.whoami()
        (folder / "token").write_text("renewed")
        ref = Ref("batch/v1", "Job", "ml", "train", job["metadata"]["uid"])
        client.patch(ref, {"metadata": {"annotations": {"a": "b"}}}, None)
    assert [one.code for one in api.log if one.method == "PATCH"] == [401, 200]


def test_unreadable_token_is_denied(in_a_pod):
    with contextlib.closing(from_pod(in_a_pod[1])) as client:
        (in_a_pod[1] / "token").unlink()
        with pytest.raises(Denied, match="cannot read the credentials"):
            client.whoami()


def test_server_with_an_unknown_certificate_is_rejected(in_a_pod, make_certificate):
    api, folder = in_a_pod
    (folder / "ca.crt").write_bytes(make_certificate("another CA").cert.read_bytes())
    with contextlib.closing(from_pod(folder)) as client, pytest.raises(Away, match="certificate verify failed"):
        client.whoami()
    assert api.log == []


def test_kubeconfig_is_found_by_flag_and_environment(api, tmp_path, monkeypatch):
    path = api.write_kubeconfig(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for one in (connect(path), connect(path, context="fake"), connect()):
        with contextlib.closing(one):
            assert one.whoami()


BROKEN = {
    "empty": "",
    "not YAML": "{",
    "no clusters": "{}",
    "no user": json.dumps({"clusters": [{"name": "a", "cluster": {"server": "http://x"}}], "users": []})[:-1]
    + ', "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}',
    "unknown cluster": '{"clusters": [], "users": [], "contexts": [{"name": "a", "context": {"cluster": "b"}}], '
    '"current-context": "a"}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_invalid_kubeconfig_is_named(tmp_path, text):
    (tmp_path / "config").write_text(text)
    with pytest.raises(UsageError, match=str(tmp_path / "config")) as error:
        connect(tmp_path / "config")
    assert len(str(error.value).splitlines()) == 1


def test_missing_cluster_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for path, context in ((tmp_path / "none", None), (None, None)):
        with pytest.raises(UsageError, match="none"):
            connect(path, context)


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightkube.core.generic_client", None)
    spec = importlib.util.find_spec("gpufrag.restarter.kubernetes.client")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(Unavailable, match=r"needs lightkube, .*pip install 'gpufrag\[restarter\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
