"""Requests to the ranks of a job through the sidecars of its pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...checkpoint.coordinator import AskRanks
from ...checkpoint.protocol import Answers, RankCommand
from ...errors import Unavailable
from ...web.client import Client, NotListening, tls_context
from ...wire.codec import Misfit, loads
from ..backend import Job
from ..settings import CheckpointSettings
from .objects import Pod

MAX_ANSWER = 8 << 20
MAX_PARALLEL = 32


_REFUSALS = {
    401: "its sidecar rejects the token (checkpoint.token_file here, control.token_file there)",
    503: "its sidecar is busy, or cannot read its folder",
}


class NoEndpoint(Exception):
    """The pod does not accept checkpoint requests. It may have no sidecar, and no rank."""


class Sidecars:
    """Connections to sidecars. Raises Unavailable if checkpoint.ca_file cannot be read."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._context = tls_context(settings.ca_file) if settings.ca_file else None

    def ask(self, pod: Pod, command: RankCommand) -> Answers | NoEndpoint:
        """Return the answers of the ranks of one pod, or why there are none."""
        try:
            return self._post(pod, command)
        except NoEndpoint as error:
            return error
        except (Unavailable, ValueError, RecursionError, Misfit) as error:
            return Answers(silent=(f"pod {pod.name}: {error}",))

    def _post(self, pod: Pod, command: RankCommand) -> Answers:
        if not pod.ip:
            raise NoEndpoint(f"pod {pod.name} has no IP address")
        settings = self._settings
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        client = Client(
            f"{'https' if self._context else 'http'}://{host}:{settings.port}",
            settings.call_timeout,
            MAX_ANSWER,
            settings.token_file,
            server_name=settings.server_name,
            context=self._context,
        )
        try:
            answer = client.post_json(command.path, command.fields)
        except NotListening:
            raise NoEndpoint(f"pod {pod.name}: connection to port {settings.port} refused") from None
        if answer.status in (404, 405):
            raise NoEndpoint(f"pod {pod.name}: its sidecar accepts no requests: set control.token_file there")
        if answer.status != 200:
            raise ValueError(_REFUSALS.get(answer.status, f"answered {answer.status}"))
        return Answers.from_json(loads(answer.body))


def ranks_of(pods_of: Callable[[Job], tuple[Pod, ...]], settings: CheckpointSettings) -> Callable[[Job], AskRanks]:
    """Return what sends a request to all ranks of a job, through all its pods."""
    sidecars = Sidecars(settings)

    def ranks(job: Job) -> AskRanks:
        pods: list[Pod] = []

        def ask(command: RankCommand) -> Answers:
            if command.name == "prepare":  # the other requests go to those that were prepared
                pods[:] = [pod for pod in pods_of(job) if pod.alive and not pod.deleting]
            return _ask_all(sidecars, pods, command)

        return ask

    return ranks


def _ask_all(sidecars: Sidecars, pods: Sequence[Pod], command: RankCommand) -> Answers:
    if not pods:
        return Answers(silent=("the job has no running pod",))
    with ThreadPoolExecutor(min(MAX_PARALLEL, len(pods))) as threads:
        answers = list(threads.map(lambda pod: sidecars.ask(pod, command), pods))
    complete_answers = [answer for answer in answers if isinstance(answer, Answers)]
    without = [str(answer) for answer in answers if isinstance(answer, NoEndpoint)]
    ranks = tuple(rank for one in complete_answers for rank in one.ranks)
    silent = tuple(text for one in complete_answers for text in one.silent)
    complete = {one.world_size for one in ranks} == {len(ranks)}  # then a pod without a sidecar is only a launcher
    return Answers(ranks, silent if complete else (*silent, *without))
