"""`gpufrag explain`, `diff` and `timeline`: text and JSON."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from gpufrag.model.fragmentation import measure
from gpufrag.reports.explain import Tried
from gpufrag.units import format_bytes
from gpufrag.wire.oom_report import Frame, OomReport, encode
from gpufrag.wire.sample import Identity
from helpers import SNAPSHOTS, TESTS, golden_case_named
from staged_programs import MIB, Process, dynamic_shapes, growing_cache, healthy, keeps_losses, run

CASE = TESTS / "golden" / "churn-default.json.gz"


def test_explain_text_has_verdict_culprit_and_advice(cli, save) -> None:
    lines = cli.text("explain", save(run(growing_cache)), "--no-whatif").splitlines()
    assert lines[0].split(":")[0] in ("fine", "tune", "act")
    assert lines[1] == "no setting tested: --no-whatif was given"
    assert lines[2].startswith("device 0 of ")
    assert lines[3].startswith("pinned between live blocks: ")
    assert "  /job/train.py:20 in step keeps " in "\n".join(lines[:7])
    assert any(line.startswith("  1. ") for line in lines)


def test_explain_second_line_is_the_best_setting(cli, save) -> None:
    path = save(run(dynamic_shapes))
    best = min(cli.device("explain", path)["settings"], key=lambda each: each["peak"])
    line = cli.text("explain", path).splitlines()[1]
    peak, less = format_bytes(best["peak"]), format_bytes(best["saves"])
    assert line == f"{best['conf']} would lower the peak to {peak} ({less} less)"


def test_explain_trace_without_its_beginning_gives_both_peaks(cli) -> None:
    line = cli.text("explain", SNAPSHOTS / "train-varlen.pickle.gz").splitlines()[1]
    assert line.endswith("from 16.3 GiB to 14.6 GiB, if the trace started without gaps")


def test_explain_says_why_no_setting_was_tested(cli, save, monkeypatch) -> None:
    path = save(run(healthy))
    assert cli.text("explain", path).splitlines()[1] == "no tested setting would lower the peak by 2% or more"
    monkeypatch.setattr("gpufrag.commands.explain.MOST_EVENTS", 3)
    assert "no setting tested: the trace has more than 3 events" in cli.text("explain", path).splitlines()[1]
    without_trace = cli.text("explain", SNAPSHOTS / "default-1.pickle.gz").splitlines()
    assert without_trace[1] == "no setting tested: there is no usable trace"


def test_setting_helps_if_fewer_requests_fail_or_the_peak_falls_enough() -> None:
    assert Tried("", 98, 2, 0, 0).helps
    assert not Tried("", 99, 1, 0, 0).helps
    assert not Tried("", 0, 0, 0, 0).helps
    assert Tried("", 120, -20, 3, 1).helps
    assert not Tried("", 50, 50, 3, 3).helps


def test_explain_begins_with_the_worst_device(cli, save) -> None:
    first, second = run(healthy), run(dynamic_shapes)
    for segment in second["segments"]:
        segment["device"] = 1
        segment["address"] += 1 << 50
        for block in segment["blocks"]:
            block["address"] += 1 << 50
    for entry in second["device_traces"][0]:
        entry["addr"] += 1 << 50
    first["segments"] += second["segments"]
    first["device_traces"] += second["device_traces"]
    path = save(first)
    worse, better = cli.text("explain", path).split("\n\ndevice 0", 1)[0].splitlines(), "fine: device 0: "
    assert worse[0].startswith(("tune: device 1: ", "act: device 1: "))
    assert "would lower the peak" in worse[1]
    assert any(line.startswith(better) for line in worse)
    cli.text("explain", path, "--html", path.with_name("report.html"))
    page = path.with_name("report.html").read_text(encoding="utf-8")
    assert page.index("<h2>Device 1") < page.index("<h2>Device 0")
    assert f"<p>{html.escape(worse[1])}</p>" in page


def test_explain_memory_without_python_stacks_says_how_to_see_more(cli, save) -> None:
    def recorded(frames: list[dict[str, object]]) -> str:
        snapshot = run(growing_cache)
        for each in (*(block for s in snapshot["segments"] for block in s["blocks"]), *snapshot["device_traces"][0]):
            if any(frame["line"] == 20 for frame in each.get("frames", ())):
                each["frames"] = frames
        return cli.text("explain", save(snapshot), "--no-whatif")

    engine = {"filename": "libtorch_cpu.so", "line": 1, "name": "torch::autograd::Engine::evaluate_function(int)"}
    assert 'call _record_memory_history(stacks="all")' in recorded([])
    text = recorded([engine])
    assert "autograd:Engine in backward keeps " in text
    assert 'stacks="all"' not in text
    assert "the blocks of autograd" not in text


def test_explain_names_the_growing_cache_first(cli, save) -> None:
    found = cli.device("explain", save(run(growing_cache)), "--driver-free", "1GiB", "--driver-size", "80GiB")
    first = found["culprits"][0]
    assert first["stack"] == ["/job/train.py:20 step"]
    assert first["pinned_bytes"] > 0
    assert sum(each["pinned_bytes"] for each in found["culprits"]) == found["worst"]["stranded"]
    assert first["allocatable_bytes"] is not None
    gains = [each["gain"] or 0 for each in found["advice"]]
    assert gains == sorted(gains, reverse=True)


def test_explain_replays_settings(cli, save) -> None:
    path = save(run(dynamic_shapes))
    found = cli.device("explain", path)
    settings = {each["conf"]: each["saves"] for each in found["settings"]}
    assert settings["expandable_segments:True"] > 0
    assert any("expandable_segments:True" in each["change"] for each in found["advice"])
    assert cli.device("explain", path, "--no-whatif")["settings"] == []


def test_explain_names_the_best_anchor_with_its_cost(cli) -> None:
    found = cli.device("explain", TESTS / "fixtures/whatif/train-varying.json.gz")
    (anchored,) = [each for each in found["settings"] if each["anchor"]]
    size = anchored["anchor"] >> 30
    (advice,) = [each for each in found["advice"] if "anchor" in each["change"]]
    assert advice["change"] == f"start the job with `gpufrag run --anchor {size}GiB`, and unset PYTORCH_CUDA_ALLOC_CONF"
    assert "no other process can use the anchor's memory" in advice["what"]


def test_explain_verdict_is_of_the_worst_moment(cli) -> None:
    found = cli.device("explain", TESTS / "golden/cache-default.json.gz")
    worst = found["worst"]
    assert found["reason"].startswith(f"ratio {worst['fragmentation_ratio']:.2f}:")
    assert f"after {worst['events']:,} of" in found["reason"]


def test_explain_measured_settings_replace_the_advice_to_compare(cli) -> None:
    found = cli.device("explain", TESTS / "golden/cache-default.json.gz")
    assert [each for each in found["findings"] if "compare allocator settings" in each["change"]]
    assert not [each for each in found["advice"] if "compare allocator settings" in each["change"]]


def test_explain_leaves_out_settings_that_save_little(cli) -> None:
    found = cli.device("explain", TESTS / "fixtures/programs/growing_cache.pickle.gz")
    (anchored,) = [each for each in found["settings"] if each["saves"] > 0]
    assert anchored["saves"] < 0.02 * found["peak_reserved"]
    assert not [each for each in found["advice"] if each["what"].startswith("lower peak reserved")]


def test_explain_gain_of_free_memory_is_not_in_use(cli) -> None:
    found = cli.device("explain", SNAPSHOTS / "graph-pool.pickle.gz")
    assert [each["what"] for each in found["advice"]] == ["more usable"]


def test_explain_healthy_program_is_fine(cli, save) -> None:
    path = save(run(healthy))
    text = cli.text("explain", path)
    assert text.startswith("fine: ")
    assert "No findings." in text
    assert "culprits" not in text


def test_defaults_are_tried_too(cli) -> None:
    found = cli.device("explain", TESTS / "golden" / "train-cap4-maxsplit64.json.gz")
    gains = {each["change"]: each["gain"] for each in found["advice"]}
    (anchor,) = [gain for change, gain in gains.items() if "--anchor" in change]
    assert 0 < gains["unset PYTORCH_CUDA_ALLOC_CONF"] < anchor


@pytest.mark.parametrize("path", sorted(SNAPSHOTS.glob("*.pickle*")), ids=lambda path: path.name)
@pytest.mark.parametrize("driver", [(), ("--driver-free", "0", "--driver-size", "143GiB")], ids=["unknown", "full"])
def test_explain_verdict_that_is_not_fine_has_advice(cli, path: Path, driver: tuple[str, ...]) -> None:
    found = cli.device("explain", path, "--no-whatif", *driver)
    assert found["verdict"] == "fine" or (found["findings"] and found["advice"])


def test_explain_snapshot_without_history_or_stacks(cli) -> None:
    text = cli.text("explain", SNAPSHOTS / "default-1.pickle.gz")
    assert "stacks: none recorded" in text
    assert "the ratio is unknown without the driver's figures" in text


def test_explain_recorded_steps_say_how_to_get_stacks(cli, save) -> None:
    recording = run(growing_cache)
    for entry in recording["device_traces"][0]:
        del entry["frames"]
    for segment in recording["segments"]:
        for block in segment["blocks"]:
            del block["frames"]
    path = save(recording)
    (line,) = [line for line in cli.text("explain", path, "--no-whatif").splitlines() if "stacks: none" in line]
    assert "gpufrag record PID --steps 3 --stacks" in line
    assert cli.device("explain", path, "--no-whatif")["stacks_recorded"] is False
    assert cli.device("explain", save(run(growing_cache)), "--no-whatif")["stacks_recorded"] is True


@pytest.mark.parametrize("command", ["explain", "timeline"])
def test_stack_that_controls_a_terminal_is_escaped(cli, save, command: str) -> None:
    snapshot = run(growing_cache)
    frames = [{"filename": "/a/\x1b]0;title\x07.py", "line": 1, "name": "f\x1b[2J\n\u202e"}]
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["frames"] = frames
    for trace in snapshot["device_traces"]:
        for entry in trace:
            entry["frames"] = frames
    text = cli.text(command, save(snapshot))
    assert all(line.isprintable() for line in text.splitlines())
    assert "\\x1b" in text


def test_explain_json_case(cli) -> None:
    found = cli.device("explain", CASE, "--no-whatif")
    case = golden_case_named("churn-default")
    assert found["peak_reserved"] == case.raw["stats"]["reserved_bytes.all.peak"]
    assert found["worst"]["fragmentation_ratio"] > 4
    assert found["verdict"] == "act"


def test_explain_trace_with_gaps_assesses_the_heap(cli, save) -> None:
    snapshot = run(growing_cache)
    del snapshot["device_traces"][0][40:60]
    path = save(snapshot)
    found = cli.device("explain", path)
    assert "does not fit the heap and is ignored" in found["note"]
    assert (found["events"], found["culprits"][0]["stack"]) == (0, ["/job/train.py:20 step"])
    assert "note: the trace does not fit" in cli.text("explain", path)
    code, error = cli.refusal("timeline", path)
    assert (code, "has no history" in error) == (1, True)


def test_explain_snapshot_without_memory_says_so(cli, save) -> None:
    assert "no memory is reserved" in cli.text("explain", save({"segments": [], "device_traces": []}))


def test_explain_oom_report(cli, tmp_path: Path) -> None:
    case = golden_case_named("train-cap4")
    report = OomReport(
        Identity("node", 7, 1.0), 1, 2.0, 0, 6 << 30, "capacity", next_step="request less",
        measured=measure(case.heap, case.driver), stack=(Frame("train.py", 4, "f"),),
    )  # fmt: skip
    (tmp_path / "oom.json").write_bytes(encode(report))
    assert cli.text("explain", tmp_path / "oom.json").startswith("act: request less\n")
    assert cli.json("explain", tmp_path / "oom.json")["verdict"] == "capacity"


def test_timeline_has_moments_and_marks_the_worst(cli, save) -> None:
    path = save(run(growing_cache))
    text = cli.text("timeline", path)
    assert text.count("  worst") == 1
    assert "live at the worst moment" in text
    found = cli.device("timeline", path)
    assert found["worst"] in found["moments"]
    assert found["moments"][-1]["events"] == len(run(growing_cache)["device_traces"][0])
    live = sum(each["bytes"] for each in found["live_at_worst"])
    assert live == found["worst"]["active"]


def test_diff_lists_growth_by_call_site(cli, save) -> None:
    process = Process()
    keeps_losses(process)
    before = save(process.snapshot())
    block = process.malloc(24 * MIB, 77)
    kept = sum(process.malloc(3 * MIB, 40).size for _ in range(5))
    after = save(process.snapshot())
    found = cli.device("diff", before, after)
    assert [(each["stack"][0], each["bytes"], each["blocks"]) for each in found["call_sites"]] == [
        ("/job/train.py:77 step", block.size, 1),
        ("/job/train.py:40 step", kept, 5),
    ]
    assert found["leak_suspects"] == found["call_sites"]
    assert found["quantities"]["active"]["after"] - found["quantities"]["active"]["before"] == block.size + kept
    text = cli.text("diff", before, after)
    assert "+24.0 MiB, +1 block: /job/train.py:77 in step" in text


def test_diff_of_gaps(cli, save) -> None:
    process = Process()
    blocks = [process.malloc(4 * MIB, 1) for _ in range(5)]
    before = save(process.snapshot())
    process.free(blocks[1])
    after = save(process.snapshot())
    gap = {"address": blocks[1].address, "bytes": 4 * MIB}
    found = cli.device("diff", before, after)
    assert (found["gaps_appeared"], found["gaps_closed"]) == ([gap], [])
    back = cli.device("diff", after, before)
    assert (back["gaps_appeared"], back["gaps_closed"], back["leak_suspects"][0]["blocks"]) == ([], [gap], 1)


def test_diff_of_equal_snapshots_has_no_change(cli, save) -> None:
    path = save(run(healthy))
    text = cli.text("diff", path, path)
    assert "No changes by call site." in text
    assert "No leak suspects." in text


@pytest.mark.parametrize("command", ["explain", "timeline"])
def test_files_are_written_in_addition(cli, save, command) -> None:
    path = save(run(growing_cache))
    targets = {flag: path.with_name(flag[2:]) for flag in ("--html", "--speedscope", "--perfetto")}
    code, out, err = cli.run(command, path, *(word for item in targets.items() for word in item))
    assert (code, out) == (0, cli.text(command, path))
    assert [line.split(": ")[0] for line in err.splitlines()] == list(map(str, targets.values()))
    assert targets["--html"].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads(targets["--speedscope"].read_bytes())["profiles"]
    assert json.loads(targets["--perfetto"].read_bytes())["traceEvents"]


def test_diff_report_has_changes_and_both_heaps(cli, save) -> None:
    process = Process()
    keeps_losses(process)
    before = save(process.snapshot())
    process.malloc(24 * MIB, 77)
    after = save(process.snapshot())
    target = before.with_name("diff.html")
    code, out, err = cli.run("diff", before, after, "--html", target)
    assert (code, out) == (0, cli.text("diff", before, after))
    assert err.startswith(f"{target}: ")
    page = target.read_text(encoding="utf-8")
    assert page.count("<article>") == 2
    assert "/job/train.py:77 in step" in page
    assert '<td data-label="size" class="number">+24.0 MiB</td>' in page
    assert cli.refusal("diff", before, after, "--html", after)[0] == 2


def test_file_does_not_overwrite_the_snapshot(cli, save) -> None:
    path = save(run(healthy))
    before = path.read_bytes()
    code, error = cli.refusal("explain", path, "--html", path)
    assert (code, path.read_bytes()) == (2, before)
    assert "would overwrite the snapshot" in error


def test_file_in_a_missing_folder_is_an_error(cli, save) -> None:
    code, error = cli.refusal("explain", save(run(healthy)), "--html", "/nowhere/report.html")
    assert code == 1
    assert "cannot write /nowhere/report.html: No such file or directory" in error


def test_perfetto_requires_history(cli, tmp_path) -> None:
    code, error = cli.refusal("explain", SNAPSHOTS / "default-1.pickle.gz", "--perfetto", tmp_path / "trace.json")
    assert code == 1
    assert "has no history for --perfetto" in error
