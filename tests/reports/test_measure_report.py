"""Text and JSON of `gpufrag measure`."""

import io
import json

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import Heap
from gpufrag.reports.measure import as_record, as_text, measured, notes
from gpufrag.reports.terminal import bold
from gpufrag.snapshot_file import read
from helpers import SNAPSHOTS, TESTS, kept

FIXTURES = TESTS / "fixtures" / "reports"


@pytest.fixture
def streams(golden):
    """A recorded case with a limit, several streams and stranded memory."""
    case = golden("streams-default")
    (device,) = measured(case.heap, case.driver)
    return device


def test_text_is_as_recorded(streams):
    kept(FIXTURES / "measure.txt", as_text(streams, "streams-default.json.gz") + "\n")


def test_record_is_as_recorded(streams):
    kept(FIXTURES / "measure.json", json.dumps(as_record(streams), indent=2) + "\n")


def test_record_equals_the_gpus_figures(golden_case):
    (device,) = measured(golden_case.heap, golden_case.driver)
    record, stats = as_record(device), golden_case.raw["stats"]
    assert record["reserved"] == stats["reserved_bytes.all.current"]
    assert 0 <= record["largest_allocatable"] - golden_case.raw["largest_request_that_succeeds"] < 512
    assert record["pools"]["large"]["active"] == stats["active_bytes.large_pool.current"]


def test_keys_are_the_same_without_driver(streams):
    (bare,) = measured(streams.heap, Driver())
    assert as_record(bare).keys() == as_record(streams).keys()
    assert as_record(bare)["largest_allocatable"] is None
    assert "largest_allocatable          unknown" in as_text(bare, "x")


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver(), "unknown: limit, headroom, free_total, largest_allocatable, fragmentation_ratio; add --driver-free"),
        (
            Driver(size=80 << 30),
            "unknown: largest_allocatable, fragmentation_ratio; add --driver-free and --driver-size",
        ),
        (Driver(limit=8 << 30), "upper bounds without the driver's free memory; add --driver-free"),
        (Driver(free=1 << 30), "add --limit if the process has one, else --driver-size"),
    ],
)
def test_note_on_unknown_figure_names_its_flag(streams, driver, words):
    (device,) = measured(streams.heap, driver)
    (note,) = notes(device)
    assert words in note


def test_complete_figures_have_no_note(streams):
    assert list(notes(streams)) == []


def test_limit_below_reserved_is_noted(streams):
    reserved = streams.found.reserved
    (device,) = measured(streams.heap, Driver(1 << 30, 1 << 40, reserved - 1))
    (note,) = notes(device)
    assert note.endswith("reserved; check --limit and --driver-size")
    (device,) = measured(streams.heap, Driver(1 << 30, 1 << 40, reserved))
    assert list(notes(device)) == []


def test_stream_without_blocks_is_noted(golden):
    case = golden("streams-default")
    (device,) = measured(case.heap, case.driver, stream=12345)
    assert list(notes(device)) == ["no block belongs to stream 12345: only the driver can serve it"]


def test_full_device_has_no_ratio(golden):
    case = golden("churn-small-default")
    live = Heap(tuple(s for s in case.heap.segments if "inactive" not in s.states))
    (device,) = measured(live, Driver(0, 1 << 40))
    assert as_record(device)["fragmentation_ratio"] is None
    assert list(notes(device)) == ["nothing can be allocated, so there is no fragmentation_ratio"]


def test_every_device_is_measured(golden):
    case = golden("train-cap4")
    both = Heap(tuple(s._replace(device=device) for device in (0, 1) for s in case.heap.segments), case.heap.settings)
    assert [device.found.device for device in measured(both, case.driver)] == [0, 1]


def test_empty_heap_is_one_device():
    (device,) = measured(Heap(()), Driver(10 << 30, 80 << 30))
    assert as_record(device)["reserved"] == 0
    assert as_record(device)["unused_share"] is None
    assert "free blocks by size" not in as_text(device, "x")


def test_private_pools_are_separate():
    (device,) = measured(read(SNAPSHOTS / "pools-streams.pickle.gz").heap, Driver())
    record = as_record(device)
    pools = record["pools"]
    assert record["private_pool_reserved"] > record["captive"] > 0
    assert (
        record["reserved"] == record["private_pool_reserved"] + pools["large"]["reserved"] + pools["small"]["reserved"]
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "text"),
    [
        (Terminal(), {}, "\x1b[1mx\x1b[0m"),
        (Terminal(), {"NO_COLOR": "1"}, "x"),
        (Terminal(), {"NO_COLOR": ""}, "\x1b[1mx\x1b[0m"),
        (Terminal(), {"TERM": "dumb"}, "x"),
        (io.StringIO(), {}, "x"),
    ],
)
def test_bold_only_on_capable_terminals(stream, environ, text):
    assert bold(stream, environ)("x") == text
