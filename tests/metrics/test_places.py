"""Which labels a process gets, and which figures appear for allocators other than torch's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.metrics import families
from gpufrag.metrics.places import MAX_LABEL, clean, name_ranks
from gpufrag.metrics.view import Fleet, ProcessView, RankView
from gpufrag.wire.sample import DeviceSample, DriverReading, Identity, Leak, ProcessSample, Sums


def process(pid, start, rank=None, alive=True, host="h"):
    return RankView(ProcessSample(Identity(host, pid, float(start), rank), 0.0), alive)


def identity(view):
    who = view.sample.identity
    return who.host, who.pid, who.start


def test_long_label_value_is_cut_to_the_bound():
    assert clean("x" * MAX_LABEL) == "x" * MAX_LABEL
    assert clean("x" * (MAX_LABEL + 1)) == "x" * (MAX_LABEL - 1) + "…"


@pytest.mark.parametrize(
    ("views", "labels"),
    [
        ([process(7, 1, rank=0)], [{"rank": "0"}]),
        ([process(7, 1)], [{"process": "7"}]),
        ([process(8, 2, rank=0), process(7, 1, rank=0)], [{"rank": "0"}, {"rank": "0", "process": "8"}]),
        ([process(7, 1, rank=0, alive=False), process(8, 2, rank=0)], [{"rank": "0"}, {"rank": "0", "process": "7"}]),
        ([process(1, 10, host="a"), process(1, 20, host="b")], [{"process": "1"}, {"process": "1-20.0"}]),
        ([process(7, 1, rank=0)] * 2, [{"rank": "0"}]),
        (
            [process(1, 1), process(2, 1, rank=10), process(3, 1, rank=9)],
            [{"rank": "9"}, {"rank": "10"}, {"process": "1"}],
        ),
    ],
    ids=["rank", "no rank", "oldest first", "successor", "equal pids", "listed twice", "sorted by number"],
)
def test_process_labels(views, labels):
    assert [named.labels for named in name_ranks(views)] == labels


def test_exited_process_that_died_last_keeps_plain_label():
    named = name_ranks([process(7, 1, rank=0, alive=False), process(8, 2, rank=0, alive=False)])
    assert named[0].labels == {"rank": "0"}
    assert named[0].view.sample.identity.pid == 8


PROCESSES = st.lists(
    st.builds(
        process,
        st.integers(1, 3),
        st.integers(0, 2),
        st.none() | st.integers(0, 2),
        st.booleans(),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


@given(PROCESSES)
def test_process_labels_are_unique(views):
    named = name_ranks(views)
    assert len({tuple(sorted(n.labels.items())) for n in named}) == len(named) == len({*map(identity, views)})


@given(PROCESSES, st.randoms())
def test_process_labels_do_not_depend_on_order(views, random):
    unique = list({identity(view): view for view in views}.values())
    assert name_ranks(unique) == name_ranks(random.sample(unique, len(unique)))


@given(PROCESSES)
def test_process_started_later_renames_no_living_process(views):
    living = [replace(view, alive=True) for view in views]
    before = {id(n.view): n.labels for n in name_ranks(living)}
    after = {id(n.view): n.labels for n in name_ranks([*living, process(2, 99, rank=1)])}
    assert after.items() >= before.items()


ASYNC = Sums(time=1.0, allocated=10, active=12, reserved=20, peak_active=15, peak_reserved=25)
BFC = Sums(
    time=1.0, allocated=20, active=20, reserved=100, free_cached=80, largest_free_block=30, free_total=80,
    largest_allocatable=30,
)  # fmt: skip
JAX = DeviceSample(0, "bfc", sums=BFC, limit=100, framework="jax", framework_version="0.10.2")


@pytest.fixture
def scrape(a_process):
    """Return the series of one process with rank 0: {name: {other labels: value}}."""

    def scrape(*devices: DeviceSample, memory: ProcessView | None = None) -> dict[str, dict[tuple[str, ...], float]]:
        fleet = Fleet(2.0, (RankView(a_process(*devices, rank=0), memory={0: memory} if memory else {}),))
        series: dict[str, dict[tuple[str, ...], float]] = {}
        for sample in (sample for family in families(fleet) for sample in family.samples):
            other = sorted(f"{k}={v}" for k, v in sample.labels.items() if k not in ("rank", "device"))
            series.setdefault(sample.name, {})[tuple(other)] = sample.value
        return series

    return scrape


def test_allocator_without_pools_has_no_pool_label(scrape):
    series = scrape(DeviceSample(0, "cudaMallocAsync", sums=ASYNC, driver=DriverReading(1.0, 5, 50)))
    values = {name.removeprefix("gpufrag_allocator_"): by for name, by in series.items() if "_allocator_" in name}
    assert values == {
        "allocated_bytes": {(): 10},
        "active_bytes": {(): 12},
        "reserved_bytes": {(): 20},
        "peak_active_bytes": {(): 15},
        "peak_reserved_bytes": {(): 25},
        "limit_bytes": {(): 50},
    }


def test_free_memory_without_snapshot_is_at_timer(scrape):
    series = scrape(replace(JAX, framework=None))
    expected = {"free_cached": 80, "largest_free_block": 30, "free_total": 80, "largest_allocatable": 30}
    assert {name: series[f"gpufrag_allocator_{name}_bytes"] for name in expected} == {
        name: {("at=timer",): value} for name, value in expected.items()
    }


def test_second_framework_is_labelled_in_every_series(scrape, a_device):
    series = scrape(JAX, a_device("train-default"))
    assert series["gpufrag_allocator_reserved_bytes"].keys() == {("framework=jax",), ("pool=large",), ("pool=small",)}
    infos = [dict(label.split("=", 1) for label in labels) for labels in series["gpufrag_process_info"]]
    assert [(i["framework"], i["framework_version"], i["backend"]) for i in infos] == [
        ("torch", "2.11.0+cu130", "native"), ("jax", "0.10.2", "bfc"),
    ]  # fmt: skip


def test_driver_figures_of_process_appear_once(scrape, a_device):
    memory = ProcessView("GPU-0", None, 1000, 100)
    series = scrape(replace(JAX, uuid="GPU-0"), a_device("train-default"), memory=memory)
    assert series["gpufrag_process_device_memory_used_bytes"] == {(): 1000}
    assert series["gpufrag_process_context_memory_bytes"] == {(): 100}
    assert ["uuid=GPU-0" in labels for labels in series["gpufrag_process_info"]] == [True, False]


@pytest.mark.parametrize(
    ("memory", "uuids"),
    [
        (ProcessView(), {"uuid=aaaa", "mig_uuid=bbbb"}),
        (ProcessView("GPU-aaaa", "MIG-bbbb"), {"uuid=GPU-aaaa", "mig_uuid=MIG-bbbb"}),
    ],
)
def test_process_info_prefers_uuids_of_the_driver(scrape, memory, uuids):
    series = scrape(replace(JAX, framework=None, uuid="aaaa", mig_uuid="bbbb"), memory=memory)
    (labels,) = series["gpufrag_process_info"]
    assert uuids <= {*labels}


def test_device_used_by_second_framework_alone_has_driver_figures(scrape, a_device):
    series = scrape(JAX, a_device("train-default", device=1), memory=ProcessView("GPU-0", None, 1000, 100))
    assert series["gpufrag_process_device_memory_used_bytes"] == {("framework=jax",): 1000}


@pytest.mark.parametrize(
    ("leak", "expected"),
    [(None, [None, None]), (Leak("step"), [{(): 0}, None]), (Leak("second", 3.0), [None, {(): 3.0}])],
)
def test_leak_has_one_unit_and_is_absent_if_unknown(scrape, leak, expected):
    series = scrape(replace(JAX, framework=None, leak=leak))
    assert [series.get(f"gpufrag_leak_bytes_per_{unit}") for unit in ("step", "second")] == expected
