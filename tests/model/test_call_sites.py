"""Memory by call site, and its growth."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model import call_sites
from gpufrag.model.call_sites import GROWN, MOST_TEXT, Held, Stack, call_site, grown
from gpufrag.snapshot_file import load
from helpers import SNAPSHOTS

TORCH = "/env/lib/python3.12/site-packages/torch/nn/modules/module.py"
HELD = st.builds(Held, st.integers(1, 1 << 40), st.integers(1, 1000))
PLACES = st.dictionaries(st.tuples(st.sampled_from("abcdefgh")), HELD)


def frame(file: str, line: int = 1, name: str = "step") -> dict[str, object]:
    return {"filename": file, "line": line, "name": name}


def heap(*stacks: list[dict[str, object]], state: str = "active_allocated") -> dict[str, object]:
    """Return a snapshot with a block of 512 bytes per stack."""
    blocks = [{"state": state, "size": 512, "frames": stack} for stack in stacks]
    return {"segments": [{"device": 0, "blocks": blocks}]}


def test_call_site_has_the_innermost_frames_outside_torch() -> None:
    stack = [frame("aten/src/Functions.cpp"), frame(TORCH), frame("train.py", 7), frame(TORCH), frame("main.py", 9)]
    assert call_sites.read(heap(stack, stack)) == {0: {("train.py:7 step", "main.py:9 step"): Held(1024, 2)}}


def test_backward_pass_is_named_by_its_innermost_operator() -> None:
    """As torch 2.15 records it with stacks="all"."""
    names = [
        "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??",
        "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)",
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    ]  # fmt: skip
    stack = [frame("/torch/lib/libtorch_cpu.so", 1, name) for name in names]
    assert call_site(stack) == ("autograd:AddmmBackward0 backward",)
    assert call_site(stack[3:]) == ("autograd:Engine backward",)
    assert call_site(stack[:2]) == ()
    assert call_site([*stack, frame("train.py", 7)]) == ("train.py:7 step",)
    assert call_site([*stack, frame(TORCH)]) == ()


def test_notebook_cell_is_a_call_site() -> None:
    assert call_sites.read(heap([frame("<ipython-input-3>", 2, "<module>")])) == {
        0: {("<ipython-input-3>:2 <module>",): Held(512, 1)}
    }


def test_block_of_torch_2_0_has_frames_in_its_history() -> None:
    block = {"state": "active_allocated", "size": 512, "history": [{"frames": [frame("train.py", 7)]}, {"frames": []}]}
    found = call_sites.read({"segments": [{"device": 0, "blocks": [block]}]})
    assert found == {0: {("train.py:7 step",): Held(512, 1)}}


def test_free_block_has_no_call_site() -> None:
    assert call_sites.read(heap([frame("train.py")], state="inactive")) == {0: {}}


def test_memory_without_python_stack_is_one_call_site() -> None:
    assert call_sites.read(heap([], [frame("engine.cpp")])) == {0: {(): Held(1024, 2)}}


def test_call_site_is_bounded() -> None:
    (stack,) = call_sites.read(heap([frame("d/" * 5000 + "train.py", n) for n in range(50)]))[0]
    assert (len(stack), {len(text) for text in stack}) == (call_sites.FRAMES, {MOST_TEXT})


def test_recorded_trace_has_its_call_sites() -> None:
    """The recording's blocks are older than its history, so the trace's stacks replace theirs."""
    trace = [e for entries in load(SNAPSHOTS / "train-varlen.pickle.gz")["device_traces"] for e in entries]
    allocated = [{**entry, "state": "active_allocated"} for entry in trace if entry["action"] == "alloc"]
    found = call_sites.read({"segments": [{"device": 0, "blocks": allocated}]})[0]
    assert sum(held.size for held in found.values()) == sum(entry["size"] for entry in allocated)
    files = Counter(text.rpartition(":")[0].rpartition("/")[2] for stack in found for text in stack)
    assert set(files) == {"exp5.py"}


def test_every_recorded_block_is_counted() -> None:
    snapshot = load(SNAPSHOTS / "train-varlen.pickle.gz")
    blocks = [b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert call_sites.read(snapshot) == {0: {(): Held(sum(blocks), len(blocks))}}


def test_three_largest_growths_are_returned() -> None:
    before: dict[Stack, Held] = {("a",): Held(100, 1), ("b",): Held(500, 5)}
    now: dict[Stack, Held] = {
        ("a",): Held(900, 9), ("b",): Held(500, 5), ("c",): Held(300, 3), ("d",): Held(50, 1), ("e",): Held(60, 1)
    }  # fmt: skip
    assert [(place.stack, place.size, place.blocks) for place in grown(before, now)] == [
        (("a",), 800, 8), (("c",), 300, 3), (("e",), 60, 1)
    ]  # fmt: skip


def test_larger_blocks_alone_are_no_growth() -> None:
    assert grown({("a",): Held(100, 4)}, {("a",): Held(900, 4)}) == []


@given(PLACES, PLACES)
def test_returned_call_sites_grew(before: dict[Stack, Held], now: dict[Stack, Held]) -> None:
    found = grown(before, now)
    assert len(found) <= GROWN
    for place in found:
        assert place.size == now[place.stack].size - before.get(place.stack, Held(0, 0)).size > 0


@given(PLACES)
def test_equal_snapshots_have_no_growth(places: dict[Stack, Held]) -> None:
    assert grown(places, places) == []


@pytest.mark.parametrize(
    ("file", "torchs"),
    [
        ("/env/site-packages/torch/nn/modules/module.py", True),
        ("/opt/pytorch/torch/optim/adam.py", True),
        ("/opt/pytorch/torch/_tensor.py", True),
        ("/opt/pytorch/torch/functional.py", True),
        ("/home/me/torch/train.py", False),
        ("/job/train.py", False),
    ],
)
def test_torchs_own_frames_are_left_out(file: str, torchs: bool) -> None:
    frames = [{"filename": file, "line": 1, "name": "f"}, {"filename": "/job/main.py", "line": 2, "name": "g"}]
    assert (call_site(frames)[0] == "/job/main.py:2 g") is torchs
