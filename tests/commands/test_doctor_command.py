"""`gpufrag doctor`: what is looked at, in which form it is told, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fake_agents import FakeAgent
from gpufrag.cli import main
from restarter.fake_api import manifests
from restarter.fake_api.server import fake_api


def test_a_host_without_a_folder_fails_and_every_check_is_heard(tmp_path, capsys):
    assert main(["doctor", "--folder", str(tmp_path / "absent"), "--sidecar", "http://127.0.0.1:1"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 9
    assert told[0].startswith("FAIL  host folder: ")
    assert told[1].startswith("WARN  host files: no rank lives here")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--sidecar", "file:///etc/passwd"], 2, "--sidecar is not a server address"),
        (["--prometheus", "prometheus"], 2, "--prometheus is not a server address"),
        (["--prometheus", "http://me:secret@x:9090"], 2, "--prometheus contains a user or a password"),
        (
            ["--prometheus", "http://x:9090", "--bearer-file", "/none/such"],
            1,
            "--bearer-file: /none/such: No such file",
        ),
    ],
)
def test_an_argument_that_is_none_is_one_line(arguments, code, told, capsys):
    assert main(["doctor", *arguments]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert told in shown.err
    assert "secret" not in shown.err


def test_json_has_a_record_of_each_check(tmp_path, capsys):
    agent = FakeAgent(tmp_path).start()
    try:
        main(["doctor", "--folder", str(tmp_path), "--sidecar", "http://127.0.0.1:1", "--json"])
    finally:
        agent.die()
    records = {record["check"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["files"]["result"] == "ok"
    assert records["sidecar"]["result"] == "fail"
    assert {tuple(record) for record in records.values()} == {("subject", "check", "looks_at", "result", "text")}


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with fake_api() as api:
        api.world.apply(manifests.job())
        yield api.write_kubeconfig(tmp_path / "kubeconfig")


def test_a_cluster_is_looked_at_alone(kubeconfig, capsys):
    assert main(["doctor", "--kubernetes", "--namespace", "ml", "--kubeconfig", str(kubeconfig)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in told} == {"cluster"}
    assert told[0].startswith("  ok  cluster permissions: system:serviceaccount:gpufrag:restarter may restart in ml")
    assert any("FAIL  cluster restarter: no ConfigMap gpufrag/gpufrag-restarter-config" in line for line in told)


def test_a_prometheus_that_is_away_fails_each_of_its_checks(capsys):
    assert main(["doctor", "--prometheus", "http://127.0.0.1:1/"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 4
    assert all(line.startswith("FAIL  prometheus ") and "cannot reach" in line for line in told)


def test_a_cluster_without_its_library_says_what_to_install():
    code = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from gpufrag.cli import main; sys.exit(main(['doctor', '--kubernetes']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(", which is not installed: pip install 'gpufrag[restarter]'\n")
