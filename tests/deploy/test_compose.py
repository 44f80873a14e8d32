"""The compose file: its form, and each program's view of the files that it mounts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpufrag.restarter import settings
from manifests import DEPLOY, output, read, tool

FOLDER = DEPLOY / "compose"
SERVICES: dict[str, Any] = read(FOLDER / "compose.yaml")["services"]
NOT_OURS = "${KUBECONFIG:-~/.kube/config}"


def mounts(service: str) -> dict[str, Path]:
    """What of this repository is mounted, by its path in the container."""
    rows = [row.removesuffix(":ro").rsplit(":", 1) for row in SERVICES[service]["volumes"] if row.endswith(":ro")]
    return {inside: FOLDER / outside for outside, inside in rows if outside != NOT_OURS}


def inside(service: str, folder: Path) -> Path:
    """The mounts under a folder, as the container has them."""
    for path, source in mounts(service).items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return folder


@pytest.mark.real
def test_it_is_a_compose_file():
    checker = tool("check-jsonschema", "pip install -e .[deploy]")
    output([checker, "--builtin-schema", "vendor.compose-spec", FOLDER / "compose.yaml"])


@pytest.mark.parametrize("service", SERVICES)
def test_all_that_is_mounted_is_there(service):
    assert [str(path) for path in mounts(service).values() if not path.exists()] == []


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_listens_beyond_this_machine(service):
    assert [port for port in SERVICES[service].get("ports", []) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.real
def test_promtool_accepts_what_prometheus_gets(tmp_path):
    root = inside("prometheus", tmp_path)
    output([tool("promtool", "Debian: prometheus"), "check", "config", root / "etc/prometheus/prometheus.yml"])


@pytest.mark.real
def test_amtool_accepts_what_alertmanager_gets(tmp_path):
    root = inside("alertmanager", tmp_path)
    config = root / "etc/alertmanager/alertmanager.yml"
    output([tool("amtool", "Debian: prometheus-alertmanager"), "check-config", config])


def test_grafana_finds_prometheus_and_the_dashboards(tmp_path):
    root = inside("grafana", tmp_path)
    provisioned = root / "etc/grafana/provisioning"
    (source,) = read(provisioned / "datasources/gpufrag.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read(provisioned / "dashboards/gpufrag.yaml")["providers"]
    boards = sorted((root / provider["options"]["path"].lstrip("/")).glob("*.json"))
    assert len(boards) >= 3
    assert all(json.loads(path.read_text(encoding="utf-8"))["uid"] for path in boards)


def test_the_restarter_reads_its_config_and_changes_nothing(tmp_path):
    root = inside("gpufrag-restarter", tmp_path)
    config = settings.load(root / "etc/gpufrag/restarter.yaml")
    assert (config.policy.dry_run, config.policy.namespaces) == (True, ())
    (secret,) = SERVICES["gpufrag-restarter"]["secrets"]
    assert secret["target"] == str(config.auth.bearer_file)


def test_alertmanager_sends_to_the_service_with_the_token_that_it_has():
    receivers = read(DEPLOY / "alertmanager" / "alertmanager.yml")["receivers"]
    (hook,) = next(row["webhook_configs"] for row in receivers if row["name"] == "restarter")
    assert hook["url"] == f"http://gpufrag-restarter:{settings.PORT}/v1/alerts"
    (secret,) = SERVICES["alertmanager"]["secrets"]
    assert hook["http_config"]["authorization"]["credentials_file"] == secret["target"]
