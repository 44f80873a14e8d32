"""The shim in real interpreters, alone and together with other sitecustomize modules."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.commands.run import PACKAGE, SHIM, injected

THEIRS = "import sys; sys.stdout.write('theirs ran\\n')"


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter in which gpufrag is not installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def python(bare: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs it under the shim, as `gpufrag run` sets that up; the keywords are the environment before."""

    def run(*words: str, shim: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        before = {"PATH": os.environ["PATH"], **environment}
        surroundings = {**before, **injected(before), **environment, "PYTHONPATH": injected(before)["PYTHONPATH"]}
        return subprocess.run(
            [bare, *words], env=surroundings if shim else before, text=True, capture_output=True, timeout=60
        )

    run.interpreter = bare  # type: ignore[attr-defined]
    return run


@pytest.fixture
def says(python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """What a program writes to stdout; it must end well and write nothing else."""

    def run(program: str, **environment: str) -> str:
        done = python("-c", program, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


LOADED_BY_US = "['gpufrag', 'gpufrag.agent', 'gpufrag.agent.arrival']\n"
LOADED = "import sys; print(sorted(name for name in sys.modules if name.startswith('gpufrag')))"


def test_process_without_torch_has_the_finder_only(says) -> None:
    assert says(LOADED) == LOADED_BY_US
    assert says("import threading; print(threading.active_count())") == "1\n"


def test_child_processes_have_it_too(says) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOADED!r}], check=True)"
    assert says(child) == says(LOADED)


def test_disabled_shim_loads_nothing(says) -> None:
    assert says(LOADED, GPUFRAG_DISABLE="1") == "[]\n"


def test_isolated_interpreter_has_no_shim(python) -> None:
    assert python("-I", "-c", "import sys; print('gpufrag.agent' in sys.modules)").stdout == "False\n"


def test_library_is_importable_and_not_on_the_path(says) -> None:
    assert says("import gpufrag; print(gpufrag.__file__)") == f"{PACKAGE / '__init__.py'}\n"
    assert str(PACKAGE.parent) not in says("import sys; print(sys.path)").split("'")


def test_programs_own_gpufrag_comes_first(says, tmp_path: Path) -> None:
    (tmp_path / "gpufrag").mkdir()
    (tmp_path / "gpufrag" / "__init__.py").touch()
    (tmp_path / "gpufrag" / "agent.py").write_text("def wait(): print('its own')")
    assert says("pass", PYTHONPATH=str(tmp_path)) == "its own\n"


def test_shim_alone_finds_the_library_next_to_it(python) -> None:
    """A pod that only sets PYTHONPATH has an agent too."""
    assert python("-c", LOADED, shim=False, PYTHONPATH=str(SHIM)).stdout == LOADED_BY_US


def test_missing_named_library_falls_back_to_the_next_one(python, tmp_path: Path) -> None:
    """`gpufrag run` on the host, a copy of the agent in the image: the variable is inherited, the folder is not."""
    for place in (tmp_path / "elsewhere", tmp_path):
        done = python("-c", LOADED, shim=False, PYTHONPATH=str(SHIM), GPUFRAG_AGENT_PATH=str(place))
        assert (done.stdout, done.stderr) == (LOADED_BY_US, "")


def _library(folder: Path, program: str) -> None:
    (folder / "gpufrag").mkdir()
    (folder / "gpufrag" / "__init__.py").write_text(program)


def _customize(folder: Path, program: str, module: str = "sitecustomize") -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(program)
    return str(folder)


def test_programs_own_sitecustomize_runs(says, tmp_path: Path) -> None:
    path = _customize(tmp_path, THEIRS)
    ours = "import sitecustomize, sys; print(sitecustomize.__file__, 'gpufrag.agent' in sys.modules)"
    assert says(ours, PYTHONPATH=path) == f"theirs ran\n{tmp_path}/sitecustomize.py True\n"
    assert says(ours, PYTHONPATH=path, GPUFRAG_DISABLE="1").endswith(" False\n")


CALLS_THE_NEXT = """
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
print("before ran")
here = os.path.dirname(__file__)
spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != here])
spec.loader.exec_module(module_from_spec(spec))
"""
"""As some monitoring agents have it: they stay on the path, and are what sys.modules has."""


