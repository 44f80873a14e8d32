"""The checks of rendered manifests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from gpufrag.doctor.checks import Fail, Ok, Result, examine
from gpufrag.doctor.manifests import CHECKS, Manifests
from helpers import TESTS

POD: dict[str, Any] = yaml.safe_load((TESTS.parent / "deploy/kubernetes/sidecar/pod.yaml").read_text())["spec"]


def job(change=lambda spec: None, kind: str = "Job", place: str = "template") -> dict[str, Any]:
    spec = copy.deepcopy(POD)
    spec["containers"][0] |= {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    change(spec)
    return {"kind": kind, "metadata": {"name": "llm"}, "spec": {place: {"spec": spec}}}


def look(*documents: Any) -> dict[str, Result]:
    text = yaml.safe_dump_all(documents)
    return {one.check: one.result for one in examine("manifests", CHECKS, Manifests(text))}


def test_job_with_sidecar_is_fine():
    assert {type(result) for result in look(job(), {"kind": "Secret"}).values()} == {Ok}


@pytest.mark.parametrize("documents", [[], [{"kind": "TrainJob", "spec": {}}]])
def test_no_pod_template_fails(documents):
    assert list(look(*documents)) == ["templates"]
    assert isinstance(look(*documents)["templates"], Fail)


def proxy_first(spec):
    main = spec["containers"][0]
    bare = {key: value for key, value in main.items() if key not in ("env", "volumeMounts")}
    spec["containers"] = [{**main, "name": "proxy", "resources": {}}, bare]


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        (lambda spec: spec.pop("initContainers"), "sidecar", "Job llm spec.template: no sidecar"),
        (lambda spec: spec["containers"][0].pop("image"), "templates", "a container has no image"),
        (lambda spec: spec["containers"][0].pop("env"), "agent", "no container has the agent"),
        (lambda spec: spec["containers"][0].update(volumeMounts=[]), "agent", "no container but the sidecar mounts"),
        (proxy_first, "agent", "the agent is in proxy, but the GPU is requested by main"),
    ],
)
def test_template_the_component_did_not_reach_fails(change, check, text):
    result = look(job(change))[check]
    assert isinstance(result, Fail)
    assert text in result.text


def test_templates_of_any_kind_are_found():
    result = look(job(lambda spec: spec.pop("initContainers"), "RayCluster", "headGroupSpec"))["sidecar"]
    assert "RayCluster llm spec.headGroupSpec: no sidecar" in result.text


@pytest.mark.parametrize("text", ["a: [", "\0"])
def test_text_that_is_not_yaml_fails(text):
    (outcome,) = examine("manifests", CHECKS, Manifests(text))
    assert isinstance(outcome.result, Fail)
    assert "not valid YAML" in outcome.result.text
