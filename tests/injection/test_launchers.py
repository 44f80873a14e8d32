"""With only PYTHONPATH set, a job's Python has an agent once it uses a GPU, for every way to start it."""

import pytest

USE = "import job"
EXEC = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import job'])"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'job'], check=True)"
FORK = "import os\nif (child := os.fork()) == 0:\n    import job\n    os._exit(0)\nos.waitpid(child, 0)"
CELLS = """
import threading
cells, names = ["import torch", "import job"], {"__name__": "__main__"}
def run():
    for cell in cells: exec(compile(cell, "<cell>", "exec"), names)
kernel = threading.Thread(target=run)
kernel.start(); kernel.join()
"""
ENVIRONMENT_KEPT = "import os, subprocess; subprocess.run(['sh', '-c', 'exec {python} -m job'], env=dict(os.environ))"

LAUNCHERS = {
    "a program": ["{python}", "-c", USE],
    "a module": ["{python}", "-m", "job"],
    "a file": ["{python}", "site/job.py"],
    "a shell script": ["sh", "-c", "cd / && {python} -m job"],
    "two shells and env": ["sh", "-c", "sh -c 'env A=b {python} -m job'"],
    "a launcher that execs": ["{python}", "-c", EXEC],
    "a launcher that runs children": ["{python}", "-c", CHILD],
    "a launcher that passes the environment on": ["{python}", "-c", ENVIRONMENT_KEPT],
    "a forked child": ["{python}", "-c", FORK],
    "a notebook's kernel": ["{python}", "-c", CELLS],
    "optimised": ["{python}", "-OO", "-m", "job"],
    "without bytecode": ["{python}", "-B", "-m", "job"],
    "in development mode": ["{python}", "-X", "dev", "-m", "job"],
    "with warnings as errors": ["{python}", "-W", "error", "-m", "job"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launched_job_has_an_agent(site, launcher: str) -> None:
    done = site.run(*LAUNCHERS[launcher])
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")
    assert len(list(site.shared.glob("*.json"))) == 1


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_each_child_of_multiprocessing_has_an_agent(site, method: str) -> None:
    (site.folder / "site" / "main.py").write_text(f"""
import multiprocessing
def use(): import job
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    children = [context.Process(target=use) for _ in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
    print([child.exitcode for child in children])
""")
    done = site.run("{python}", "-W", "ignore::DeprecationWarning", "-m", "main")
    assert (done.stdout, done.stderr) == ("agent\nagent\n[0, 0]\n", "")


@pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-S"], ["-I", "-S"]])
def test_isolated_interpreter_runs_without_an_agent(site, flags: list[str]) -> None:
    """Documented in docs/injection.md."""
    done = site.run("{python}", *flags, "-c", "import sys; print('gpufrag.agent' in sys.modules)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
