"""Real Python processes: what they run, and how a test starts them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpufrag.commands.run import PACKAGE
from helpers import TESTS

PIPE = subprocess.PIPE
PUBLISHED = """
import os, signal, sys, threading, time
import gpufrag
from gpufrag import agent
def published():
    deadline = time.monotonic() + 20
    while agent.latest() is None and time.monotonic() < deadline: time.sleep(0.005)
def threads():
    return sorted(thread.name for thread in threading.enumerate())
"""
SCRIPTED = f"""{PUBLISHED}
from fake_source import ScriptedSource
source = ScriptedSource()
agent.start(source, interval=0.05, budget=1.0)
"""
"""An agent over a scripted source."""
CUDA = f"""
import sys
from fake_torch import Machine, OutOfMemoryError, torch_of
machine = Machine(initialised=False, contexts=set())
sys.modules["torch"] = torch = torch_of(machine)
sys.modules["torch.cuda"] = torch.cuda
{PUBLISHED}"""
"""A torch whose CUDA starts with `machine.initialise()`."""


@dataclass
class Scripts:
    """Runs Python programs with gpufrag importable and the test's folder in the environment."""

    home: Path

    def start(self, program: str, *command: str, **environment: str) -> subprocess.Popen[str]:
        """`command` goes before the interpreter."""
        script = self.home / "program.py"
        script.write_text(program)
        quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Python >= 3.12, for a fork next to a thread
        path = {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])}
        surroundings = {**os.environ, **quiet, **path, **environment}
        words = [*command, sys.executable, str(script)]
        return subprocess.Popen(words, env=surroundings, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def end(self, program: str, *command: str, **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        with self.start(program, *command, **environment) as process:
            out, err = process.communicate(timeout=110)
        return process.returncode, out, err

    def run(self, program: str, *command: str, **environment: str) -> str:
        """What it prints; it must end well and write nothing to stderr."""
        code, out, err = self.end(program, *command, **environment)
        assert (code, err) == (0, "")
        return out
