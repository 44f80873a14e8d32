"""The page of decisions: one file without external resources. All values are escaped."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from pathlib import Path

from ... import __version__
from ...web.html import STYLE, filled, template
from .. import decisions
from ..decisions import Decision
from ..metrics import CIRCUIT_OPEN, DRY_RUN, IN_PROGRESS, QUEUE, Metrics

_FOLDER = Path(__file__).parent
SHOWN = 200
_VERDICTS = {decisions.RESTARTED: "good", decisions.FAILED: "bad"}


def render(latest: Sequence[Decision], now_s: float, metrics: Metrics) -> bytes:
    """Return the page with the newest decisions and the current state."""
    rows = filled(_FOLDER / "decision.html", map(_row, latest[:SHOWN]))
    page = template(_FOLDER / "index.html").substitute(
        style=STYLE,
        version=html.escape(__version__),
        time=_time(now_s),
        state=html.escape(_state(metrics)),
        decisions=rows or template(_FOLDER / "none.html").substitute(),
    )
    return page.encode()


def _row(decision: Decision) -> dict[str, str]:
    return {
        "time": _time(decision.at_s),
        "outcome": decision.outcome,
        "verdict": _VERDICTS.get(decision.outcome, "unknown"),
        "job": decision.job or f"{decision.namespace}/{decision.pod}".strip("/") or "–",
        "alert": decision.alert or "–",
        "reason": decision.reason,
        "text": decision.text,
    }


def _state(metrics: Metrics) -> str:
    is_open = metrics.value(CIRCUIT_OPEN)
    word = "unknown" if is_open is None else "open" if is_open else "closed"
    running, waiting = metrics.value(IN_PROGRESS) or 0, metrics.value(QUEUE) or 0
    mode = "dry run, " if metrics.value(DRY_RUN) else ""
    return f"{mode}circuit breaker {word}, {running:.0f} restarts in progress, {waiting:.0f} alerts waiting"


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
