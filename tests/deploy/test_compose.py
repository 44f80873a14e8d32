"""The compose files: valid, and each program accepts the files that they mount."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpufrag.restarter import settings
from manifests import DEPLOY, output, read, tool

FOLDER = DEPLOY / "compose"
BASE: dict[str, Any] = read(FOLDER / "compose.yaml")
EXTRA: dict[str, Any] = read(FOLDER / "compose.restarter.yaml")
RESTARTER = "gpufrag-restarter"
KUBECONFIG = "${KUBECONFIG:-~/.kube/config}"


def services(*, restarter: bool) -> dict[str, Any]:
    """Merge the files like docker compose: lists are appended, and a mount replaces one at the same path."""
    merged = {name: dict(service) for name, service in BASE["services"].items()}
    for name, extra in EXTRA["services"].items() if restarter else ():
        service = merged.setdefault(name, {})
        for key, value in extra.items():
            service[key] = [*service.get(key, []), *value] if isinstance(value, list) and key in service else value
    return merged


SERVICES = services(restarter=True)


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Return the files of this repository that a service mounts, by their path in the container."""
    rows = [row.removesuffix(":ro").rsplit(":", 1) for row in service["volumes"] if row.endswith(":ro")]
    return {inside: FOLDER / outside for outside, inside in rows if outside != KUBECONFIG}


def container(service: dict[str, Any], folder: Path) -> Path:
    """Copy the mounts to a folder with the container's paths."""
    for path, source in mounts(service).items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return folder


@pytest.mark.real
@pytest.mark.parametrize("file", ["compose.yaml", "compose.restarter.yaml"])
def test_compose_file_fits_the_schema(file):
    checker = tool("check-jsonschema", "pip install -e .[deploy]")
    output([checker, "--builtin-schema", "vendor.compose-spec", FOLDER / file])


@pytest.mark.parametrize("service", SERVICES)
def test_mounted_files_exist(service):
    assert [str(path) for path in mounts(SERVICES[service]).values() if not path.exists()] == []


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_on_loopback(service):
    assert [port for port in SERVICES[service].get("ports", []) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.real
def test_promtool_accepts_prometheus_config(tmp_path):
    root = container(SERVICES["prometheus"], tmp_path)
    output([tool("promtool", "Debian: prometheus"), "check", "config", root / "etc/prometheus/prometheus.yml"])


@pytest.mark.real
@pytest.mark.parametrize("restarter", [False, True])
def test_amtool_accepts_alertmanager_config(tmp_path, restarter):
    root = container(services(restarter=restarter)["alertmanager"], tmp_path)
    config = root / "etc/alertmanager/alertmanager.yml"
    output([tool("amtool", "Debian: prometheus-alertmanager"), "check-config", config])


def test_nothing_targets_the_restarter_unless_it_is_added(tmp_path):
    base = services(restarter=False)
    assert RESTARTER not in base
    alerts = container(base["alertmanager"], tmp_path / "a") / "etc/alertmanager/alertmanager.yml"
    assert "webhook_configs" not in alerts.read_text()
    scrapes = read(container(base["prometheus"], tmp_path / "p") / "etc/prometheus/prometheus.yml")["scrape_configs"]
    named = [key for row in scrapes for key, value in row.items() if RESTARTER in json.dumps(value)]
    assert named == ["job_name", "dns_sd_configs"], "a name that does not resolve is no target"


def test_grafana_has_datasource_and_dashboards(tmp_path):
    root = container(SERVICES["grafana"], tmp_path)
    provisioned = root / "etc/grafana/provisioning"
    (source,) = read(provisioned / "datasources/gpufrag.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read(provisioned / "dashboards/gpufrag.yaml")["providers"]
    boards = sorted((root / provider["options"]["path"].lstrip("/")).glob("*.json"))
    assert len(boards) >= 3
    assert all(json.loads(path.read_text(encoding="utf-8"))["uid"] for path in boards)


def test_restarter_config_is_dry_run(tmp_path):
    root = container(SERVICES[RESTARTER], tmp_path)
    config = settings.load(root / "etc/gpufrag/restarter.yaml")
    assert (config.policy.dry_run, config.policy.namespaces) == (True, ())
    (secret,) = SERVICES[RESTARTER]["secrets"]
    assert secret["target"] == str(config.auth.bearer_file)


def test_alertmanager_sends_its_token_to_the_restarter(tmp_path):
    root = container(SERVICES["alertmanager"], tmp_path)
    receivers = read(root / "etc/alertmanager/alertmanager.yml")["receivers"]
    (hook,) = next(row["webhook_configs"] for row in receivers if row["name"] == "restarter")
    assert hook["url"] == f"http://{RESTARTER}:{settings.PORT}/v1/alerts"
    (secret,) = SERVICES["alertmanager"]["secrets"]
    assert hook["http_config"]["authorization"]["credentials_file"] == secret["target"]
