"""The cost of the rules for a real Prometheus that scrapes a simulated fleet.

    PYTHONPATH=exporter python benchmarks/rules.py --jobs 50 --ranks 64 --seconds 400

Needs `prometheus` on the path. Prints the evaluation times of groups and rules (without the first minute), the number
of series, and the memory of Prometheus. On a busy machine, run it with `nice -n -10` as root.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from gpufrag.mixin import rules
from gpufrag.mixin.config import Config
from gpufrag.units import format_bytes

WARM_UP = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--faulty", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=400)
    parser.add_argument(
        "--lean", action="store_true", help="scraped as in deploy/prometheus/large.yml, not as in static.yml"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpufrag-rules-")))
        targets = stack.enter_context(_fleet(options))
        process, url = stack.enter_context(_prometheus(folder, targets, options.lean))
        _report(url, process.pid, _watch(url, options.seconds))


@contextmanager
def _fleet(options: argparse.Namespace) -> Iterator[str]:
    port = _free_port()
    numbers = ["--jobs", options.jobs, "--ranks", options.ranks, "--faulty", options.faulty, "--port", port]
    command = [sys.executable, "-m", "gpufrag", "simulate-fleet", *numbers, "--play", "3m"]
    with _running(["nice", "-n", "19", *command]):  # real targets run on other machines
        url = f"http://127.0.0.1:{port}/targets"
        _wait_for(url)
        yield url


def _wait_for(url: str) -> None:
    """Prometheus would retry an unreachable target list only after a minute."""
    for _ in range(100):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{url} does not answer; see the output of simulate-fleet above")


@contextmanager
def _prometheus(folder: Path, targets: str, lean: bool) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    base = Path(__file__).parents[1] / "deploy" / "prometheus" / ("large.yml" if lean else "static.yml")
    shipped = yaml.safe_load(base.read_text())
    (scrape,) = shipped["scrape_configs"]
    scrape = {key: scrape[key] for key in scrape if not key.endswith("_sd_configs") and key != "static_configs"}
    scrape["http_sd_configs"] = [{"url": targets}]
    config = {"global": shipped["global"], "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
    (folder / "rules.yaml").write_text(rules.rule_file(Config()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = _free_port()
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=error"]
    with _running(["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"]) as process:
        yield process, f"http://127.0.0.1:{port}/api/v1"


@contextmanager
def _running(command: list[Any]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([str(word) for word in command])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _watch(url: str, seconds: float) -> list[dict[str, Any]]:
    """Return every group at every evaluation."""
    begun = time.monotonic()
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    while (passed := time.monotonic() - begun) < seconds:
        time.sleep(5)
        for group in _get(f"{url}/rules")["groups"] if passed > WARM_UP else []:
            seen[group["name"], group["lastEvaluation"]] = group
    return list(seen.values())


def _report(url: str, pid: int, groups: list[dict[str, Any]]) -> None:
    _times("group", [(group["name"], group["evaluationTime"]) for group in groups])
    _times("rule", [(rule["name"], rule["evaluationTime"]) for group in groups for rule in group["rules"]])
    for what, query in {
        "ranks": "count(gpufrag_up)",
        "series scraped": 'sum(scrape_samples_post_metric_relabeling{job="gpufrag"})',
        "series recorded": 'count({__name__=~"(rank|job):gpufrag_.*"})',
        "alerts firing": 'count(ALERTS{alertstate="firing"}) or vector(0)',
        "slowest scrape, seconds": 'max(max_over_time(scrape_duration_seconds{job="gpufrag"}[2m]))',
    }.items():
        print(f"{what}: {_value(url, query)}")
    print(f"Prometheus uses {format_bytes(_resident(pid))}")


def _times(what: str, evaluations: list[tuple[str, float]]) -> None:
    taken: dict[str, list[float]] = {}
    for name, seconds in evaluations:
        taken.setdefault(name, []).append(seconds)
    print(f"{what:<60} evaluations  median s  worst s")
    for name, times in sorted(taken.items(), key=lambda item: -median(item[1]))[:12]:
        print(f"{name:<60} {len(times):>11} {median(times):>9.3f} {max(times):>8.3f}")
    print(f"{'all':<60} {'':>11} {sum(map(median, taken.values())):>9.3f} {sum(map(max, taken.values())):>8.3f}")


def _value(url: str, query: str) -> str:
    found = _get(f"{url}/query?{urllib.parse.urlencode({'query': query})}")["result"]
    return f"{float(found[0]['value'][1]):g}" if found else "nothing"


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]


if __name__ == "__main__":
    main()
