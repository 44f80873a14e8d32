"""Alerts about gpufrag itself."""

import pytest

from promtool import Case, Firing, device, line

SAMPLED, UP = "gpufrag_sample_timestamp_seconds", "gpufrag_up"
SECOND_POD = {"pod": "llm-1", "instance": "10.0.0.2:9836"}
NEW_POD = {"pod": "llm-1-again", "instance": "10.0.0.9:9836"}
VISION = {"job_name": "vision", "pod": "vision-0", "instance": "10.0.0.3:9836"}
FLAPPING = " ".join(["1 stale"] * 60)


def rank(name: str, values: str | float, number: int = 0, **labels: str) -> dict[str, str]:
    return device(name, values, rank=str(number), device="", **labels)


STALE = [
    Case("GpufragSampleStale", "nothing written since minute 1", "20m", [rank(SAMPLED, 60)], Firing(
        "Job llm: the last sample of rank 0, pod llm-0, 10.0.0.1:9836 is 19m 0s old. See where it hangs: "
        "py-spy dump --pid PID."
    )),
    Case("GpufragSampleStale", "each scrape brings a new one", "20m", [rank(SAMPLED, "0+30x120")]),
    Case("GpufragSampleStale", "the process has ended", "20m", [rank(SAMPLED, "0+30x20 stale")]),
    Case("GpufragSampleStale", "not for long enough", "4m", [rank(SAMPLED, "0+0x8 270+30x100")]),
]  # fmt: skip

GONE = Firing(
    "Job llm: ranks gone within the last 30m: 1. The others may be waiting for them in a collective call: look at the "
    "log of what is missing."
)
ENDS, RETURNS = "1+0x20 0+0x100", "1+0x20 0+0x4 1+0x90"
MISSING = [
    Case("GpufragRankMissing", "its process ended", "20m",
         [rank(UP, 1), rank(UP, ENDS, 1, **SECOND_POD)], GONE),
    Case("GpufragRankMissing", "its pod is gone", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD)], GONE),
    Case("GpufragRankMissing", "whatever another job's rank of that number does", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD), rank(UP, 1, 1, **VISION)], GONE),
    Case("GpufragRankMissing", "it came back", "20m", [rank(UP, 1), rank(UP, RETURNS, 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "it came back in another pod", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD), rank(UP, "_x22 1+0x90", 1, **NEW_POD)]),
    Case("GpufragRankMissing", "the whole job ended", "20m", [rank(UP, ENDS), rank(UP, ENDS, 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "every other scrape fails", "20m",
         [rank(UP, 1), rank(UP, FLAPPING, 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "what ended was no rank", "20m",
         [rank(UP, 1), device(UP, ENDS, rank="", device="", process="4711")]),
]  # fmt: skip


def no_answer(job: str) -> Firing:
    text = (
        f"Job {job}: targets that do not answer: 1, among them 10.0.0.1:9836. The page Targets of Prometheus shows the "
        "error; training itself is not touched by it."
    )
    return Firing(text, job={"job": job})


def target(name: str, values: str, **labels: str) -> dict[str, str]:
    return line(name, values, **{"namespace": "", "job_name": "", "pod": "", **labels})


DOWN = [
    Case("GpufragTargetDown", "it never answered", "8m", [target("up", "0+0x100")], no_answer("gpufrag")),
    Case("GpufragTargetDown", "it served gpufrag under another name of the scrape", "20m",
         [target("up", ENDS, job="pods"), target("gpufrag_build_info", "1+0x20 stale", job="pods")], no_answer("pods")),
    Case("GpufragTargetDown", "it answers", "8m", [target("up", "1+0x100")]),
    Case("GpufragTargetDown", "every other scrape fails", "20m", [target("up", " ".join(["1 0"] * 60))]),
    Case("GpufragTargetDown", "what is down is no sidecar", "20m", [target("up", "0+0x100", job="node")]),
]  # fmt: skip

STALLED = "gpufrag_stall_seconds_total"
TWO_PERCENT = Firing(
    "Job llm: it takes 2% of the time of rank 0, pod llm-0, 10.0.0.1:9836. Give it a longer interval, and tell us: it "
    "should space itself out."
)
OVERHEAD = [
    Case("GpufragAgentOverhead", "two percent, in two parts", "16m",
         [rank(STALLED, "0+0.3x120", cause="stats"), rank(STALLED, "0+0.3x120", cause="snapshot")], TWO_PERCENT),
    Case("GpufragAgentOverhead", "what it measures beside the process", "30m",
         [rank(STALLED, "0+3x120", cause="measure"), rank(STALLED, "0+0.03x120", cause="snapshot")]),
    Case("GpufragAgentOverhead", "a thousandth", "30m", [rank(STALLED, "0+0.03x120", cause="snapshot")]),
    Case("GpufragAgentOverhead", "the counter began anew", "30m",
         [rank(STALLED, "800+0.03x30 0+0.03x90", cause="snapshot")]),
]  # fmt: skip

BREAKER = "gpufrag_restarter_circuit_open"
RESTARTER = {"job": "gpufrag-restarter", "job_name": "", "pod": "", "instance": "10.0.0.8:9837"}
REFUSED = [
    Case("GpufragRestartRefused", "the breaker opens", "1m", [line(BREAKER, "0+0x1 1+0x100", **RESTARTER)],
         Firing("Job gpufrag-restarter: its circuit breaker is open, because restarts did not help or came too often. "
                "Its decisions say which; mend the cause, then close the breaker.",
                job={"namespace": "ml", "job": "gpufrag-restarter"})),
    Case("GpufragRestartRefused", "the breaker is closed", "20m",
         [line(BREAKER, "0+0x100", **RESTARTER)]),
]  # fmt: skip

CASES = [*STALE, *MISSING, *DOWN, *OVERHEAD, *REFUSED]


@pytest.mark.real
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_alert(case, judge):
    judge(case)
