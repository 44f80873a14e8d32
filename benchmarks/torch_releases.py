"""The agent in the CUDA build of every torch release, without a GPU: docs/frameworks.md, "Torch releases".

    PYTHONPATH=exporter:tests python3 benchmarks/torch_releases.py [--releases 2.15.0 ...] [--out torch_releases.json]

Runs tests/cuda_torch in each release and looks up the names of torch that the agent uses. Results are added to the
file, so that releases can be run one at a time; without --releases it prints the tables of what the file holds. Each
release takes a few minutes and 1.5 GB of disk, which is freed afterwards (but for the newest, with --keep for all).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fake_cuda import releases
from fake_cuda.environment import environment

ROOT = Path(__file__).parents[1]
GROUPS = {
    "agent": "figures, snapshots, steps",
    "step_recording": "step recording, peaks",
    "oom_report": "out-of-memory reports",
    "torch_backends": "other allocators",
}
PROBE = """
import json, sys, torch
def has(name):
    found = torch
    for part in name.split("."):
        found = getattr(found, part, None) or sys.modules.get(f"{getattr(found, '__name__', '')}.{part}")
    return found is not None
torch.cuda.init()
history = True
try:
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=1000)
    block = torch.empty(1 << 20, device="cuda")
    history = any(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(enabled=None)
except Exception as error:
    history = f"{type(error).__name__}: {error}"
print(json.dumps({"history": history, "cuda": torch.version.cuda, "names": {name: has(name) for name in sys.argv[1:]}}))
"""


def private_names() -> list[str]:
    """The names of torch, as `_C._cuda_memorySnapshot`, that the agent's sources look up."""
    sources = "".join(path.read_text() for path in (ROOT / "exporter/gpufrag/agent").rglob("*.py"))
    found = set(re.findall(r"\"((?:_C|cuda|optim|nn|autograd|backends)\.\w+(?:\.\w+)*)\"", sources))
    return sorted(found - {"cuda._tls.is_initializing"})  # which exists only while torch initialises CUDA


def measure(release: str, with_tests: bool) -> dict[str, Any]:
    """Run the probe, and the tests, in one release."""
    variables = environment(release)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, *private_names()], env=variables, capture_output=True, text=True, timeout=300
    )
    if probe.returncode:
        return {"error": probe.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(probe.stdout.splitlines()[-1])
    return {**found, "tests": _tests(variables)} if with_tests else found


def _tests(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        files = [f"tests/cuda_torch/test_{group}_cuda.py" for group in GROUPS]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *files, "-p", "no:cacheprovider"]
        subprocess.run([*command, f"--junitxml={file.name}"], cwd=ROOT, env=variables, capture_output=True)
        cases = list(ET.parse(file.name).iter("testcase"))
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        group = case.get("classname", "").rsplit(".", 1)[-1].removeprefix("test_").removesuffix("_cuda")
        entry = found.setdefault(group, {"passed": 0, "failed": {}, "skipped": {}})
        for outcome, key in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            if (element := case.find(outcome)) is not None:
                entry[key][case.get("name")] = str(element.get("message"))[:300]
                break
        else:
            entry["passed"] += 1
    return found


def tables(results: Mapping[str, Mapping[str, Any]]) -> str:
    known = [release for release in releases.RELEASES if release in results]
    groups = [group for group in GROUPS if any(group in results[release].get("tests", {}) for release in known)]
    lines = [f"| torch | CUDA | {' | '.join(GROUPS[group] for group in groups)} | history |"]
    lines.append("| --- " * (len(groups) + 3) + "|")
    for release in known:
        result = results[release]
        cells = [_cell(result.get("tests", {}).get(group)) for group in groups]
        history = "yes" if result.get("history") is True else "no"
        lines.append(f"| {release} | {result.get('cuda', '?')} | {' | '.join(cells)} | {history} |")
    lines += ["", "| name | torch |", "| --- | --- |"]
    names = sorted({name for release in known for name in results[release].get("names", {})})
    for name in names:
        having = [release for release in known if results[release].get("names", {}).get(name)]
        lines.append(f"| `torch.{name}` | {_span(having, known)} |")
    return "\n".join(lines)


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    count = entry["passed"] + len(entry["failed"])
    return f"{entry['passed']} of {count}" if entry["failed"] else "yes" if count else "no"


def _span(having: list[str], known: list[str]) -> str:
    if having == known:
        return "all"
    if not having:
        return "none"
    if having == known[known.index(having[0]) :]:
        return f"{having[0]} and newer"
    if having == known[: known.index(having[-1]) + 1]:
        return f"{having[-1]} and older"
    return ", ".join(having)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="+", default=())
    parser.add_argument("--out", type=Path, default=ROOT / "docs/data/torch_releases.json")
    parser.add_argument("--names-only", action="store_true", help="look up names and history, run no tests")
    parser.add_argument("--keep", action="store_true", help="keep each release in the cache")
    options = parser.parse_args(arguments)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for release in options.releases:
        try:
            results[release] = {**results.get(release, {}), **measure(release, not options.names_only)}
        except releases.Unavailable as error:
            results[release] = {"error": str(error)}
        print(
            release, json.dumps({key: value for key, value in results[release].items() if key != "names"}), flush=True
        )
        options.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        if not options.keep and release != releases.NEWEST:
            releases.remove(release)
    print(tables(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