@pytest.mark.parametrize("others", [("theirs",), ()])
def test_chaining_sitecustomize_in_front_runs_once(python, tmp_path: Path, others: tuple[str, ...]) -> None:
    before = _customize(tmp_path / "before", CALLS_THE_NEXT)
    behind = [_customize(tmp_path / name, THEIRS) for name in others]
    path = os.pathsep.join([before, str(SHIM), *behind])
    done = python("-c", "import sys; print('gpufrag.agent' in sys.modules)", shim=False, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("before ran\n" + "theirs ran\n" * len(others) + "True\n", "")


SYSTEM_PYTHON = os.path.realpath(sys.executable)
"""Outside a virtual environment Python runs usercustomize too."""


@pytest.mark.parametrize("others", [("theirs",), ()])
def test_usercustomize_loads_the_agent_behind_another_sitecustomize(tmp_path: Path, others: tuple[str, ...]) -> None:
    """The OpenTelemetry operator puts its own folder first, and its sitecustomize does not call the next one."""
    first = _customize(tmp_path / "first", "print('first ran')")
    behind = [_customize(tmp_path / name, THEIRS, "usercustomize") for name in others]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([first, str(SHIM), *behind])}
    told = f"import sys; print('gpufrag.agent' in sys.modules, {str(SHIM)!r} in sys.path)"
    done = subprocess.run([SYSTEM_PYTHON, "-c", told], env=environment, text=True, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == ("first ran\n" + "theirs ran\n" * len(others) + "True False\n", "")


def test_shim_before_others_leaves_usercustomize_to_the_program(tmp_path: Path) -> None:
    theirs = _customize(tmp_path / "theirs", THEIRS, "usercustomize")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(SHIM), theirs])}
    done = subprocess.run([SYSTEM_PYTHON, "-c", ""], env=environment, text=True, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == ("theirs ran\n", "")


def test_programs_sitecustomize_errors_are_unchanged(python, tmp_path: Path) -> None:
    for broken in ("import no_such_module", "1/0", "raise SystemExit(3)"):
        path = _customize(tmp_path, broken)
        done = python("-c", "print('ran')", PYTHONPATH=path)
        alone = python("-c", "print('ran')", shim=False, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
        assert done.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]


def test_no_other_sitecustomize_is_no_error(says) -> None:
    assert says("print('ran')") == "ran\n"


@pytest.mark.parametrize("fault", ["raise RuntimeError('broken')", "raise SystemExit(9)", "def broken(:"])
def test_failing_library_is_one_line_for_the_tree(python, tmp_path: Path, fault: str) -> None:
    _library(tmp_path, fault)
    program = "import subprocess, sys; print('ran', flush=True); subprocess.run([sys.executable, '-c', 'print(1)'])"
    done = python("-c", program, GPUFRAG_AGENT_PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "ran\n1\n")
    assert done.stderr.count("\n") == 1
    assert "training continues" in done.stderr


FILES = sorted(SHIM.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_python_3_5_can_parse_it(file: Path) -> None:
    ast.parse(file.read_text(), feature_version=(3, 5))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_python_2_can_parse_it(file: Path) -> None:
    new = (ast.AnnAssign, ast.JoinedStr, ast.Nonlocal, ast.NamedExpr, ast.AsyncFunctionDef, ast.YieldFrom)
    for node in ast.walk(ast.parse(file.read_text())):
        assert not isinstance(node, new)
        assert getattr(node, "returns", None) is None
        assert getattr(node, "annotation", None) is None
        assert not getattr(node, "kwonlyargs", None)


def test_folder_on_the_path_holds_nothing_else() -> None:
    names = {path.name for path in SHIM.iterdir() if path.name != "__pycache__"}
    assert names == {"sitecustomize.py", "usercustomize.py"}


def test_children_see_the_shim_once_on_their_path(says, tmp_path: Path) -> None:
    """An image and a manifest may both have set it."""
    several = os.pathsep.join([str(SHIM), str(tmp_path), f"{SHIM}/", str(SHIM)])
    told = says("import os, sys; print(os.environ['PYTHONPATH'], sys.path[1])", PYTHONPATH=several)
    assert told == f"{SHIM}{os.pathsep}{tmp_path} {tmp_path}\n"


def test_users_pythonpath_is_unchanged(python) -> None:
    for path in (str(SHIM), f"{SHIM}:", f":{SHIM}::/b", f"/b:/b:{SHIM}"):
        done = python("-c", "import os; print(os.environ['PYTHONPATH'])", shim=False, PYTHONPATH=path)
        assert (done.stdout, done.stderr) == (f"{path}\n", "")


def test_two_copies_make_one_agent(python, tmp_path: Path) -> None:
    other = shutil.copytree(PACKAGE, tmp_path / "other" / "gpufrag") / "shim"
    path = os.pathsep.join([str(SHIM), str(other), _customize(tmp_path, THEIRS)])
    count = "import sys; print(sum(type(finder).__name__ == 'ImportWatch' for finder in sys.meta_path))"
    one = python("-c", count, shim=False, PYTHONPATH=str(SHIM)).stdout
    done = python("-c", count, shim=False, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == (f"theirs ran\n{one}", "")


def test_failures_are_counted_down_the_tree(python, tmp_path: Path) -> None:
    _library(tmp_path, "raise GeneratorExit")
    program = "import os, subprocess, sys; print(os.environ['GPUFRAG_SHIM_FAILED'], flush=True)"
    child = f"{program}; subprocess.run([sys.executable, '-c', {program!r}])"
    assert python("-c", child, GPUFRAG_AGENT_PATH=str(tmp_path)).stdout == "1\n2\n"


def test_missing_working_directory_is_no_error(python, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"cd {tmp_path}/gone && rmdir ../gone && PYTHONPATH={SHIM} exec {python.interpreter} -c 'print(1)'"
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_closed_stderr_with_failing_library_is_no_error(python, tmp_path: Path) -> None:
    _library(tmp_path, "raise RuntimeError")
    command = f"GPUFRAG_AGENT_PATH={tmp_path} PYTHONPATH={SHIM} exec {python.interpreter} -c 'print(1)' 2>&-"
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n")
