"""The cost of scraping 8 ranks: time over HTTP on loopback, and the memory of the sidecar.

    python3 benchmarks/scrape.py [--ranks 8] [--scrapes 1000] [--json FILE]

Each rank has two snapshots of a recorded heap and a real control socket, and writes its file once per second, like an
agent. The scraper behaves like Prometheus: one connection, OpenMetrics, gzip. For comparison, it also measures the time
that prometheus_client alone needs to write the same families. Exits with 1 if the sidecar uses more memory than
--budget-mib (default: 45).
"""

from __future__ import annotations

import argparse
import http.client
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "exporter"), str(ROOT / "tests")]

from prometheus_client.openmetrics.exposition import generate_latest  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

from fake_agents import process_sample  # noqa: E402 (the path comes first)
from gpufrag.metrics import families  # noqa: E402
from gpufrag.metrics.view import Fleet, RankView  # noqa: E402
from gpufrag.wire.control_server import ControlServer  # noqa: E402
from gpufrag.wire.error_counter import ErrorCounter  # noqa: E402
from gpufrag.wire.folder import FileName, write_file  # noqa: E402
from gpufrag.wire.sample import ProcessSample, encode  # noqa: E402

ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
WARM_UP = 50


@dataclass(frozen=True)
class Times:
    """In milliseconds."""

    p50_ms: float
    p99_ms: float
    slowest_ms: float


@dataclass(frozen=True)
class Report:
    """Sizes in bytes, memory in MiB. `rss_mib` is after the last scrape; `private_mib` excludes mapped files."""

    ranks: int
    scrapes: int
    series: int
    body_bytes: int
    gzip_bytes: int
    rss_idle_mib: float
    rss_mib: float
    private_mib: float
    cpu_ms_per_scrape: float
    scrape: Times
    floor: Times


def main() -> int:
    options = _options()
    samples = [process_sample(rank, time.time()) for rank in range(options.ranks)]
    with (
        tempfile.TemporaryDirectory(prefix="gpufrag-bench-") as folder,
        agents(Path(folder), samples),
        sidecar(folder) as (pid, port),
    ):
        report = measure(samples, pid, port, options.scrapes)
    print(table(report))
    text = json.dumps(asdict(report), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return int(report.rss_mib > options.budget_mib)


def measure(samples: list[ProcessSample], pid: int, port: int, scrapes: int) -> Report:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    idle = _memory(pid)["VmRSS"]
    for _ in range(WARM_UP):
        zipped = scrape(connection)
    cpu = _cpu_seconds(pid)
    scraped = timed(lambda: scrape(connection), scrapes)
    cpu = _cpu_seconds(pid) - cpu
    plain = scrape(connection, encoding="identity")
    memory = _memory(pid)
    return Report(
        ranks=len(samples),
        scrapes=scrapes,
        series=sum(not line.startswith(b"#") for line in plain.splitlines()),
        body_bytes=len(plain),
        gzip_bytes=len(zipped),
        rss_idle_mib=idle,
        rss_mib=memory["VmRSS"],
        private_mib=memory["RssAnon"],
        cpu_ms_per_scrape=round(cpu / scrapes * 1000, 2),
        scrape=scraped,
        floor=floor(samples, scrapes),
    )


def scrape(connection: http.client.HTTPConnection, encoding: str = "gzip") -> bytes:
    connection.request("GET", "/metrics", headers={"Accept": ACCEPT, "Accept-Encoding": encoding})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"a scrape was answered {answer.status}: {body[:200]!r}")
    return body


def floor(samples: list[ProcessSample], times: int) -> Times:
    """Measure prometheus_client alone, on families that are already built."""

    class Made(Collector):
        def __init__(self) -> None:
            self._families = list(families(Fleet(time.time(), tuple(map(RankView, samples)))))

        def collect(self):  # type: ignore[no-untyped-def]
            return self._families

    made, fastest = Made(), {}
    if "escaping" in inspect.signature(generate_latest).parameters:
        fastest = {"escaping": "allow-utf-8"}
    return timed(lambda: generate_latest(made, **fastest), times)


def timed(call: Callable[[], object], times: int) -> Times:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1000)
    cuts = statistics.quantiles(taken, n=100)
    return Times(round(cuts[49], 2), round(cuts[98], 2), round(max(taken), 2))


@contextmanager
def agents(folder: Path, samples: list[ProcessSample]) -> Iterator[None]:
    """Listen and write once per second, like agents."""
    ended = threading.Event()
    names = [FileName.of(sample.identity) for sample in samples]
    controls = [ControlServer(folder / name.socket, {}, ErrorCounter()) for name in names]

    def write() -> None:
        for name, sample in zip(names, samples):
            write_file(folder / name.sample, encode(replace(sample, time=time.time())))

    def write_on() -> None:
        while not ended.wait(1.0):
            write()

    write()
    writer = threading.Thread(target=write_on)
    writer.start()
    yield
    ended.set()
    writer.join()
    for control in controls:
        control.close()


@contextmanager
def sidecar(folder: str) -> Iterator[tuple[int, int]]:
    """Run a real sidecar; yield (pid, port) once it listens."""
    command = [sys.executable, "-m", "gpufrag", "serve", "--port", "0", "--folder", folder]
    path = os.pathsep.join(filter(None, [str(ROOT / "exporter"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr
    try:
        line = next((line for line in process.stderr if "msg=" in line or "gpufrag:" in line), "")
        if "msg=listening" not in line:
            raise SystemExit(f"the sidecar did not start: {line.strip()}")
        yield process.pid, int(line.partition("address=")[2].split()[0].rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate()


def table(report: Report) -> str:
    lines = [f"{'':<22}{'p50 ms':>8}{'p99 ms':>8}{'slowest':>9}"]
    for name, times in (("scrape over HTTP", report.scrape), ("prometheus_client", report.floor)):
        lines.append(f"{name:<22}{times.p50_ms:>8.2f}{times.p99_ms:>8.2f}{times.slowest_ms:>9.2f}")
    size = f"{report.body_bytes >> 10} KiB ({report.gzip_bytes >> 10} zipped)"
    lines.append(f"{report.scrapes} scrapes of {report.ranks} ranks: {report.series} series, {size}")
    lines.append(f"sidecar: {report.rss_mib:.1f} MiB resident ({report.rss_idle_mib:.1f} before the first scrape)")
    return "\n".join(lines)


def _memory(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {key: round(int(value.split()[0]) / 1024, 1) for key, value in pairs if value.endswith(" kB")}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=1000)
    parser.add_argument("--budget-mib", type=float, default=45.0)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
