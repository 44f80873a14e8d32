"""The shim in real interpreters, alone and together with other sitecustomize modules."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.commands.run import PACKAGE, SHIM, injected

THEIRS = "import sys; sys.stdout.write('theirs ran\\n')"


@pytest.fixture
def python(bare: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs it under the shim, as `gpufrag run` sets that up; the keywords are the environment before."""

    def run(*words: str, shim: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        before = {"PATH": os.environ["PATH"], **environment}
        surroundings = {**before, **injected(before), **environment, "PYTHONPATH": injected(before)["PYTHONPATH"]}
        return subprocess.run(
            [bare, *words], env=surroundings if shim else before, text=True, capture_output=True, timeout=60
        )

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


def test_disabled_shim_loads_nothing(says) -> None:
    assert says(LOADED, GPUFRAG_DISABLE="1") == "[]\n"


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


def test_missing_library_falls_back_to_the_next(python, tmp_path: Path) -> None:
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


def system_python(program: str, *path: str) -> tuple[str, str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([SYSTEM_PYTHON, "-c", program], env=environment, text=True, capture_output=True, timeout=60)
    return done.stdout, done.stderr


@pytest.mark.parametrize("others", [("theirs",), ()])
def test_usercustomize_loads_agent_behind_another_sitecustomize(tmp_path: Path, others: tuple[str, ...]) -> None:
    """The OpenTelemetry operator puts its own folder first, and its sitecustomize does not call the next one."""
    first = _customize(tmp_path / "first", "print('first ran')")
    behind = [_customize(tmp_path / name, THEIRS, "usercustomize") for name in others]
    program = f"import sys; print('gpufrag.agent' in sys.modules, {str(SHIM)!r} in sys.path)"
    found = system_python(program, first, str(SHIM), *behind)
    assert found == ("first ran\n" + "theirs ran\n" * len(others) + "True False\n", "")


def test_shim_in_front_leaves_usercustomize_alone(tmp_path: Path) -> None:
    theirs = _customize(tmp_path / "theirs", THEIRS, "usercustomize")
    assert system_python("", str(SHIM), theirs) == ("theirs ran\n", "")


def test_programs_sitecustomize_errors_are_unchanged(python, tmp_path: Path) -> None:
    for broken in ("import no_such_module", "1/0", "raise SystemExit(3)"):
        path = _customize(tmp_path, broken)
        done = python("-c", "print('ran')", PYTHONPATH=path)
        alone = python("-c", "print('ran')", shim=False, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
        assert done.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]


@pytest.mark.parametrize("fault", ["raise RuntimeError('broken')", "raise SystemExit(9)", "def broken(:"])
def test_failing_library_is_one_line_for_the_tree(python, tmp_path: Path, fault: str) -> None:
    _library(tmp_path, fault)
    program = "import subprocess, sys; print('ran', flush=True); subprocess.run([sys.executable, '-c', 'print(1)'])"
    done = python("-c", program, GPUFRAG_AGENT_PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "ran\n1\n")
    assert done.stderr.count("\n") == 1
    assert "training continues" in done.stderr


@pytest.mark.parametrize("file", sorted(SHIM.glob("*.py")), ids=lambda file: file.stem)
def test_python_2_and_3_5_can_parse_it(file: Path) -> None:
    new = (ast.AnnAssign, ast.JoinedStr, ast.Nonlocal, ast.NamedExpr, ast.AsyncFunctionDef, ast.YieldFrom)
    for node in ast.walk(ast.parse(file.read_text(), feature_version=(3, 5))):
        assert not isinstance(node, new)
        assert not any(getattr(node, name, None) for name in ("returns", "annotation", "kwonlyargs"))


def test_folder_on_the_path_has_no_other_file() -> None:
    names = {path.name for path in SHIM.iterdir() if path.name != "__pycache__"}
    assert names == {"sitecustomize.py", "usercustomize.py"}


def test_children_see_the_shim_once_on_their_path(says, tmp_path: Path) -> None:
    """An image and a manifest may both have set it."""
    several = os.pathsep.join([str(SHIM), str(tmp_path), f"{SHIM}/", str(SHIM)])
    found = says("import os, sys; print(os.environ['PYTHONPATH'], sys.path[1])", PYTHONPATH=several)
    assert found == f"{SHIM}{os.pathsep}{tmp_path} {tmp_path}\n"


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


def test_missing_directory_and_closed_stderr_are_no_errors(bare: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    gone = f"cd {tmp_path}/gone && rmdir ../gone && PYTHONPATH={SHIM} exec {bare} -c 'print(1)'"
    _library(tmp_path, "raise RuntimeError")
    closed = f"GPUFRAG_AGENT_PATH={tmp_path} PYTHONPATH={SHIM} exec {bare} -c 'print(1)' 2>&-"
    for command in (gone, closed):
        done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
