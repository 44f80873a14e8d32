"""`gpufrag doctor`: which checks run, the output and the exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from fake_agents import FakeAgent
from gpufrag.cli import main
from restarter.fake_api import manifests
from restarter.fake_api.server import fake_api


def test_host_without_folder_fails_and_runs_all_tables(tmp_path, capsys):
    assert main(["doctor", "--folder", str(tmp_path / "absent"), "--sidecar", "http://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
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
        (["--manifests", "/none/such"], 1, "cannot read /none/such: No such file"),
    ],
)
def test_unusable_argument_is_one_line(arguments, code, text, capsys):
    assert main(["doctor", *arguments]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert text in shown.err
    assert "secret" not in shown.err


def test_json_has_a_record_per_check(tmp_path, capsys):
    agent = FakeAgent(tmp_path).start()
    try:
        main(["doctor", "--folder", str(tmp_path), "--sidecar", "http://127.0.0.1:1", "--json"])
    finally:
        agent.die()
    records = {record["check"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["ranks"]["result"] == "ok"
    assert records["sidecar"]["result"] == "fail"
    assert {tuple(record) for record in records.values()} == {("subject", "check", "looks_at", "result", "text")}


def test_manifests_are_read_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: TrainJob\n"))
    assert main(["doctor", "--manifests", "-"]) == 1
    assert "manifests templates: no pod template found" in capsys.readouterr().out


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with fake_api() as api:
        api.world.apply(manifests.job())
        metadata = {"name": "kube-root-ca.crt", "namespace": "ml"}
        api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        yield api.write_kubeconfig(tmp_path / "kubeconfig")


def test_cluster_alone_is_checked(kubeconfig, capsys):
    assert main(["doctor", "--kubernetes", "--namespace", "ml", "--kubeconfig", str(kubeconfig)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} == {"cluster"}
    assert lines[0].startswith("     ok  cluster credentials: the API server accepts ")
    assert any("FAIL  cluster restarter: no ConfigMap gpufrag/gpufrag-restarter-config" in line for line in lines)


def test_unreachable_prometheus_fails_once(capsys):
    assert main(["doctor", "--prometheus", "http://127.0.0.1:1/"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("   FAIL  prometheus reachable: cannot reach ")


def test_missing_kubernetes_client_says_what_to_install():
    code = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from gpufrag.cli import main; sys.exit(main(['doctor', '--kubernetes']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(", which is not installed: pip install 'gpufrag[restarter]'\n")
