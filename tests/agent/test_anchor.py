"""The anchor: one block through torch's own allocator, freed at once, or a counted obstacle."""

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent.programs import CUDA
from fake_torch import SIZE, Machine, remove, torch_of
from gpufrag.agent.torch.anchor import Anchor
from gpufrag.model.anchor import settings_obstacle
from gpufrag.model.settings import MIB, parse_conf
from gpufrag.wire.error_counter import ErrorCounter


@dataclass
class Ship:
    """A machine of one visible device, and the part of torch that only an anchor touches."""

    machine: Machine = field(default_factory=lambda: Machine(count=1, heaps={}))
    device: int = 0
    taken: list[tuple[int, int]] = field(default_factory=list)
    given_back: list[int] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    errors: ErrorCounter = field(default_factory=ErrorCounter)
    environment: dict[str, str] = field(default_factory=dict)

    def torch(self) -> ModuleType:
        torch: Any = torch_of(self.machine)
        torch.cuda.current_device = lambda: self.device
        torch.cuda.caching_allocator_alloc = self._allocate
        torch.cuda.caching_allocator_delete = self.given_back.append
        register = SimpleNamespace(register_module_forward_pre_hook=self._register)
        torch.nn = SimpleNamespace(modules=SimpleNamespace(module=register))
        return torch

    def drop(self, size: int | float = 0.2, torch: ModuleType | None = None) -> None:
        Anchor(torch or self.torch(), size, self.errors, self.environment).drop_when_chosen()

    def forward(self) -> None:
        for hook in list(self.hooks):
            hook(object(), ())

    def _allocate(self, size: int, device: int) -> int:
        self.taken.append((size, device))
        return len(self.taken)

    def _register(self, hook: Any) -> SimpleNamespace:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))


@pytest.fixture
def ship() -> Ship:
    return Ship()


@pytest.fixture
def ship_of_two() -> Ship:
    return Ship(Machine(count=2, heaps={}, contexts={0, 1}))


def test_anchor_reserves_one_piece_and_frees_it(ship: Ship) -> None:
    ship.drop(0.2)
    ((size, device),) = ship.taken
    assert device == 0
    assert 0 <= SIZE * 0.2 - size < 2 * MIB
    assert ship.given_back == [1]
    assert ship.errors.counts == {}


def test_anchor_of_a_size_reserves_that_size(ship: Ship) -> None:
    ship.drop(3 * MIB * 1024 + 512)
    assert ship.taken == [(3 * MIB * 1024, 0)]


def test_size_above_90_percent_of_the_device_is_refused(ship: Ship, caplog) -> None:
    ship.drop(SIZE * 95 // 100)
    assert (ship.taken, ship.errors.counts) == ([], {"anchor": 1})
    assert "more than 90% of device 0" in caplog.text


def test_anchor_waits_until_a_device_is_chosen(ship_of_two: Ship) -> None:
    ship_of_two.drop()
    assert ship_of_two.taken == []
    ship_of_two.device = 1
    ship_of_two.forward()
    assert [device for _, device in ship_of_two.taken] == [1]
    assert ship_of_two.hooks == []


def test_anchor_waits_during_a_graph_capture(ship_of_two: Ship) -> None:
    ship_of_two.drop()
    ship_of_two.machine.capturing = True
    ship_of_two.forward()
    assert ship_of_two.taken == []
    ship_of_two.machine.capturing = False
    ship_of_two.forward()
    assert len(ship_of_two.taken) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"free": 20_000_000_000}, "not free on device 0"),
        ({"fraction": 0.1}, "exceed the process's limit"),
        ({"backend": "cudaMallocAsync"}, "keeps no segments"),
        ("expandable_segments:True", "already are one piece"),
        ("max_split_size_mb:128", "could not use the anchor"),
    ],
)
def test_anchor_without_room_or_use_is_not_tried(ship: Ship, change: Any, why: str, caplog) -> None:
    """Torch would empty its cache, count an OOM and call its observers."""
    if isinstance(change, str):
        ship.environment["PYTORCH_CUDA_ALLOC_CONF"] = change
    else:
        vars(ship.machine).update(change)
    ship.drop()
    assert (ship.taken, ship.errors.counts) == ([], {"anchor": 1})
    assert why in caplog.text


def test_anchor_is_dropped_under_other_settings() -> None:
    assert settings_obstacle(parse_conf("garbage_collection_threshold:0.8,roundup_power2_divisions:4")) is None


def test_torch_error_at_the_anchor_is_counted(ship: Ship, caplog) -> None:
    torch: Any = ship.torch()

    def refuse(size: int, device: int) -> int:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    torch.cuda.caching_allocator_alloc = refuse
    ship.drop(torch=torch)
    assert ship.errors.counts == {"anchor": 1}
    assert "the job continues without it" in caplog.text


@pytest.mark.parametrize(
    "name", ["cuda.caching_allocator_alloc", "cuda.caching_allocator_delete", "cuda.current_device"]
)
def test_torch_without_the_function_has_no_anchor(ship: Ship, name: str) -> None:
    torch = ship.torch()
    remove(torch, name)
    ship.drop(torch=torch)
    assert ship.taken == []


def test_share_smaller_than_a_segment_is_refused(ship: Ship, caplog) -> None:
    ship.drop(1e-5)
    assert ship.taken == []
    assert "too few for a segment" in caplog.text


def test_anchor_is_dropped_at_cuda_initialisation(scripts) -> None:
    program = f"""{CUDA}
machine.count, machine.free, machine.contexts, torch.cuda.current_device = 1, 5, {{0}}, lambda: 0
gpufrag.start()
machine.initialised = True  # torch answers callbacks at the end of its initialisation
machine.initialise()
gpufrag.agent.lifecycle.sample_now()
print(agent.latest().health.errors)
"""
    code, out, err = scripts.end(program, GPUFRAG_ANCHOR="20%")
    assert (code, out) == (0, "{'anchor': 1}\n")
    assert "not free on device 0; the job continues without it" in err
