"""The agent of this process: begun once, ended with the process, left behind by a fork."""

from __future__ import annotations

import atexit
import os
import threading
from types import ModuleType

from ..wire.error_counter import ErrorCounter
from ..wire.sample import ProcessSample
from .agent import Agent
from .settings import AgentSettings, from_environment
from .sources import Source, connect

FAILURES = "GPUFRAG_SHIM_FAILED"
"""Where the shim counts; it is read here because nothing can be published where the shim has failed."""

_lock = threading.RLock()
"""Entered again by a signal handler that ends the agent while the program begins or ends it."""
_agent: Agent | None = None
_wanted: AgentSettings | None = None


def want(settings: AgentSettings) -> None:
    """The settings for an agent that is still to begin."""
    global _wanted
    _wanted = settings


def launch(framework: ModuleType) -> None:
    """Begin for a framework that uses a device; where an agent has begun for another one, have it read this one too.

    Raises UsageError for an environment variable that is no number.
    """
    settings = _wanted or from_environment()
    if (agent := _agent) is not None:
        trouble = agent.trouble
        agent.add(connect(framework, trouble))
    else:
        trouble = ErrorCounter()
        _note_failures_above(trouble)
        begin(connect(framework, trouble), settings, trouble)
    if settings.anchor is not None and framework.__name__ == "torch":
        from .anchor import Anchor

        Anchor(framework, settings.anchor, trouble).drop_when_chosen()


def _note_failures_above(trouble: ErrorCounter) -> None:
    if os.environ.get(FAILURES):
        trouble.note("injection", "the shim has failed in this process or above it", "see stderr, where it said why")


def begin(source: Source, settings: AgentSettings, trouble: ErrorCounter | None = None) -> None:
    """In the user's own thread. A process has one agent: where it has one, nothing happens.

    Raises RuntimeError where the system has no thread for it; then there is no agent, and the next call tries again.
    """
    global _agent
    with _lock:
        if _agent is None:
            agent = Agent(source, settings, trouble)
            agent.start()
            _agent = agent
            atexit.register(stop)


def running() -> bool:
    """Whether this process has an agent."""
    return _agent is not None


def stop() -> None:
    """End the agent, if there is one. A later `begin` begins anew."""
    global _agent, _wanted
    with _lock:
        agent, _agent, _wanted = _agent, None, None
        atexit.unregister(stop)
    if agent is not None:
        agent.stop()


def sample_now() -> None:
    """Take and publish a sample, snapshot included, if there is an agent. Raises Unavailable if that fails."""
    agent = _agent
    if agent is not None:
        agent.sample_now()


def latest() -> ProcessSample | None:
    """What the agent published last; None before it has."""
    agent = _agent
    return agent.latest if agent else None


def _in_forked_child() -> None:
    """No thread has come along, and a lock may be held by one that has not: start from nothing."""
    global _agent, _lock
    agent, _agent = _agent, None
    _lock = threading.RLock()
    if agent is not None:
        agent.abandon()


os.register_at_fork(after_in_child=_in_forked_child)
