"""One copy serves every Python from 3.10 on: those that this machine has, each in a real process."""

import ast
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.attach.agent_copy.install import install
from gpufrag.commands.run import PACKAGE
from gpufrag.wire.sample import decode
from importable_torch import USES_A_GPU, torch_path
from pythons import INTERPRETERS, interpreter

OLDER = ("2.7", "3.6", "3.7", "3.8", "3.9")
"""Which have no agent, and must not be hindered: a tool that a job calls may still run in one."""


PYTHON = next(iter(INTERPRETERS.values()))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    install(PACKAGE, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a command with these folders and a torch on PYTHONPATH: exit code, stdout and stderr."""

    def run(command: list[str], *path: str) -> tuple[int, str, str]:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([*path, *torch_path(tmp_path)]),
            "GPUFRAG_DIR": str(tmp_path / "shared"),
        }
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


AGENT = (0, "agent\n", "")
EACH_PYTHON = pytest.mark.parametrize("version", INTERPRETERS)


@EACH_PYTHON
def test_agent_publishes_and_loads_only_the_copy(version: str, copy: Path, run, tmp_path: Path) -> None:
    files = "print({m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'gpufrag'})"
    code, out, err = run([INTERPRETERS[version], "-c", USES_A_GPU + files], str(copy / "gpufrag" / "shim"))
    assert (code, err) == (0, "")
    started, loaded = out.splitlines()
    assert started == "agent"
    assert all(Path(file).is_relative_to((copy / "gpufrag").resolve()) for file in ast.literal_eval(loaded)), loaded
    (file,) = (tmp_path / "shared").glob("*.json")
    sample = decode(file.read_bytes())
    assert (sample.identity.framework, sample.health.errors) == ("torch", {})


@EACH_PYTHON
def test_job_that_ends_at_once_prints_nothing(version: str, copy: Path, run) -> None:
    """From 3.12 on there are no more threads by then, not even for the agent's socket."""
    ends = "import torch; torch.machine.initialise(); raise SystemExit(5)"
    assert run([INTERPRETERS[version], "-c", ends], str(copy / "gpufrag" / "shim")) == (5, "", "")


def test_older_python_runs_without_an_agent(copy: Path, run, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.stdout.write('own\\n')")
    for python in filter(None, map(interpreter, OLDER)):
        done = run([python, "-c", "print('ran')"], str(copy / "gpufrag" / "shim"), str(tmp_path / "own"))
        assert done == (0, "own\nran\n", ""), python


def test_wrapper_adds_to_pythonpath(copy: Path, run, tmp_path: Path) -> None:
    """A manifest that sets PYTHONPATH takes away what the image has there; a command does not."""
    wrapper = str(copy / "bin" / "gpufrag-run")
    for _ in range(2):
        assert run([wrapper, wrapper, "--", PYTHON, "-c", USES_A_GPU], "/some/where") == AGENT
    _, path, _ = run([wrapper, wrapper, "sh", "-c", "echo $PYTHONPATH"], "/some/where")
    assert path.strip() == os.pathsep.join([f"{copy}/gpufrag/shim", "/some/where", *torch_path(tmp_path)])


def test_wrapper_becomes_its_command(copy: Path, run) -> None:
    wrapper = str(copy / "bin" / "gpufrag-run")
    assert run([wrapper, "sh", "-c", "exit 42"]) == (42, "", "")
    code, _, err = run([wrapper])
    assert (code, err.count("\n")) == (2, 1)


def test_wrapper_works_through_a_link(copy: Path, run, tmp_path: Path) -> None:
    (tmp_path / "on-path").symlink_to(copy / "bin" / "gpufrag-run")
    assert run([str(tmp_path / "on-path"), PYTHON, "-c", USES_A_GPU]) == AGENT


@pytest.mark.parametrize(("moved", "to"), [(".", "a:b"), ("bin", "alone/bin")])
def test_wrapper_without_its_copy_runs_the_command(moved: str, to: str, copy: Path, run, tmp_path: Path) -> None:
    """Moved to where PYTHONPATH cannot name it, or away from its copy."""
    shutil.copytree(copy / moved, tmp_path / to, symlinks=True)
    (wrapper,) = (tmp_path / to).rglob("gpufrag-run")
    code, out, err = run([str(wrapper), "sh", "-c", "echo $PYTHONPATH; exit 42"], "/some/where")
    assert (code, out.partition(os.pathsep)[0], err.count("\n")) == (42, "/some/where", 1)
    assert err.startswith("gpufrag-run: no agent: ")
