"""The units, checked by systemd."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpufrag.restarter import settings
from manifests import DEPLOY, output, tool

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE = 20  # of 100, by systemd's own count; what it calls OK begins at 50


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with the gpufrag of this virtual environment: systemd checks that it exists."""
    path = tmp_path / request.param.name
    here = str(Path(sys.executable).parent / "gpufrag")
    path.write_text(request.param.read_text(encoding="utf-8").replace("/opt/gpufrag/bin/gpufrag", here))
    return path


@pytest.mark.real
def test_systemd_accepts_unit(unit):
    output([tool("systemd-analyze", "Debian: systemd"), "verify", "--man=no", "--recursive-errors=no", unit])


@pytest.mark.real
def test_systemd_rates_unit_as_sandboxed(unit):
    analyze = tool("systemd-analyze", "Debian: systemd")
    output([analyze, "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE}", unit])


def test_restarter_config_names_its_credential():
    config = settings.load(DEPLOY / "systemd" / "restarter.yaml")
    unit = (DEPLOY / "systemd" / "gpufrag-restarter.service").read_text(encoding="utf-8")
    (credential,) = re.findall(r"^LoadCredential=(\w+):", unit, re.MULTILINE)
    assert str(config.auth.bearer_file) == f"/run/credentials/gpufrag-restarter.service/{credential}"
    assert config.policy.dry_run
