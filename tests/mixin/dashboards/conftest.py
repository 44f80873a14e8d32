from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixin.dashboards.grafana import Board

GRAFANA = Path(__file__).parents[3] / "grafana"
NAMES = ("gpufrag-device", "gpufrag-fleet", "gpufrag-job")


def read(name: str) -> Board:
    return json.loads((GRAFANA / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def boards() -> dict[str, Board]:
    """Every dashboard as it is checked in, by its uid."""
    return {name: read(name) for name in NAMES}


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> Board:
    """Every dashboard in turn; a copy of one's own."""
    return read(request.param)


@pytest.fixture(scope="session")
def grafana_folder() -> Path:
    return GRAFANA
