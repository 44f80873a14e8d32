"""Where the jobs run that a receiver restarts: one row of PLATFORMS for each `target` of the config."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from ..wire import folder
from .agreed import AgreedCheckpointer
from .alerts import Alert
from .checkpoint import Checkpointer
from .clock import Clock
from .kubernetes.cluster import Cluster, GroupKind
from .kubernetes.targets import TARGETS, Target
from .local import backend as process
from .settings import RestarterConfig
from .slurm import backend as slurm
from .slurm.commands import runner
from .state_file import StateFile


@dataclass(frozen=True)
class Platform:
    """What the worker acts on; `config` has the platform's own namespace in it."""

    config: RestarterConfig
    cluster: Cluster
    targets: Mapping[GroupKind, Target]
    locate: Callable[[Alert], Alert] = lambda alert: alert
    """From an alert's labels to its job's place."""
    checkpointer: Checkpointer | None = None


def connect(config: RestarterConfig, kubeconfig: Path | None = None, context: str | None = None) -> Platform:
    """Raises GpufragError where there is none, or a file cannot be used."""
    if config.target == "kubernetes":
        from .kubernetes import client as kubernetes

        return Platform(config, kubernetes.connect(kubeconfig, context), TARGETS)
    return PLATFORMS[config.target](config, _state(config))


def check(config: RestarterConfig) -> None:
    """What can be known without asking anybody. Raises GpufragError."""
    if config.target != "kubernetes":
        _state(config)


def _process(config: RestarterConfig, state: StateFile) -> Platform:
    place = config.process.folder or folder.to_read(os.environ)
    cluster = process.ProcessCluster(place, state)
    checkpointer = AgreedCheckpointer(cluster.ranks, config.checkpoint.hold)
    return Platform(_within(config, process.NAMESPACE), cluster, process.TARGETS, process.locate, checkpointer)


def _slurm(config: RestarterConfig, state: StateFile) -> Platform:
    settings, run = config.slurm, runner(config.slurm.timeout)
    users = settings.users or (getpass.getuser(),)
    return Platform(
        _within(config, slurm.NAMESPACE),
        slurm.SlurmCluster(run, state, settings.start_after or 0.0),
        slurm.targets(users, hurry=settings.start_after is not None),
        slurm.locate,
        slurm.SignalCheckpointer(run, Clock(), settings.signal_grace),
    )


PLATFORMS: Mapping[str, Callable[[RestarterConfig, StateFile], Platform]] = {"process": _process, "slurm": _slurm}


def _state(config: RestarterConfig) -> StateFile:
    if config.state_file is None:
        raise UsageError(f"target {config.target} needs state_file, where the restarter remembers; name one")
    return StateFile(config.state_file)


def _within(config: RestarterConfig, namespace: str) -> RestarterConfig:
    """There is one namespace, and all jobs are in it."""
    return replace(config, policy=replace(config.policy, namespaces=(namespace,)))
