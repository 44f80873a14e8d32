"""The kustomize component and the examples: they add the sidecar to a job and keep all of the job."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Sequence
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
    refusal,
    restricted,
    tool,
)

COMPONENT = KUBERNETES / "sidecar"
EXAMPLES = sorted(path.parent.name for path in (KUBERNETES / "examples").glob("*/kustomization.yaml"))
SOURCE: Manifest = read(COMPONENT / "pod.yaml")["spec"]

# The pod templates of each kind. `*` matches every element of a list, but not of a mapping.
REPLICATED = "replicatedJobs.*.template.spec.template"
TEMPLATES = {
    ("batch", "Job"): ["spec.template"],
    ("apps", "Deployment"): ["spec.template"],
    ("apps", "StatefulSet"): ["spec.template"],
    ("jobset.x-k8s.io", "JobSet"): [f"spec.{REPLICATED}"],
    ("trainer.kubeflow.org", "TrainingRuntime"): [f"spec.template.spec.{REPLICATED}"],
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ["spec.leaderWorkerTemplate.workerTemplate"],
    ("batch.volcano.sh", "Job"): ["spec.tasks.*.template"],
}
ROLES = {
    "pytorch-master": (("kubeflow.org", "PyTorchJob"), "spec.pytorchReplicaSpecs.Master.template"),
    "pytorch-worker": (("kubeflow.org", "PyTorchJob"), "spec.pytorchReplicaSpecs.Worker.template"),
    "ray-head": (("ray.io", "RayJob"), "spec.rayClusterSpec.headGroupSpec.template"),
    "ray-workers": (("ray.io", "RayJob"), "spec.rayClusterSpec.workerGroupSpecs.0.template"),
}
"""Components for one role of a kind: kustomize would create a missing role, so users name the roles they have."""
MADE = "# Generated from pod.yaml by tests/deploy (GPUFRAG_UPDATE=1): which part of it goes where.\n"
Templates = dict[tuple[str, str], list[str]]


def replacement(templates: Templates, source: str, target: str, **options: Any) -> Manifest:
    targets = [
        {
            "select": {"group": group, "kind": kind},
            "fieldPaths": [f"{template}.spec.{target}" for template in paths],
            **({"options": options} if options else {}),
        }
        for (group, kind), paths in templates.items()
    ]
    return {"source": {"kind": "Pod", "name": "gpufrag-sidecar", "fieldPath": f"spec.{source}"}, "targets": targets}


def replacements(templates: Templates) -> Iterator[Manifest]:
    """A list element is found by a pattern. If none matches, kustomize creates one that is named like the pattern, and
    looks again: the pattern must match itself, which it does by `!!`, which no name contains.
    """

    def whole(path: str, key: str, value: str) -> Manifest:
        return replacement(templates, f"{path}.[{key}={value}]", f"{path}.[{key}=^{value}$|!!]", create=True)

    (main,) = SOURCE["containers"]
    env = "containers.0.env"
    for row in SOURCE["initContainers"]:
        yield whole("initContainers", "name", row["name"])
    for row in SOURCE["volumes"]:
        yield whole("volumes", "name", row["name"])
    for row in main["volumeMounts"]:
        yield whole("containers.0.volumeMounts", "mountPath", row["mountPath"])
    yield whole(env, "name", "GPUFRAG_DIR")
    # PYTHONPATH: put the shim before the job's own entries (index -1 of a list with the delimiter `:`).
    shim = f"{env}.[name=PYTHONPATH].value"
    yield replacement(templates, shim, f"{env}.[name=^PYTHONPATH$|!!].value", create=True, delimiter=":", index=-1)
    yield replacement(templates, f"{env}.[name=PYTHONPATH].name", f"{env}.[name=^PYTHONPATH$|!!$].name")
    # Without own entries the value ends in `:`, which would add the working directory. A pattern without a match is an
    # error, so GPUFRAG_DIR has the same value for a moment. Patterns see YAML, where a final `:` is quoted.
    yield replacement(templates, shim, f"{env}.[name=^GPUFRAG_DIR$].value")
    yield replacement(templates, shim, f"{env}.[value=^'?{main['env'][1]['value']}:?'?$].value")
    yield replacement(templates, f"{env}.[name=GPUFRAG_DIR].value", f"{env}.[name=^GPUFRAG_DIR$].value")


@pytest.mark.parametrize("role", ["", *ROLES])
def test_replacements_are_generated_from_the_pod(role):
    templates = {ROLES[role][0]: [ROLES[role][1]]} if role else TEMPLATES
    text = yaml.safe_dump(list(replacements(templates)), sort_keys=False, width=120)
    kept(COMPONENT / role / "replacements.yaml", MADE + text)


def test_image_has_this_version():
    images = {container["image"] for container in SOURCE["initContainers"]}
    assert images == {f"gpufrag:{__version__}"}


def example(name: str) -> list[Manifest]:
    folder = KUBERNETES / "examples" / name
    return [row for resource in read(folder / "kustomization.yaml")["resources"] for row in all_of(folder / resource)]


def all_of(path: Path) -> list[Manifest]:
    return documents(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def built(name: str) -> list[Manifest]:
    return kustomize(KUBERNETES / "examples" / name)


@pytest.mark.real
def test_example_loses_nothing(name, built):
    by_kind = {row["kind"]: row for row in built}
    assert [lost(row, by_kind[row["kind"]]) for row in example(name)] == [[]] * len(by_kind)


@pytest.mark.real
def test_example_has_restricted_sidecar_in_every_pod(name, built):
    found = list(pods(built))
    assert len(found) == (2 if name == "pytorchjob" else 1)
    for pod in found:
        agent, sidecar = pod["spec"]["initContainers"]
        (main,) = pod["spec"]["containers"]
        names = agent["name"], sidecar["name"], sidecar["restartPolicy"]
        assert names == ("gpufrag-agent", "gpufrag-sidecar", "Always")
        assert {agent["image"], sidecar["image"]} == {f"registry.example/gpufrag:{__version__}"}
        assert main["image"].startswith("registry.example/"), "the component added a container"
        assert {row["name"] for row in main["env"]} >= {"PYTHONPATH", "GPUFRAG_DIR"}
        assert restricted(pod) == []


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_example_fits_the_schemas(built, version):
    check([row for row in built if is_core(row)], version)
    check(list(pods(built)), version)


def test_example_opts_in(name):
    assert example(name)[-1]["metadata"]["annotations"] == {"gpufrag.dev/restart": "true"}


def test_sidecar_cannot_delay_the_job():
    _, sidecar = SOURCE["initContainers"]
    assert not sidecar.keys() & {"startupProbe", "readinessProbe"}
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in SOURCE["initContainers"])


def test_sidecar_arguments_are_valid():
    _, sidecar = SOURCE["initContainers"]
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    config = serve.configured(parser.parse_args(sidecar["args"]))
    assert config.web.listen_address == f"0.0.0.0:{DEFAULT_PORT}"
    assert config.control.optional, "the sidecar must start without the Secret"
    mounted = {row["name"]: row["mountPath"] for row in sidecar["volumeMounts"]}
    assert str(config.control.token_file) == f"{mounted['gpufrag-checkpoint']}/token"


def test_token_is_optional_and_mounted_by_sidecar_only():
    secret = {row["name"]: row for row in SOURCE["volumes"]}["gpufrag-checkpoint"]["secret"]
    assert secret == {"secretName": "gpufrag-checkpoint", "optional": True}
    agent, _ = SOURCE["initContainers"]
    for container in (agent, *SOURCE["containers"]):
        assert "gpufrag-checkpoint" not in [row["name"] for row in container["volumeMounts"]]


API = {"jobset.x-k8s.io": "v1alpha2"}


def minimal(group: str, kind: str, templates: list[str]) -> Manifest:
    """A manifest of that kind with a pod template at each place."""
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


def plain_job() -> Manifest:
    return minimal("batch", "Job", ["spec.template"])


def write_overlay(folder: Path, manifest: Manifest, component: Path, roles: Sequence[str]) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    components = [os.path.relpath(component / role, folder) for role in ("", *roles)]
    overlay = {"resources": ["job.yaml"], "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")


def with_component(folder: Path, manifest: Manifest, *roles: str) -> list[Manifest]:
    write_overlay(folder, manifest, COMPONENT, roles)
    return [pod["spec"] for pod in pods(kustomize(folder))]


@pytest.mark.real
@pytest.mark.parametrize("kind", TEMPLATES, ids=".".join)
def test_kind_gets_the_sidecar(kind, tmp_path):
    wanted = SOURCE | {"containers": [SOURCE["containers"][0] | {"image": "any"}]}
    assert with_component(tmp_path, minimal(*kind, TEMPLATES[kind])) == [wanted] * len(TEMPLATES[kind])


@pytest.mark.real
def test_names_that_contain_ours_are_left_alone(tmp_path):
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
    before = plain_job()
    before["spec"]["template"]["spec"] = spec
    (after,) = with_component(tmp_path, before)
    assert lost(spec, after) == []
    assert (len(after["initContainers"]), len(after["volumes"])) == (3, 4)
    assert (len(after["containers"][0]["env"]), len(after["containers"][0]["volumeMounts"])) == (4, 5)


OURS = SOURCE["containers"][0]["env"][1]["value"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"value": "/app:/lib"}, {"value": f"{OURS}:/app:/lib"}),
        ({"value": ""}, {"value": OURS}),
        # both fields: the API server refuses the job instead of losing one
        ({"valueFrom": {"fieldRef": {}}}, {"value": OURS, "valueFrom": {"fieldRef": {}}}),
    ],
)
def test_python_path_of_job_is_kept(own, expected, tmp_path):
    before = plain_job()
    before["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "PYTHONPATH", **own}]
    (after,) = with_component(tmp_path, before)
    found = [row for row in after["containers"][0]["env"] if row["name"] == "PYTHONPATH"]
    assert found == [{"name": "PYTHONPATH", **expected}]


ROLE_PAIRS = [("pytorch-master", "pytorch-worker"), ("ray-head", "ray-workers")]


def with_role(role: str, *, container: str = "") -> Manifest:
    """A job with that role only."""
    (group, kind), template = ROLES[role]
    manifest = minimal(group, kind, [template.replace(".0.", ".*.")])
    (pod,) = pods(manifest)
    pod["spec"]["containers"][0]["name"] = container or {"ray-head": "ray-head", "ray-workers": "ray-worker"}.get(
        role, "pytorch"
    )
    return manifest


@pytest.mark.real
@pytest.mark.parametrize("role", ROLES)
def test_role_component_adds_sidecar_and_no_other_role(role, tmp_path):
    (spec,) = with_component(tmp_path, with_role(role), role)
    assert [row["name"] for row in spec["initContainers"]] == ["gpufrag-agent", "gpufrag-sidecar"]
    assert spec["containers"][0]["image"] == "any"


@pytest.mark.real
@pytest.mark.parametrize("pair", ROLE_PAIRS, ids="+".join)
def test_component_of_a_missing_role_fails(pair, tmp_path):
    for role, missing in (pair, pair[::-1]):
        assert "containers/0/name" in failed_component(tmp_path, with_role(role), missing)


@pytest.mark.real
@pytest.mark.parametrize("role", ROLES)
def test_role_component_fails_if_another_container_is_first(role, tmp_path):
    assert "test failed" in failed_component(tmp_path, with_role(role, container="proxy"), role)


def failed_component(folder: Path, manifest: Manifest, *roles: str) -> str:
    write_overlay(folder, manifest, COMPONENT, roles)
    return refusal([tool("kubectl", "pip install -e .[deploy]"), "kustomize", folder])


@pytest.mark.real
def test_component_works_when_copied_elsewhere(tmp_path):
    shutil.copytree(COMPONENT, tmp_path / "gpufrag")
    write_overlay(tmp_path, plain_job(), tmp_path / "gpufrag", ())
    (pod,) = pods(kustomize(tmp_path))
    assert len(pod["spec"]["initContainers"]) == 2
