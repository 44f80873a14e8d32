"""The generated tables in the docs match the code. GPUFRAG_UPDATE=1 updates them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpufrag.restarter.kubernetes.permissions import PERMISSIONS
from gpufrag.restarter.kubernetes.targets import TARGETS, Evict, Rollout, Suspend, Target
from gpufrag.restarter.local.backend import COST as PROCESS_COST
from gpufrag.restarter.metrics import ROWS
from gpufrag.restarter.reasons import REASONS
from gpufrag.restarter.slurm.backend import COST as SLURM_COST
from helpers import TESTS, kept

DOCS = TESTS.parent / "docs"
REFERENCE = DOCS / "restarter-reference.md"
TARGET_INDEX, KUBERNETES = DOCS / "targets" / "README.md", DOCS / "targets" / "kubernetes.md"
HOW = {Suspend: "suspend, wait, resume", Evict: "evict one pod", Rollout: "a new pod template"}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


def how(target: Target) -> str:
    return HOW.get(type(target), "a Volcano command")


TABLES = {
    (REFERENCE, "reasons"): table(
        ("reason", "meaning", "what to do"), ((f"`{one.label}`", one.text, one.remedy) for one in REASONS)
    ),
    (REFERENCE, "restarter metrics"): table(
        ("metric", "type", "labels", "meaning"),
        ((f"`{row.name}`", row.kind, ", ".join(row.labels), row.help) for row in ROWS),
    ),
    (TARGET_INDEX, "targets"): table(
        ("job", "how", "cost in addition to the work since the last checkpoint"),
        [
            *((f"[`{kind}`](kubernetes.md)", how(target), target.cost) for kind, target in TARGETS.items()),
            ("[a process of this host](process.md)", "its supervisor, `gpufrag run --restartable`", PROCESS_COST),
            (
                "[torchrun in place](process.md#torchrun-in-place)",
                "`gpufrag run --restartable --in-place` restarts only the workers",
                "one of torchrun's `--max-restarts` is used",
            ),
            ("[a Slurm job](slurm.md)", "`scontrol requeue`", SLURM_COST),
        ],
    ),
    (KUBERNETES, "permissions"): table(
        ("resource", "group", "verbs", "why", "needed for"),
        (
            (
                f"`{one.resource}`",
                one.kind.group or "core",
                ", ".join(one.verbs),
                one.why,
                ", ".join(f"`{kind}`" for kind in one.targets) or "all",
            )
            for one in PERMISSIONS
        ),
    ),
}


@pytest.mark.parametrize(("path", "name"), TABLES, ids=lambda one: one if isinstance(one, str) else one.stem)
def test_generated_table_is_up_to_date(path, name):
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    assert begin, f"{path}: no place for {name}"
    assert end, f"{path}: no place for {name}"
    kept(path, before + begin + TABLES[path, name] + end + after)
