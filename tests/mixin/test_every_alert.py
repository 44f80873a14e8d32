"""What must hold of each alert, whatever it is about: scrapes that fail, and a second job like the first."""

import re
from dataclasses import replace

import pytest

from mixin.test_fragmentation_alerts import CASES as FRAGMENTATION
from mixin.test_fragmentation_alerts import CRIES_WOLF, HEALTHY_TRAINING
from mixin.test_health_alerts import CASES as HEALTH
from mixin.test_memory_alerts import CASES as MEMORY
from promtool import EVERYTHING, Case, Judge

pytestmark = pytest.mark.real

WOLF = Case("GpuMemoryCacheFragmented", "even on a healthy training", "12m", HEALTHY_TRAINING, CRIES_WOLF)
FIRING = {case.alert: case for case in (*FRAGMENTATION, *MEMORY, *HEALTH, WOLF) if case.firing}


def by_name(names):
    return pytest.mark.parametrize("case", [FIRING[name] for name in sorted(names)], ids=lambda case: case.alert)


def test_every_alert_has_a_case_that_fires(judge):
    assert FIRING.keys() == judge.alerts.keys()


@by_name(FIRING)
def test_two_clusters_with_the_same_jobs_and_ranks_are_two_alerts(case, judge):
    """Each with the text of its own."""
    twins = [{**line, "series": line["series"].replace("{", '{cluster="b", ', 1)} for line in case.series]
    first = judge.expected(case.alert, case.firing)
    second = {**first, "exp_labels": {**first["exp_labels"], "cluster": "b"}}
    question = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": [first, second]}
    judge.ask({"input_series": [*case.series, *twins], "alert_rule_test": [question]})


ROW = re.compile(r"(?P<start>_|-?[\d.]+)(?P<step>[+-][\d.]+)?x(?P<more>\d+)")


def each(values: str) -> list[str]:
    """promtool's shorthand, value by value."""
    shown: list[str] = []
    for token in values.split():
        if (row := ROW.fullmatch(token)) is None:
            shown.append(token)
        elif row["start"] == "_":
            shown += ["_"] * int(row["more"])
        else:
            step = float(row["step"] or 0)
            shown += [f"{float(row['start']) + step * place:.6f}" for place in range(int(row["more"]) + 1)]
    return shown


def flapping(values: str) -> str:
    """As if every other scrape had failed."""
    return " ".join("stale" if place % 2 else value for place, value in enumerate(each(values)))


@by_name(FIRING)
def test_fires_though_every_other_scrape_fails(case, judge):
    series = [{**line, "values": flapping(line["values"])} for line in case.series]
    asked = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    test = {"expr": asked, "eval_time": case.at, "exp_samples": [{"labels": "{}", "value": 1}]}
    judge.ask({"input_series": series, "promql_expr_test": [test]})


@by_name(set(FIRING) - {"GpufragRestartRefused"})
def test_silent_where_there_is_nothing(case, judge):
    """A fleet that another exporter watches, or none: no series of ours, no alert."""
    judge(Case(case.alert, "nothing of ours", case.at, [{"series": 'up{job="node"}', "values": "0+0x120"}]))


def test_a_selector_with_anything_in_it_still_finds_the_worst_rank(promtool, tmp_path):
    case = FIRING["GpuMemoryFragmented"]
    series = [{**line, "series": line["series"].replace("{", """{site="50%s it's {b}", """, 1)} for line in case.series]
    config = replace(EVERYTHING, selector="""site="50%s it's {b}",""")
    Judge(promtool, tmp_path, config)(Case(case.alert, case.why, case.at, series, case.firing))
