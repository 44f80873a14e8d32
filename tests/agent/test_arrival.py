"""The first use of a device is detected without a thread and without a change that the program could see."""

import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fake_torch import Machine, modules_of, remove, torch_of
from gpufrag.agent import arrival
from signal_handlers import handled

TORCH = "loader = __spec__.loader\nfrom . import version, cuda\nimport torch_for_arrival.rest\n"
CUDA = """
calls = []
def is_initialized(): return False
_lazy_call = calls.append
"""


@pytest.fixture
def ready() -> list[ModuleType]:
    return []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A little torch under a free name, known as a framework."""
    name = "torch_for_arrival"
    (tmp_path / name).mkdir()
    files = {"__init__": TORCH, "cuda": CUDA, "version": "cuda, hip, __version__ = '13', None, '2.11'", "rest": ""}
    for module, text in files.items():
        (tmp_path / name / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(arrival, "WATCHED", {f"{name}.cuda": arrival.WATCHED["torch.cuda"]})
    yield tmp_path / name
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(name)]:
        del sys.modules[loaded]


class Renamed(dict[str, ModuleType]):
    """sys.modules, in which the little torch has torch's names too."""

    def get(self, name: str, default: Any = None) -> Any:
        return sys.modules.get(name, default)

    def __getitem__(self, name: str) -> ModuleType:
        return sys.modules[name.replace("torch", "torch_for_arrival")]


def _wait(ready: list[ModuleType]) -> None:
    arrival.when_in_use(ready.append, Renamed(), sys.meta_path)


def _import() -> Any:
    return importlib.import_module("torch_for_arrival")


def test_loaded_torch_reports_its_initialisation(ready: list[ModuleType]) -> None:
    machine = Machine(initialised=False)
    torch = torch_of(machine)
    arrival.when_in_use(ready.append, modules_of(torch), [])
    assert ready == []
    machine.initialise()
    assert ready == [torch]
    arrival.when_in_use(ready.append, modules_of(torch), [])
    assert ready == [torch, torch], "in use already"


@pytest.mark.parametrize("name", ["cuda._lazy_call", "cuda.is_initialized"])
def test_torch_without_the_function_is_left_alone(name: str, ready: list[ModuleType], capsys) -> None:
    torch = torch_of(Machine(initialised=False))
    remove(torch, name)
    arrival.when_in_use(ready.append, modules_of(torch), [])
    assert "no agent in this process" in capsys.readouterr().err


def test_later_import_is_detected_behind_its_own_loader(package: Path, ready: list[ModuleType]) -> None:
    _wait(ready)
    module = _import()
    assert type(module.loader) is SourceFileLoader
    assert module.__spec__.loader is module.loader
    assert vars(module.loader).keys() == {"name", "path"}
    module.cuda.calls[0]()
    assert ready == [module]


class UsersFinder:
    """An import hook of the program that finds the package itself; typeguard's works like this."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        self.asked.append(name)
        return PathFinder.find_spec(name, path, target) if name.startswith("torch_for_arrival") else None


@pytest.mark.parametrize("place", [0, 1], ids=["in front", "behind"])
def test_users_import_hook_runs_once_and_hides_nothing(package: Path, ready: list[ModuleType], place: int) -> None:
    hook = UsersFinder()
    _wait(ready)
    sys.meta_path.insert(place, hook)
    module = _import()
    importlib.util.find_spec("no_such_module")  # any later import
    assert [name for name in hook.asked if name.startswith("torch_for")] == [
        "torch_for_arrival",
        "torch_for_arrival.version",
        "torch_for_arrival.cuda",
        "torch_for_arrival.rest",
    ]
    assert len(module.cuda.calls) == 1


def test_lazily_imported_torch_is_not_executed(package: Path, ready: list[ModuleType]) -> None:
    _wait(ready)
    for name in ("torch_for_arrival", "torch_for_arrival.cuda"):
        spec = PathFinder.find_spec(name, [str(package.parent if "." not in name else package)])
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        importlib.util.find_spec("no_such_module")
        assert "calls" not in object.__getattribute__(module, "__dict__")
    cuda: Any = sys.modules["torch_for_arrival.cuda"]
    assert cuda.calls == []  # loads now
    importlib.util.find_spec("no_such_module")
    assert len(cuda.calls) == 1


def test_finding_torch_does_not_import_it(package: Path, ready: list[ModuleType]) -> None:
    _wait(ready)
    spec = importlib.util.find_spec("torch_for_arrival")
    assert type(spec.loader) is SourceFileLoader
    assert len(_import().cuda.calls) == 1


def test_failed_import_can_be_tried_again(package: Path, ready: list[ModuleType]) -> None:
    source = package / "cuda.py"
    source.write_text("raise ImportError('no libcudart')")
    _wait(ready)
    with pytest.raises(ImportError, match="no libcudart"):
        _import()
    source.write_text(CUDA + "# another size, so that the cached bytecode is stale\n")
    assert len(_import().cuda.calls) == 1


@pytest.mark.parametrize("under_run", [False, True])
def test_cpu_torch_is_noted_once_under_run(ready, under_run: bool, monkeypatch, capsys) -> None:
    monkeypatch.setenv(arrival.NOTED, "")
    monkeypatch.setenv("GPUFRAG_AGENT_PATH", "/somewhere" if under_run else "")
    version = SimpleNamespace(cuda=None, hip=None, __version__="2.11.0+cpu")
    for _ in range(2):
        machine = Machine(initialised=False)
        arrival.when_in_use(ready.append, {**modules_of(torch_of(machine)), "torch.version": version}, [])
    expected = "gpufrag: torch 2.11.0+cpu is built without GPU support, so there is nothing to record\n"
    assert capsys.readouterr().err == expected * under_run


def raising(fault: type[BaseException]) -> Callable[[ModuleType], None]:
    def ready(torch: ModuleType) -> None:
        raise fault

    return ready


@pytest.mark.parametrize("initialised", [True, False])
@pytest.mark.parametrize("fault", [ZeroDivisionError, SystemExit, GeneratorExit, MemoryError])
def test_no_exception_of_ours_reaches_the_program(fault: type[BaseException], initialised: bool, capsys) -> None:
    machine = Machine(initialised=initialised)
    arrival.when_in_use(raising(fault), modules_of(torch_of(machine)), [])
    machine.initialise()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"gpufrag: no agent in this process: {fault.__name__}")


@pytest.mark.parametrize("handler", [signal.default_int_handler, None])
def test_exception_of_a_signal_handler_reaches_the_program(handler: Any) -> None:
    def raises(number: int, frame: object) -> None:
        raise KeyError("the program's")

    def ready(torch: ModuleType) -> None:
        signal.raise_signal(signal.SIGINT)

    with handled(signal.SIGINT, handler or raises), pytest.raises(KeyboardInterrupt if handler else KeyError):
        arrival.when_in_use(ready, modules_of(torch_of(Machine())), [])


def test_missing_stderr_is_no_error(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    arrival.when_in_use(raising(ZeroDivisionError), modules_of(torch_of(Machine())), [])
    assert capsys.readouterr().out == ""
