"""The sitecustomize of ours, in real interpreters: lazy, silent, and not the only one."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
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


def test_a_process_without_torch_has_the_hook_and_nothing_more(says) -> None:
    assert says(LOADED) == LOADED_BY_US
    assert says("import threading; print(threading.active_count())") == "1\n"


def test_children_have_it_too(says) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOADED!r}], check=True)"
    assert says(child) == says(LOADED)


def test_disabled_it_loads_nothing(says) -> None:
    assert says(LOADED, GPUFRAG_DISABLE="1") == "[]\n"


def test_an_isolated_interpreter_is_none_of_ours(python) -> None:
    assert python("-I", "-c", "import sys; print('gpufrag.agent' in sys.modules)").stdout == "False\n"


def test_the_library_is_importable_and_nothing_beside_it(says) -> None:
    assert says("import gpufrag; print(gpufrag.__file__)") == f"{PACKAGE / '__init__.py'}\n"
    assert str(PACKAGE.parent) not in says("import sys; print(sys.path)").split("'")


def test_a_copy_that_the_program_has_itself_is_the_one(says, tmp_path: Path) -> None:
    (tmp_path / "gpufrag").mkdir()
    (tmp_path / "gpufrag" / "__init__.py").touch()
    (tmp_path / "gpufrag" / "agent.py").write_text("def wait(): print('its own')")
    assert says("pass", PYTHONPATH=str(tmp_path)) == "its own\n"


def test_the_shim_alone_finds_the_library_beside_itself(python) -> None:
    """A pod that only sets PYTHONPATH has an agent too."""
    assert python("-c", LOADED, shim=False, PYTHONPATH=str(SHIM)).stdout == LOADED_BY_US


def test_where_the_named_library_is_not_in_this_container_it_is_the_one_beside(python, tmp_path: Path) -> None:
    """`gpufrag run` on the host, a copy of the agent in the image: the variable is inherited, the folder is not."""
    for place in (tmp_path / "elsewhere", tmp_path):
        done = python("-c", LOADED, shim=False, PYTHONPATH=str(SHIM), GPUFRAG_AGENT_PATH=str(place))
        assert (done.stdout, done.stderr) == (LOADED_BY_US, "")


def _library(folder: Path, program: str) -> None:
    (folder / "gpufrag").mkdir()
    (folder / "gpufrag" / "__init__.py").write_text(program)


def _customize(folder: Path, program: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(program)
    return str(folder)


def test_the_programs_own_sitecustomize_runs(says, tmp_path: Path) -> None:
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
def test_one_before_it_that_calls_it_runs_once(python, tmp_path: Path, others: tuple[str, ...]) -> None:
    before = _customize(tmp_path / "before", CALLS_THE_NEXT)
    behind = [_customize(tmp_path / name, THEIRS) for name in others]
    path = os.pathsep.join([before, str(SHIM), *behind])
    done = python("-c", "import sys; print('gpufrag.agent' in sys.modules)", shim=False, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("before ran\n" + "theirs ran\n" * len(others) + "True\n", "")


def test_its_errors_are_what_they_would_be_without_us(python, tmp_path: Path) -> None:
    for broken in ("import no_such_module", "1/0", "raise SystemExit(3)"):
        path = _customize(tmp_path, broken)
        done = python("-c", "print('ran')", PYTHONPATH=path)
        alone = python("-c", "print('ran')", shim=False, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
        assert done.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]


def test_without_another_one_all_is_as_if_there_were_none(says) -> None:
    assert says("print('ran')") == "ran\n"


@pytest.mark.parametrize("fault", ["raise RuntimeError('broken')", "raise SystemExit(9)", "def broken(:"])
def test_a_library_that_fails_is_one_line_on_stderr_for_the_whole_tree(python, tmp_path: Path, fault: str) -> None:
    _library(tmp_path, fault)
    program = "import subprocess, sys; print('ran', flush=True); subprocess.run([sys.executable, '-c', 'print(1)'])"
    done = python("-c", program, GPUFRAG_AGENT_PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "ran\n1\n")
    assert done.stderr.count("\n") == 1
    assert "training goes on" in done.stderr


def test_older_pythons_can_read_it_and_leave_it_at_that() -> None:
    ast.parse((SHIM / "sitecustomize.py").read_text(), feature_version=(3, 5))


def test_python_2_can_too() -> None:
    """It knows no annotations, and what else is new here it would have met in the line of a syntax error."""
    new = (ast.AnnAssign, ast.JoinedStr, ast.Nonlocal, ast.NamedExpr, ast.AsyncFunctionDef, ast.YieldFrom)
    for node in ast.walk(ast.parse((SHIM / "sitecustomize.py").read_text())):
        assert not isinstance(node, new)
        assert getattr(node, "returns", None) is None
        assert getattr(node, "annotation", None) is None
        assert not getattr(node, "kwonlyargs", None)


def test_nothing_else_lies_in_the_folder_that_is_put_on_the_path() -> None:
    assert [path.name for path in SHIM.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


def test_it_is_mentioned_to_the_children_exactly_once(says, tmp_path: Path) -> None:
    """An image and a manifest may both have set it."""
    several = os.pathsep.join([str(SHIM), str(tmp_path), f"{SHIM}/", str(SHIM)])
    told = says("import os, sys; print(os.environ['PYTHONPATH'], sys.path[1])", PYTHONPATH=several)
    assert told == f"{SHIM}{os.pathsep}{tmp_path} {tmp_path}\n"


def test_what_the_user_has_on_the_path_is_left_as_it_is(python) -> None:
    for path in (str(SHIM), f"{SHIM}:", f":{SHIM}::/b", f"/b:/b:{SHIM}"):
        done = python("-c", "import os; print(os.environ['PYTHONPATH'])", shim=False, PYTHONPATH=path)
        assert (done.stdout, done.stderr) == (f"{path}\n", "")


def test_two_copies_on_the_path_make_one_agent_and_the_programs_own_still_runs(python, tmp_path: Path) -> None:
    other = shutil.copytree(PACKAGE, tmp_path / "other" / "gpufrag") / "shim"
    path = os.pathsep.join([str(SHIM), str(other), _customize(tmp_path, THEIRS)])
    count = "import sys; print(sum(type(finder).__name__ == '_Watch' for finder in sys.meta_path))"
    one = python("-c", count, shim=False, PYTHONPATH=str(SHIM)).stdout
    done = python("-c", count, shim=False, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == (f"theirs ran\n{one}", "")


def test_failures_are_counted_down_the_tree_for_an_agent_to_publish(python, tmp_path: Path) -> None:
    _library(tmp_path, "raise GeneratorExit")
    program = "import os, subprocess, sys; print(os.environ['GPUFRAG_SHIM_FAILED'], flush=True)"
    child = f"{program}; subprocess.run([sys.executable, '-c', {program!r}])"
    assert python("-c", child, GPUFRAG_AGENT_PATH=str(tmp_path)).stdout == "1\n2\n"


def test_a_working_folder_that_is_gone_hinders_nothing(python, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"cd {tmp_path}/gone && rmdir ../gone && PYTHONPATH={SHIM} exec {python.interpreter} -c 'print(1)'"
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_closed_stderr_hinders_nothing_even_where_the_library_fails(python, tmp_path: Path) -> None:
    _library(tmp_path, "raise RuntimeError")
    command = f"GPUFRAG_AGENT_PATH={tmp_path} PYTHONPATH={SHIM} exec {python.interpreter} -c 'print(1)' 2>&-"
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n")
