"""The ranks of a job in Kubernetes, asked through the sidecars of its pods."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from ...checkpoint.coordinator import AskRanks
from ...checkpoint.protocol import Answers, RankCommand
from ...errors import Unavailable
from ...wire.codec import Misfit, loads
from ..settings import CheckpointSettings
from .cluster import Cluster, GroupKind, Pod
from .owners import Resolved
from .targets import Target

PATH = "/v1/checkpoint"
MAX_ANSWER = 8 << 20
AT_ONCE = 32


class NoEndpoint(Exception):
    """Nothing at this pod's address can be asked for a checkpoint: it may have no sidecar, and no rank."""


class Sidecars:
    """How sidecars are reached. Raises Unavailable for a CA file that cannot be used."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._context = _context(settings)

    def ask(self, pod: Pod, ask: RankCommand) -> Answers | NoEndpoint:
        """What the ranks of one pod answer; its silence is told in the answer."""
        try:
            return self._asked(pod, ask)
        except NoEndpoint as error:
            return error
        except (OSError, HTTPException, ValueError, RecursionError, Misfit) as error:
            return Answers(silent=(f"pod {pod.name}: {type(error).__name__}: {error}",))

    def _asked(self, pod: Pod, ask: RankCommand) -> Answers:
        if not pod.ip:
            raise NoEndpoint(f"pod {pod.name} has no address yet")
        connection = self._connection(pod.ip)
        try:
            connection.request("POST", f"{PATH}/{ask.name}", json.dumps(dict(ask.fields)), self._headers())
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER)
        except ConnectionRefusedError:
            raise NoEndpoint(f"pod {pod.name}: nobody listens on port {self._settings.port}") from None
        finally:
            connection.close()
        if answer.status in (404, 405):
            raise NoEndpoint(f"pod {pod.name}: its sidecar takes no commands: give it control.token_file")
        if answer.status != 200:
            raise ValueError(_REFUSALS.get(answer.status, f"answered {answer.status}"))
        return Answers.from_json(loads(body))

    def _connection(self, address: str) -> HTTPConnection:
        port, timeout = self._settings.port, self._settings.call_timeout
        if self._context is None:
            return HTTPConnection(address, port, timeout=timeout)
        return _NamedHTTPS(address, port, self._context, timeout, self._settings.server_name)

    def _headers(self) -> dict[str, str]:
        assert self._settings.token_file is not None
        token = self._settings.token_file.read_text(encoding="utf-8").split()
        if not token:
            raise ValueError("checkpoint.token_file is empty")
        return {"authorization": f"Bearer {token[0]}", "content-type": "application/json"}


class _NamedHTTPS(HTTPSConnection):
    """Certificates hold names, and pods are reached by address."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext, timeout: float, name: str | None) -> None:
        super().__init__(address, port, context=context, timeout=timeout)
        self._tls, self._name = context, name or address

    def connect(self) -> None:
        HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def reaching(
    cluster: Cluster, targets: Mapping[GroupKind, Target], settings: CheckpointSettings
) -> Callable[[Resolved], AskRanks]:
    """For each job, what asks all its pods."""
    sidecars = Sidecars(settings)

    def ranks(job: Resolved) -> AskRanks:
        pods: list[Pod] = []

        def ask(wanted: RankCommand) -> Answers:
            if wanted.name == "prepare":  # the others are for those who were prepared
                found = targets[job.owner.group_kind].pods(cluster, job.owner)
                pods[:] = [pod for pod in found if pod.alive and not pod.deleting]
            return _all(sidecars, pods, wanted)

        return ask

    return ranks


def _all(sidecars: Sidecars, pods: Sequence[Pod], wanted: RankCommand) -> Answers:
    if not pods:
        return Answers(silent=("the job has no pod that runs",))
    with ThreadPoolExecutor(min(AT_ONCE, len(pods))) as threads:
        answers = list(threads.map(lambda pod: sidecars.ask(pod, wanted), pods))
    heard = [answer for answer in answers if isinstance(answer, Answers)]
    without = [str(answer) for answer in answers if isinstance(answer, NoEndpoint)]
    ranks = tuple(rank for one in heard for rank in one.ranks)
    silent = tuple(text for one in heard for text in one.silent)
    whole = {one.world_size for one in ranks} == {len(ranks)}  # then a pod without a sidecar is a mere launcher
    return Answers(ranks, silent if whole else (*silent, *without))


_REFUSALS = {
    401: "its sidecar does not know our token (checkpoint.token_file, control.token_file there)",
    503: "its sidecar is busy, or its folder cannot be read",
}


def _context(settings: CheckpointSettings) -> ssl.SSLContext | None:
    if settings.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # SSLError is one
        raise Unavailable(f"checkpoint.ca_file: {error}; it is to hold certificates of authorities") from None
