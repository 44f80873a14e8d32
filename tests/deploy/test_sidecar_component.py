"""The kustomize component and the examples: what comes out is a job with a sidecar, and nothing of the job is lost."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufrag import __version__
from gpufrag.commands import serve
from gpufrag.config.sidecar import DEFAULT_PORT
from helpers import kept
from manifests import (
    KUBERNETES,
    NEWEST,
    OLDEST,
    Manifest,
    check,
    documents,
    is_core,
    kustomize,
    lost,
    pods,
    read,
    restricted,
)

COMPONENT = KUBERNETES / "sidecar"
EXAMPLES = sorted(path.parent.name for path in (KUBERNETES / "examples").glob("*/kustomization.yaml"))
SOURCE: Manifest = read(COMPONENT / "pod.yaml")["spec"]

# Where the pods of a kind are; a list is gone through with *, a mapping cannot be.
REPLICATED = "replicatedJobs.*.template.spec.template"
TEMPLATES = {
    ("batch", "Job"): ["spec.template"],
    ("apps", "Deployment"): ["spec.template"],
    ("apps", "StatefulSet"): ["spec.template"],
    ("jobset.x-k8s.io", "JobSet"): [f"spec.{REPLICATED}"],
    ("trainer.kubeflow.org", "TrainingRuntime"): [f"spec.template.spec.{REPLICATED}"],
    ("kubeflow.org", "PyTorchJob"): [f"spec.pytorchReplicaSpecs.{role}.template" for role in ("Master", "Worker")],
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ["spec.leaderWorkerTemplate.workerTemplate"],
    ("batch.volcano.sh", "Job"): ["spec.tasks.*.template"],
}
MADE = "# Made from pod.yaml by the tests of deploy/ (GPUFRAG_UPDATE=1): which part of it goes where in each kind.\n"


def parts() -> Iterator[tuple[str, str, str]]:
    """Of the source: a list within a pod, and the key and value by which one of it is known there."""
    (main,) = SOURCE["containers"]
    for path, key, rows in (
        ("initContainers", "name", SOURCE["initContainers"]),
        ("volumes", "name", SOURCE["volumes"]),
        ("containers.0.env", "name", main["env"]),
        ("containers.0.volumeMounts", "mountPath", main["volumeMounts"]),
    ):
        yield from ((path, key, row[key]) for row in rows)


def replacement(path: str, key: str, value: str) -> Manifest:
    # A pattern, which finds parts of names too unless told. What is not there is made under the pattern's own text, and
    # looked for again: it must find itself, and does so by what no name has.
    target = f"{path}.[{key}=^{value}$|!!]"
    targets = [
        {
            "select": {"group": group, "kind": kind},
            "fieldPaths": [f"{template}.spec.{target}" for template in templates],
            "options": {"create": True},
        }
        for (group, kind), templates in TEMPLATES.items()
    ]
    source = {"kind": "Pod", "name": "gpufrag-sidecar", "fieldPath": f"spec.{path}.[{key}={value}]"}
    return {"source": source, "targets": targets}


def test_every_part_goes_into_every_kind():
    made = yaml.safe_dump([replacement(*part) for part in parts()], sort_keys=False, width=120)
    kept(COMPONENT / "replacements.yaml", MADE + made)


def test_the_image_is_of_this_version():
    images = {container["image"] for container in SOURCE["initContainers"]}
    assert images == {f"gpufrag:{__version__}"}


def example(name: str) -> list[Manifest]:
    folder = KUBERNETES / "examples" / name
    return [row for resource in read(folder / "kustomization.yaml")["resources"] for row in all_of(folder / resource)]


def all_of(path: Path) -> list[Manifest]:
    return documents(path.read_text(encoding="utf-8"))


@pytest.mark.real
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_keeps_all_that_it_had(name):
    built = {row["kind"]: row for row in kustomize(KUBERNETES / "examples" / name)}
    assert [lost(row, built[row["kind"]]) for row in example(name)] == [[]] * len(built)


@pytest.mark.real
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_sidecar_in_every_pod(name):
    found = list(pods(kustomize(KUBERNETES / "examples" / name)))
    assert len(found) == (2 if name == "pytorchjob" else 1)
    for pod in found:
        agent, sidecar = pod["spec"]["initContainers"]
        (main,) = pod["spec"]["containers"]
        assert (agent["name"], sidecar["name"], sidecar["restartPolicy"]) == (
            "gpufrag-agent",
            "gpufrag-sidecar",
            "Always",
        )
        assert main["image"].startswith("registry.example/"), "the patch made a container of its own"
        assert {row["name"] for row in main["env"]} >= {"PYTHONPATH", "GPUFRAG_DIR"}


@pytest.mark.real
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_allowed_where_pod_security_is_restricted(name):
    assert [restricted(pod) for pod in pods(kustomize(KUBERNETES / "examples" / name)) if restricted(pod)] == []


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_the_schemas(name, version):
    built = kustomize(KUBERNETES / "examples" / name)
    check([row for row in built if is_core(row)], version)
    check(list(pods(built)), version)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opts_in(name):
    owner = example(name)[-1]
    assert owner["metadata"]["annotations"] == {"gpufrag.dev/restart": "true"}


@pytest.mark.real
@pytest.mark.parametrize("name", EXAMPLES)
def test_all_images_of_ours_are_replaced(name):
    images = {
        c["image"] for pod in pods(kustomize(KUBERNETES / "examples" / name)) for c in pod["spec"]["initContainers"]
    }
    assert images == {f"registry.example/gpufrag:{__version__}"}


def test_the_sidecar_never_holds_up_the_job():
    _, sidecar = SOURCE["initContainers"]
    assert not sidecar.keys() & {"startupProbe", "readinessProbe"}
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in SOURCE["initContainers"])


def test_the_sidecar_understands_what_it_is_told():
    _, sidecar = SOURCE["initContainers"]
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    config = serve.configured(parser.parse_args(sidecar["args"]))
    assert config.web.listen_address == f"0.0.0.0:{DEFAULT_PORT}"
    assert config.control.optional, "a Secret that nobody made keeps no sidecar from starting"
    mounted = {row["name"]: row["mountPath"] for row in sidecar["volumeMounts"]}
    assert str(config.control.token_file) == f"{mounted['gpufrag-checkpoint']}/token"


def test_the_token_may_be_missing_and_is_for_the_sidecar_alone():
    secret = {row["name"]: row for row in SOURCE["volumes"]}["gpufrag-checkpoint"]["secret"]
    assert secret == {"secretName": "gpufrag-checkpoint", "optional": True}
    agent, _ = SOURCE["initContainers"]
    for container in (agent, *SOURCE["containers"]):
        assert "gpufrag-checkpoint" not in [row["name"] for row in container["volumeMounts"]]


API = {"batch": "v1", "apps": "v1", "kubeflow.org": "v1", "jobset.x-k8s.io": "v1alpha2"}


def minimal(group: str, kind: str, templates: list[str]) -> Manifest:
    """Of that kind, with one pod at each place where it can have one."""
    made: Manifest = {"apiVersion": f"{group}/{API.get(group, 'v1')}", "kind": kind, "metadata": {"name": "any"}}
    for template in templates:
        value: Any = {"spec": {"containers": [{"name": "any", "image": "any"}]}}
        *above, last = template.split(".")
        inner: Any = made
        for key, following in zip(above, [*above[1:], last]):
            empty: Any = [{}] if following == "*" else {}
            inner = inner[0] if key == "*" else inner.setdefault(key, empty)
        inner[last] = value
    return made


def with_component(folder: Path, manifest: Manifest) -> list[Manifest]:
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    overlay = {"resources": ["job.yaml"], "components": [os.path.relpath(COMPONENT, folder)]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return [pod["spec"] for pod in pods(kustomize(folder))]


@pytest.mark.real
@pytest.mark.parametrize("kind", TEMPLATES, ids=".".join)
def test_every_kind_gets_the_sidecar(kind, tmp_path):
    wanted = SOURCE | {"containers": [SOURCE["containers"][0] | {"image": "any"}]}
    assert with_component(tmp_path, minimal(*kind, TEMPLATES[kind])) == [wanted] * len(TEMPLATES[kind])


@pytest.mark.real
def test_names_that_hold_ours_are_left_alone(tmp_path):
    main = {
        "name": "main",
        "image": "any",
        "env": [{"name": "EXTRA_PYTHONPATH", "value": "/extra"}, {"name": "MY_GPUFRAG_DIR", "value": "/mine"}],
        "volumeMounts": [
            {"name": path[-1], "mountPath": path} for path in ("/data/gpufrag", "/gpufrag-2", "/run/gpufrag/x")
        ],
    }
    spec = {
        "hostUsers": False,
        "containers": [main, {"name": "proxy", "image": "any"}],
        "initContainers": [{"name": "my-gpufrag-agent", "image": "any"}],
        "volumes": [{"name": "my-gpufrag-samples", "emptyDir": {}}],
    }
    before = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "own"},
        "spec": {"template": {"spec": spec}},
    }
    (after,) = with_component(tmp_path, before)
    assert lost(spec, after) == []
    assert (len(after["initContainers"]), len(after["volumes"])) == (3, 4)
    assert (len(after["containers"][0]["env"]), len(after["containers"][0]["volumeMounts"])) == (4, 5)


@pytest.mark.real
def test_a_python_path_from_elsewhere_is_replaced_and_stays_one(tmp_path):
    before = minimal("batch", "Job", ["spec.template"])
    before["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "paths", "key": "python"}}}
    ]
    (after,) = with_component(tmp_path, before)
    found = [row for row in after["containers"][0]["env"] if row["name"] == "PYTHONPATH"]
    assert found == [{"name": "PYTHONPATH", "value": "/gpufrag/gpufrag/shim"}]
