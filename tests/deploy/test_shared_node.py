"""The sidecar per node, and the pods that use it."""

from __future__ import annotations

import pytest

from gpufrag.attach.agent_copy import install
from gpufrag.commands.run import PACKAGE
from manifests import KUBERNETES, NEWEST, OLDEST, Manifest, check, documents, pods, read, restricted

FOLDER = KUBERNETES / "shared-node"


def manifests() -> list[Manifest]:
    return [row for path in sorted(FOLDER.glob("*.yaml")) for row in documents(path.read_text(encoding="utf-8"))]


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_manifests_fit_the_schemas(version):
    check(manifests(), version)


def test_only_host_paths_and_their_owner_are_not_restricted():
    faults = {fault for pod in pods(manifests()) for fault in restricted(pod)}
    paths = {f"volume {name}: hostPath" for name in ("samples", "agent")}
    assert faults == paths | {"gpufrag-folder: root", "gpufrag-agent: root"}


def test_job_shares_folder_and_group_with_sidecar():
    daemon, job = (next(pods(read(FOLDER / name)))["spec"] for name in ("daemonset.yaml", "job.yaml"))
    (sidecar,) = daemon["containers"]
    assert job["securityContext"]["supplementalGroups"] == [sidecar["securityContext"]["runAsGroup"]]
    where = [{row["name"]: row["hostPath"]["path"] for row in spec["volumes"]} for spec in (daemon, job)]
    assert where[0] == where[1]


@pytest.mark.parametrize(
    "path", [FOLDER / "job.yaml", KUBERNETES / "sidecar" / "pod.yaml"], ids=lambda path: path.parent.name
)
def test_python_path_is_where_install_agent_writes(path, tmp_path):
    pod = read(path)
    spec = next(pods(pod))["spec"] if pod["kind"] == "Job" else pod["spec"]
    (main,) = spec["containers"]
    (mounted,) = [row["mountPath"] for row in main["volumeMounts"] if row.get("readOnly")]
    shim = install.install(PACKAGE, tmp_path).shim.relative_to(tmp_path)
    assert f"{mounted}/{shim}" in [row["value"] for row in main["env"] if row["name"] == "PYTHONPATH"]
