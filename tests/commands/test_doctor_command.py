"""`gpufrag doctor`: which checks run, the output and the exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from fake_agents import FakeAgent
from restarter.fake_api import manifests
from restarter.fake_api.server import fake_api


def failed(cli, *words):
    """The lines of a run in which a check fails."""
    code, out, _ = cli.run("doctor", *words)
    assert code == 1
    return out.splitlines()


def test_host_without_folder_fails_and_runs_all_tables(cli, tmp_path):
    lines = failed(cli, "--folder", tmp_path / "absent", "--sidecar", "http://127.0.0.1:1")
    assert [line.split()[2] for line in lines] == ["folder:", "ranks:", "nvml:", "sidecar:", "injection:"]
    assert lines[0].startswith("   FAIL  host folder: ")
    assert sum("no living rank" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--sidecar", "file:///etc/passwd"], 2, "--sidecar is not a server address"),
        (["--prometheus", "prometheus"], 2, "--prometheus is not a server address"),
        (["--prometheus", "http://me:secret@x:9090"], 2, "--prometheus contains a user or a password"),
        (["--prometheus", "http://x:9090", "--bearer-file", "/none/such"], 1, "/none/such: No such file"),
        (["--sidecar", "https://x:9836", "--ca-file", "/none/such"], 1, "/none/such"),
        (["--namespace", "ml"], 2, "--namespace requires --kubernetes"),
        (["--host", "--restarter", "r"], 2, "--restarter requires --kubernetes"),
        (["--bearer-file", "token"], 2, "--bearer-file requires --prometheus"),
        (["--manifests", "/none/such"], 1, "cannot read /none/such: No such file"),
    ],
)
def test_unusable_argument_is_one_line(cli, arguments, code, text):
    found, error = cli.refusal("doctor", *arguments)
    assert (found, text in error, "secret" in error) == (code, True, False)


def test_json_has_a_record_per_check(cli, tmp_path):
    agent = FakeAgent(tmp_path).start()
    _, out, _ = cli.run("doctor", "--folder", tmp_path, "--sidecar", "http://127.0.0.1:1", "--json")
    agent.die()
    records = {record["check"]: record for record in json.loads(out)}
    assert records["ranks"]["result"] == "ok"
    assert records["sidecar"]["result"] == "fail"
    assert {tuple(record) for record in records.values()} == {("subject", "check", "looks_at", "result", "text")}


def test_manifests_are_read_from_standard_input(cli, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: TrainJob\n"))
    (line,) = failed(cli, "--manifests", "-")
    assert "manifests templates: no pod template found" in line


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with fake_api() as api:
        api.world.apply(manifests.job())
        metadata = {"name": "kube-root-ca.crt", "namespace": "ml"}
        api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        yield api.write_kubeconfig(tmp_path / "kubeconfig")


def test_cluster_alone_is_checked(cli, kubeconfig):
    lines = failed(cli, "--kubernetes", "--namespace", "ml", "--kubeconfig", kubeconfig)
    assert {line.split()[1] for line in lines} == {"cluster"}
    assert lines[0].startswith("     ok  cluster credentials: the API server accepts ")
    assert any("FAIL  cluster restarter: no ConfigMap gpufrag/gpufrag-restarter-config" in line for line in lines)


def test_unreachable_prometheus_fails_once(cli):
    (line,) = failed(cli, "--prometheus", "http://127.0.0.1:1/")
    assert line.startswith("   FAIL  prometheus reachable: cannot reach ")


def test_missing_kubernetes_client_says_what_to_install():
    code = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from gpufrag.cli import main; sys.exit(main(['doctor', '--kubernetes']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(", which is not installed: pip install 'gpufrag[restarter]'\n")
