"""One agent with its thread, file, reports and socket, over a scripted source."""

import json
import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from agent.programs import CUDA, SCRIPTED
from fake_source import LiveSource
from gpufrag.agent.agent import keep_report
from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.wire import recording
from gpufrag.wire.folder import HEAP_SUFFIX, RECORDING_SUFFIX, FileName, ReportName
from gpufrag.wire.oom_report import OomReport
from gpufrag.wire.oom_report import decode as decode_report
from gpufrag.wire.sample import Identity, ProcessSample, decode
from unix_sockets import connect

FAST: dict[str, Any] = {"interval": 0.05, "budget": 1.0, "publish_every": 0.02}
GIB = 1 << 30
KEPT = 2_000_000


def published(folder: Path) -> ProcessSample | None:
    files = [file for file in folder.glob("*.json") if FileName.parse(file.name)]
    return decode(files[0].read_bytes()) if files else None


def moments(folder: Path) -> set[str]:
    """Of the files that the sidecar measures."""
    files = [file for suffix in (RECORDING_SUFFIX, HEAP_SUFFIX) for file in folder.glob(f"*{suffix}")]
    return {recording.decode(file.read_bytes()).at for file in files}


def reports(folder: Path) -> list[OomReport]:
    names = filter(None, map(ReportName.parse, os.listdir(folder)))
    return [decode_report((folder / name.file).read_bytes()) for name in sorted(names)]


def ask(folder: Path, command: str) -> dict[str, Any]:
    (path,) = folder.glob("*.sock")
    with connect(path) as caller, caller.makefile("rb") as answers:
        caller.sendall(json.dumps({"command": command}).encode() + b"\n")
        return json.loads(answers.readline())


# --- samples and the control socket


def test_agent_listens_before_it_publishes(begin, tmp_path: Path) -> None:
    begin(**FAST)
    (file,), (listener,) = tmp_path.glob("*.json"), tmp_path.glob("*.sock")
    assert file.stem == listener.stem
    assert ask(tmp_path, "ping")["ok"]


def test_agent_without_steps_samples_by_the_timer(begin, source, tmp_path: Path, eventually) -> None:
    source.steps = False
    begin(**FAST)
    eventually(lambda: moments(tmp_path) == {"timer"})


def test_agent_with_steps_samples_at_the_boundary(begin, source, tmp_path: Path, eventually) -> None:
    begin(publish_every=0.02)
    source.step()
    eventually(lambda: moments(tmp_path) == {"boundary"})
    assert published(tmp_path).steps == 1


def test_sample_now_publishes_a_fresh_sample(begin, source, tmp_path: Path) -> None:
    begin()
    answer = ask(tmp_path, "sample-now")
    assert (answer["ok"], answer["time"]) == (True, published(tmp_path).time)
    assert moments(tmp_path) == {"timer"}
    assert ask(tmp_path, "sample-now")["time"] > answer["time"]
    assert source.captures == 1, "a second request gets the same snapshot"


