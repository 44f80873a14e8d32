"""The checks of rendered manifests: does every pod template have a working sidecar, before anything is applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from ..errors import BadInput
from .checks import Check, Fail, Ok, Result, some
from .pods import SHIM, Spec, environment, main_containers, sidecar_of, volume_problem


@dataclass(frozen=True)
class Manifests:
    text: str

    @cached_property
    def templates(self) -> dict[str, Spec]:
        """Return every pod template by its place, for example `Job llm spec.template`. Raises BadInput."""
        try:
            documents = [one for one in yaml.safe_load_all(self.text) if isinstance(one, dict)]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = "" if mark is None else f" at line {mark.line + 1}"
            problem = getattr(error, "problem", None) or error
            raise BadInput(f"manifests are not valid YAML{line}: {' '.join(str(problem).split())[:200]}") from None
        return {
            f"{one.get('kind', 'object')} {(one.get('metadata') or {}).get('name', '?')} {place}".strip(): template
            for one in documents
            for place, template in _templates(one, "")
        }


def _templates(value: Any, place: str) -> Iterator[tuple[str, Spec]]:
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield place, value
        for key, inner in value.items():
            yield from _templates(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _templates(inner, f"{place}[{index}]")


def templates(manifests: Manifests) -> Result:
    if not manifests.templates:
        return Fail("no pod template found; for a TrainJob, check its TrainingRuntime")
    broken = [
        place
        for place, template in manifests.templates.items()
        if not all(one.get("image") for one in template["spec"]["containers"])
    ]
    if broken:
        return Fail(f"{some(broken)}: a container has no image: a patch or component created a role that the job lacks")
    return Ok(f"{len(manifests.templates)} pod template(s)")


def sidecars(manifests: Manifests) -> Result:
    missing = [place for place, template in manifests.templates.items() if sidecar_of(template) is None]
    if missing:
        return Fail(
            f"{some(missing)}: no sidecar; the component does not know this kind, or needs the component of a role "
            "(pytorch-master, pytorch-worker, ray-head, ray-workers); see kubernetes.md"
        )
    return Ok("every pod template has the sidecar")


def agents(manifests: Manifests) -> Result:
    """The agent must be in the container that requests a GPU."""
    for place, template in manifests.templates.items():
        sidecar = sidecar_of(template)
        if sidecar is None:
            continue
        mains = main_containers(template, sidecar)
        with_agent = [one["name"] for one in mains if SHIM in environment(one).get("PYTHONPATH", "")]
        resources = {one["name"]: one.get("resources") or {} for one in mains}
        with_gpu = [
            name
            for name, of in resources.items()
            if any("gpu" in kind or "/mig-" in kind for part in ("requests", "limits") for kind in of.get(part) or ())
        ]
        if not with_agent:
            return Fail(f"{place}: no container has the agent: PYTHONPATH does not contain {SHIM}")
        if with_gpu and not set(with_gpu) & set(with_agent):
            return Fail(
                f"{place}: the agent is in {some(with_agent)}, but the GPU is requested by {some(with_gpu)}; put that "
                "container first"
            )
        if problem := volume_problem(template, sidecar):
            return Fail(f"{place}: {problem}")
    return Ok("the agent is in the container that uses the GPU; if its image sets PYTHONPATH, repeat that in its env")


CHECKS: tuple[Check[Manifests], ...] = (
    Check("templates", "are there pod templates, with an image in every container", templates, gate=True),
    Check("sidecar", "does every pod template have the sidecar", sidecars),
    Check("agent", "is the agent in the container that uses the GPU, and does it share the sidecar's volume", agents),
)
