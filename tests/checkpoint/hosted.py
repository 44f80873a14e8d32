"""Runs a program with an agent and a scripted source, without a GPU: `python hosted.py PROGRAM ARGUMENTS`."""

import runpy
import sys

from fake_source import ScriptedSource
from gpufrag import agent

if __name__ == "__main__":
    del sys.argv[0]
    agent.start(source=ScriptedSource(steps=False))
    runpy.run_path(sys.argv[0], run_name="__main__")