def test_sample_now_times_out_with_an_error(begin, source, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("gpufrag.agent.agent.ANSWER_TIMEOUT", 0.05)
    begin()
    source.read = lambda: 1 // 0
    answer = ask(tmp_path, "sample-now")
    assert (answer["ok"], "ask again later" in answer["error"]) == (False, True)


def test_stop_publishes_last_sample_and_closes_socket(begin, source, tmp_path: Path) -> None:
    agent = begin()
    source.ooms = 7
    agent.stop()
    assert published(tmp_path).devices[0].totals.counters.ooms == 7
    assert list(tmp_path.glob("*.sock")) == []
    assert source.on_step is None
    assert not [thread for thread in threading.enumerate() if thread.name == "gpufrag-sampler"]


def test_missing_folder_is_logged_once(begin, source, errors, tmp_path: Path, eventually, caplog) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        agent = begin(**FAST, folder=tmp_path / "file" / "folder")
        eventually(lambda: errors.counts.get("publish", 0) > 3)
        source.step()
        eventually(lambda: agent.latest and agent.latest.devices[0].snapshots)
    (record,) = caplog.records
    assert "set GPUFRAG_DIR" in record.getMessage()


def test_folder_that_becomes_usable_is_used(begin, errors, tmp_path: Path, eventually) -> None:
    place = tmp_path / "place"
    place.touch()
    begin(**FAST, folder=place)
    eventually(lambda: errors.counts.get("publish"))
    place.unlink()
    eventually(lambda: published(place))
    assert ask(place, "ping")["ok"]


def test_deleted_folder_and_socket_are_created_again(begin, tmp_path: Path, eventually) -> None:
    place = tmp_path / "place"
    begin(**FAST, folder=place)
    eventually(lambda: published(place))
    place.rename(tmp_path / "elsewhere")
    eventually(lambda: place.is_dir() and published(place))
    next(iter(place.glob("*.sock"))).unlink()
    eventually(lambda: list(place.glob("*.sock")))
    assert ask(place, "ping")["ok"]


def test_file_and_socket_stay_in_one_folder(begin, tmp_path: Path, eventually, monkeypatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    folders = iter([first, second])
    monkeypatch.setattr("gpufrag.agent.agent.to_write", lambda environment: next(folders))
    begin(**FAST)
    written = first.stat().st_mtime_ns
    eventually(lambda: first.stat().st_mtime_ns > written)
    assert list(second.iterdir()) == []


def test_failing_source_is_read_only_when_due(begin, source, errors, eventually) -> None:
    read, source.read = source.read, lambda: 1 // 0
    agent = begin(wait=False, publish_every=0.02)
    eventually(lambda: errors.counts.get("sampler", 0) >= 3)
    source.read = read
    eventually(lambda: agent.latest and agent.latest.devices)
    assert agent.latest.health.errors == {"sampler": errors.counts["sampler"]}


def test_rank_set_late_is_published(begin, tmp_path: Path, eventually, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    begin(**FAST)
    monkeypatch.setenv("RANK", "3")
    eventually(lambda: published(tmp_path).identity.rank == 3)
    assert len(list(tmp_path.glob("*.json"))) == 1


# --- leaks


def test_leak_is_logged_as_soon_as_it_is_certain(begin, tmp_path: Path, eventually, caplog) -> None:
    leaking = LiveSource(cost=0.0)
    agent = begin(leaking)
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for _ in range(60):
            leaking.keep(KEPT)
            leaking.step()
        eventually(lambda: agent.latest.devices[0].leak)
    assert len(caplog.messages) == 1
    sample = published(tmp_path)
    found = {family.name: family for family in families(Fleet(sample.time, (RankView(sample),)))}
    assert [round(series.value) for series in found["gpufrag_leak_bytes_per_step"].samples] == [KEPT]


def test_device_used_later_is_read_after_first_step(begin, eventually) -> None:
    absent = LiveSource(cost=0.0, present=False)
    agent = begin(absent)
    assert agent.latest.devices == ()
    absent.present = True
    absent.step()
    eventually(lambda: agent.latest.devices)


# --- out-of-memory errors: a report and a count that outlive the process


def test_oom_is_published_at_once_without_a_snapshot(begin, source, tmp_path: Path, eventually) -> None:
    agent = begin()
    source.fail(100 * GIB)
    eventually(lambda: published(tmp_path).devices[0].ooms.causes["limit"] == 1)
    assert [report.requested for report in reports(tmp_path)] == [100 * GIB]
    assert (source.captures, agent.latest.devices[0].snapshots) == (1, ())


def test_report_creates_a_deleted_folder(begin, source, tmp_path: Path) -> None:
    folder = tmp_path / "swept"
    agent = begin(folder=folder)
    shutil.rmtree(folder)
    source.fail(100 * GIB)
    agent.stop()
    assert [report.requested for report in reports(folder)] == [100 * GIB]


def test_report_and_count_outlive_a_killed_process(scripts, folder: Path) -> None:
    code, _, err = scripts.end(SCRIPTED + "published(); source.fail(100 << 30); os.kill(os.getpid(), signal.SIGKILL)")
    assert (code, err.count("\n")) == (-9, 1)
    assert err.startswith("gpufrag: out of memory on device 0: limit; 100 GiB requested")
    assert [report.cause for report in reports(folder)] == ["limit"]
    assert published(folder).devices[0].ooms.causes["limit"] == 1


def test_first_request_of_a_program_is_explained(scripts, folder: Path) -> None:
    fails = "agent.start(interval=1000); machine.initialise()\ntry: machine.fail(120 << 30)\n"
    code, _, err = scripts.end(CUDA + fails + "except OutOfMemoryError: os._exit(3)")
    assert code == 3, err
    (report,) = reports(folder)
    assert (report.requested, report.cause) == (120 << 30, "neighbours")
    assert report.measured is not None


def test_only_latest_reports_are_kept(tmp_path: Path) -> None:
    for number in range(1, 21):
        keep_report(tmp_path, OomReport(Identity("host", 5, 1.0), number, 1.0, 0, GIB, "capacity"))
    assert [report.number for report in reports(tmp_path)] == list(range(13, 21))
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in tmp_path.iterdir())
