"""Completion scripts, tested in the shells themselves."""

import shutil
import subprocess

import pytest

from gpufrag.commands import COMMANDS


@pytest.fixture
def script(cli):
    """script(shell) -> what `gpufrag completion` prints for it."""
    return lambda shell: cli.text("completion", shell)


def _run(shell, program):
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    result = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


def _bash(script, *words):
    return _run(
        "bash",
        f"{script}\nCOMP_WORDS=(gpufrag {' '.join(words)})\nCOMP_CWORD={len(words)}\n_gpufrag\necho ${{COMPREPLY[@]}}",
    )


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_lists_commands_and_flags(script, shell):
    text = script(shell)
    assert [row.name for row in COMMANDS if row.name not in text] == []
    assert all(flag in text for flag in ("json", "driver-free", "web.config.file"))


@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["me"], ["measure"]),
        (["c"], ["check-config", "completion"]),
        (["measure", "--driver"], ["--driver-free", "--driver-size"]),
        (["completion", "''"], ["bash", "fish", "zsh"]),
        (["measure", "file"], []),
        (["oom", "ex"], ["explain"]),
        (["oom", "list", "--"], ["--help", "--folder", "--json"]),
        (["mixin", "build", "--r"], ["--rules-only"]),
        (["nonsense", "--"], []),
    ],
)
def test_bash_completes_commands_and_flags(script, words, found):
    assert _bash(script("bash"), *words) == found


@pytest.mark.real
def test_zsh_loads_completion(script):
    assert _run("zsh", f"autoload -U compinit\ncompinit -D -u\n{script('zsh')}\necho $_comps[gpufrag]") == ["_gpufrag"]


@pytest.mark.real
def test_fish_completes_flags(script):
    found = _run("fish", f"{script('fish')}\ncomplete -C 'gpufrag measure --driver'")
    assert [word for word in found if word.startswith("--")] == ["--driver-free", "--driver-size"]


def test_unknown_shell_is_usage_error(cli):
    code, error = cli.refusal("completion", "tcsh")
    assert (code, "argument shell: invalid choice: 'tcsh'" in error) == (2, True)
