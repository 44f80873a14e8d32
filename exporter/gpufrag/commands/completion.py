"""`gpufrag completion bash|zsh|fish`: shell completions, generated from the parsers of all commands."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import COMMANDS, Command


class Flag(NamedTuple):
    name: str
    help: str
    takes_value: bool


class Spec(NamedTuple):
    """What the shell completes after one command."""

    name: str
    help: str
    flags: Sequence[Flag]
    words: Sequence[str]
    """Values of the positional argument; empty if it is a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SHELLS), help="shell to print completions for; source the output")


def run(options: argparse.Namespace) -> int:
    print(_SHELLS[options.shell]([_spec(row) for row in COMMANDS]), end="")
    return 0


def _spec(row: Command) -> Spec:
    parser = argparse.ArgumentParser()
    importlib.import_module(f".{row.module}", __package__).add_arguments(parser)
    flags = list({flag.name: flag for flag in _flags(parser)}.values())
    choices = [action.choices or () for action in parser._actions if not action.option_strings]
    return Spec(row.name, row.help, flags, [str(word) for words in choices for word in words])


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    """Yield the flags of a parser and of its subcommands."""
    for action in parser._actions:  # argparse has no public list of actions
        text = (action.help or "").replace("%%", "%")
        yield from (Flag(name, text, action.nargs != 0) for name in action.option_strings if name.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _flags(child)


def _bash(specs: Sequence[Spec]) -> str:
    cases = "".join(
        f"    {spec.name}) flags='{' '.join(f.name for f in spec.flags)}'; words='{' '.join(spec.words)}' ;;\n"
        for spec in specs
    )
    return f"""\
_gpufrag() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" flags='' words=''
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(spec.name for spec in specs)} --help --version' -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}  esac
  if [ "${{current#-}}" != "$current" ]; then words="$flags"; fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gpufrag gpufrag
"""


def _zsh(specs: Sequence[Spec]) -> str:
    commands = "\n".join(f"    {_quoted(f'{spec.name}:{spec.help}')}" for spec in specs)
    cases = "".join(f"    {spec.name}) _arguments {' '.join(_zsh_arguments(spec))} ;;\n" for spec in specs)
    return f"""\
#compdef gpufrag
_gpufrag() {{
  local -a commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}  esac
}}
compdef _gpufrag gpufrag
"""


def _zsh_arguments(spec: Spec) -> Iterator[str]:
    for flag in spec.flags:
        text = flag.help.replace("[", "(").replace("]", ")").replace(":", " -")
        yield _quoted(f"{flag.name}[{text}]" + (":value:_files" if flag.takes_value else ""))
    yield _quoted(f"*:word:({' '.join(spec.words)})" if spec.words else "*:file:_files")


def _fish(specs: Sequence[Spec]) -> str:
    lines = []
    for spec in specs:
        lines.append(f"complete -c gpufrag -n __fish_use_subcommand -f -a {spec.name} -d {_fish_quoted(spec.help)}")
        here = f"complete -c gpufrag -n '__fish_seen_subcommand_from {spec.name}'"
        lines += [f"{here} -l {f.name[2:]}{' -r' * f.takes_value} -d {_fish_quoted(f.help)}" for f in spec.flags]
        lines += [f"{here} -f -a {word}" for word in spec.words]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: dict[str, Callable[[Sequence[Spec]], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
