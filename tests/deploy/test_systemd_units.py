"""The units, as systemd reads them."""

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
    """The unit with the gpufrag of this virtual environment: systemd wants to see the program."""
    path = tmp_path / request.param.name
    here = str(Path(sys.executable).parent / "gpufrag")
    path.write_text(request.param.read_text(encoding="utf-8").replace("/opt/gpufrag/bin/gpufrag", here))
    return path


@pytest.mark.real
def test_systemd_understands_it(unit):
    output([tool("systemd-analyze", "Debian: systemd"), "verify", "--man=no", "--recursive-errors=no", unit])


@pytest.mark.real
def test_systemd_finds_it_well_shut_off(unit):
    analyze = tool("systemd-analyze", "Debian: systemd")
    output([analyze, "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE}", unit])


def test_the_restarter_has_the_token_that_its_config_names():
    config = settings.load(DEPLOY / "systemd" / "restarter.yaml")
    unit = (DEPLOY / "systemd" / "gpufrag-restarter.service").read_text(encoding="utf-8")
    (credential,) = re.findall(r"^LoadCredential=(\w+):", unit, re.MULTILINE)
    assert str(config.auth.bearer_file) == f"/run/credentials/gpufrag-restarter.service/{credential}"
    assert config.policy.dry_run
