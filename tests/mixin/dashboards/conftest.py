from __future__ import annotations

import pytest

from render_dashboards.grafana import Board
from render_dashboards.views import read

NAMES = ("gpufrag-device", "gpufrag-fleet", "gpufrag-job")


@pytest.fixture(scope="session")
def boards() -> dict[str, Board]:
    """Every checked-in dashboard, by its uid."""
    return {name: read(name) for name in NAMES}


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> Board:
    """Every dashboard in turn, as a copy that may be changed."""
    return read(request.param)
