"""SIGTERM ends a command like Ctrl-C, with a clean-up."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import signal, sys, tempfile, types
from gpufrag import cli, commands

def run(options):
    with tempfile.TemporaryDirectory(dir=sys.argv[-1]):
        print("at work", flush=True)
        signal.pause()

sys.modules["gpufrag.commands.try"] = types.SimpleNamespace(
    add_arguments=lambda parser: parser.add_argument("folder"), run=run
)
cli.COMMANDS = (commands.Command("try", "try it", "gpufrag try FOLDER"),)
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_runs_cleanup(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "try", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_ignored_sigterm_stays_ignored_for_job() -> None:
    job = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)"
    command = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", sys.executable, "-m", "gpufrag", "run", "--"]
    ended = subprocess.run([*command, sys.executable, "-c", job], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
