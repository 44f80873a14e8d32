"""The agent of this process: started once, stopped with the process, abandoned in a forked child."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from ..wire.error_counter import ErrorCounter
from ..wire.sample import ProcessSample
from .agent import Agent
from .settings import AgentSettings, from_environment
from .sources import Source, connect

SHIM_FAILURES = "GPUFRAG_SHIM_FAILED"
"""Set by the shim if it failed; read here because nothing can be published in that process."""

SERVER = f"{__name__.partition('.')[0]}.metrics.in_process_server"
"""Loaded only if this process or its parent serves its own metrics."""

_lock = threading.RLock()
"""Reentrant: a signal handler may stop the agent while the program starts or stops it."""
_agent: Agent | None = None
_settings: AgentSettings | None = None


def configure(settings: AgentSettings) -> None:
    """The settings for an agent that is still to be started."""
    global _settings
    _settings = settings


def launch(framework: ModuleType) -> None:
    """Start an agent for a framework that uses a device, or add the framework to the running agent.

    Raises UsageError for an environment variable that is not a number.
    """
    settings = _settings or from_environment()
    if (agent := _agent) is not None:
        errors = agent.errors
        agent.add(connect(framework, errors))
    else:
        errors = ErrorCounter()
        if os.environ.get(SHIM_FAILURES):
            errors.note("injection", "the shim failed in this process or its parent", "see the stderr of that process")
        begin(connect(framework, errors), settings, errors)
    if settings.anchor is not None and framework.__name__ == "torch":
        from .torch.anchor import Anchor

        Anchor(framework, settings.anchor, errors).drop_when_chosen()


def begin(source: Source, settings: AgentSettings, errors: ErrorCounter | None = None) -> None:
    """Start the agent in the user's own thread; does nothing if there is one.

    Raises RuntimeError if the system has no thread for it; then there is no agent, and the next call tries again.
    """
    global _agent
    with _lock:
        if _agent is None:
            agent = Agent(source, settings, errors)
            agent.start()
            _agent = agent
            atexit.register(stop)
            if (server := sys.modules.get(SERVER)) is not None:
                server.take_over(agent.errors)


def running() -> bool:
    return _agent is not None


def stop() -> None:
    """Stop the agent, if there is one. A later `begin` starts anew."""
    global _agent, _settings
    with _lock:
        agent, _agent, _settings = _agent, None, None
        atexit.unregister(stop)
    if agent is not None:
        agent.stop()


def sample_now() -> None:
    """Take and publish a sample with a snapshot, if there is an agent. Raises Unavailable if that fails."""
    agent = _agent
    if agent is not None:
        agent.sample_now()


def latest() -> ProcessSample | None:
    """What the agent published last, measured; None before its first sample."""
    agent = _agent
    return agent.latest if agent else None


def folder() -> Path | None:
    """Where the agent publishes; None before its first sample, or if it cannot."""
    agent = _agent
    return agent.folder if agent else None


def _in_forked_child() -> None:
    """The thread does not exist here, and a lock may be held by a thread that does not: start from nothing."""
    global _agent, _lock
    agent, _agent = _agent, None
    _lock = threading.RLock()
    if agent is not None:
        agent.abandon()


os.register_at_fork(after_in_child=_in_forked_child)
