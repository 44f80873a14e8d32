"""The first use of a device is noticed, without a thread and without a change to what the program sees."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fake_torch import Machine, remove, torch_of
from gpufrag.agent import arrival

FAKE = """
calls = []
class cuda:
    @staticmethod
    def is_initialized(): return False
    @staticmethod
    def _lazy_call(call): calls.append(call)
loader = __spec__.loader
"""


@pytest.fixture
def ready() -> list[ModuleType]:
    return []


@pytest.fixture
def finders() -> list[Any]:
    return [PathFinder]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with torch's two functions, under a name that is free, and known as a framework."""
    name = "torch_for_arrival"
    (tmp_path / f"{name}.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(arrival, "FRAMEWORKS", {name: arrival.FRAMEWORKS["torch"]})
    yield name
    sys.modules.pop(name, None)


def _wait(ready: list[ModuleType], modules: dict[str, ModuleType] | None = None) -> None:
    arrival.when_in_use(ready.append, sys.modules if modules is None else modules, sys.meta_path)


def test_a_device_that_is_in_use_is_noticed_at_once(ready: list[ModuleType], finders: list[Any]) -> None:
    torch = torch_of(Machine())
    arrival.when_in_use(ready.append, {"torch": torch}, finders)
    assert ready == [torch]


def test_else_torch_tells_when_cuda_is_initialised(ready: list[ModuleType], finders: list[Any]) -> None:
    machine = Machine(initialised=False)
    torch = torch_of(machine)
    arrival.when_in_use(ready.append, {"torch": torch}, finders)
    assert ready == []
    machine.initialise()
    assert ready == [torch]


def test_an_error_of_ours_is_not_cudas(capsys: pytest.CaptureFixture[str], finders: list[Any]) -> None:
    machine = Machine(initialised=False)
    arrival.when_in_use(lambda torch: 1 // 0, {"torch": torch_of(machine)}, finders)
    machine.initialise()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("gpufrag: no agent in this process: ZeroDivisionError")


@pytest.mark.parametrize("name", ["cuda._lazy_call", "cuda.is_initialized"])
def test_a_torch_that_cannot_tell_is_left_alone(
    name: str, ready: list[ModuleType], finders: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch = torch_of(Machine(initialised=False))
    remove(torch, name)
    arrival.when_in_use(ready.append, {"torch": torch}, finders)
    assert "no agent in this process" in capsys.readouterr().err


def test_an_import_that_comes_later_is_noticed(package: str, ready: list[ModuleType]) -> None:
    _wait(ready)
    module = importlib.import_module(package)
    module.calls[0]()
    assert ready == [module]


def test_the_program_sees_its_own_loader_and_our_finder_leaves(package: str, ready: list[ModuleType]) -> None:
    before = list(sys.meta_path)
    _wait(ready)
    module = importlib.import_module(package)
    assert type(module.loader) is SourceFileLoader
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.loader
    assert vars(module.loader).keys() == {"name", "path"}
    assert sys.meta_path == before


def test_to_look_for_torch_is_not_to_import_it(package: str, ready: list[ModuleType]) -> None:
    _wait(ready)
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    assert importlib.import_module(package).calls


def test_an_import_that_fails_fails_as_it_would_and_may_be_tried_again(
    package: str, ready: list[ModuleType], tmp_path: Path
) -> None:
    source = tmp_path / f"{package}.py"
    source.write_text("raise ImportError('no libcudart')")
    _wait(ready)
    with pytest.raises(ImportError, match="no libcudart"):
        importlib.import_module(package)
    source.write_text(FAKE + "# another size, so that the cached bytecode is stale\n")
    assert importlib.import_module(package).calls


def test_a_torch_that_is_not_there_stays_so(package: str, ready: list[ModuleType], tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").unlink()
    _wait(ready)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(package)
    assert importlib.util.find_spec(package) is None


def test_other_imports_are_none_of_ours(package: str, ready: list[ModuleType]) -> None:
    _wait(ready)
    assert sys.meta_path[0].find_spec("json") is None


@pytest.mark.parametrize("fault", [SystemExit, GeneratorExit, MemoryError])
def test_no_kind_of_exception_of_ours_reaches_the_program(
    fault: type[BaseException], finders: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def ready(torch: ModuleType) -> None:
        raise fault

    arrival.when_in_use(ready, {"torch": torch_of(Machine())}, finders)
    assert fault.__name__ in capsys.readouterr().err


def test_the_users_own_interrupt_does(finders: list[Any]) -> None:
    def ready(torch: ModuleType) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        arrival.when_in_use(ready, {"torch": torch_of(Machine())}, finders)


def test_without_a_stderr_nothing_is_written_anywhere(
    finders: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    arrival.when_in_use(lambda torch: 1 // 0, {"torch": torch_of(Machine())}, finders)
    assert capsys.readouterr().out == ""
