"""`gpufrag oom explain`: each error of a log with its verdict, as text for people or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, NamedTuple

from ..model.verdict import Verdict
from ..oom_log import Oom
from ..units import format_bytes
from .terminal import Emphasis

_WIDTH = 110
_LABEL = 12


class Explained(NamedTuple):
    oom: Oom
    verdict: Verdict


def as_record(explained: Explained) -> dict[str, Any]:
    """One object of --json; null is what the log does not tell."""
    oom, verdict = explained
    return {
        "line": oom.line,
        "source": oom.source or None,
        "device": oom.device,
        "allocator": oom.facts.allocator,
        "verdict": verdict.cause.value,
        "requested_bytes": oom.facts.requested,
        "free_total_bytes": oom.facts.known_free,
        "evidence": list(verdict.evidence),
        "missing": list(verdict.missing),
        "next_step": verdict.next_step,
    }


def as_text(explained: Explained, bold: Emphasis = str) -> str:
    oom, verdict = explained
    where = [f"line {oom.line:,}", oom.source, "" if oom.device is None else f"GPU {oom.device}", oom.facts.allocator]
    lines = [bold(f"{verdict.cause.value.upper()}  ({', '.join(filter(None, where))})")]
    if oom.facts.requested is not None:
        lines += _row("asked for", format_bytes(oom.facts.requested))
    for label, texts in (("because", verdict.evidence), ("not known", verdict.missing), ("next", (verdict.next_step,))):
        for index, text in enumerate(texts):
            lines += _row("" if index else label, text)
    return "\n".join(lines)


def _row(label: str, text: str) -> Iterator[str]:
    for index, line in enumerate(wrap(text, _WIDTH - _LABEL, break_on_hyphens=False)):
        yield f"  {'' if index else label:<{_LABEL}}{line}"
