"""Requests to the ranks of a job through the sidecars of its pods."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from ...checkpoint.coordinator import AskRanks
from ...checkpoint.protocol import Answers, RankCommand
from ...errors import Unavailable
from ...wire.codec import Misfit, loads
from ..backend import Job
from ..settings import CheckpointSettings
from .objects import Pod

PATH = "/v1/checkpoint"
MAX_ANSWER = 8 << 20
MAX_PARALLEL = 32


class NoEndpoint(Exception):
    """The pod does not accept checkpoint requests. It may have no sidecar, and no rank."""


class Sidecars:
    """Connections to sidecars. Raises Unavailable if checkpoint.ca_file cannot be read."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        if settings.ca_file is not None:
            try:
                self._context = ssl.create_default_context(cafile=settings.ca_file)
            except OSError as error:  # SSLError is one
                raise Unavailable(f"checkpoint.ca_file: cannot read certificates: {error}") from None

    def ask(self, pod: Pod, command: RankCommand) -> Answers | NoEndpoint:
        """Return the answers of the ranks of one pod, or why there are none."""
        try:
            return self._post(pod, command)
        except NoEndpoint as error:
            return error
        except (OSError, HTTPException, ValueError, RecursionError, Misfit) as error:
            return Answers(silent=(f"pod {pod.name}: {type(error).__name__}: {error}",))

    def _post(self, pod: Pod, command: RankCommand) -> Answers:
        if not pod.ip:
            raise NoEndpoint(f"pod {pod.name} has no IP address")
        connection = self._connection(pod.ip)
        try:
            connection.request("POST", f"{PATH}/{command.name}", json.dumps(dict(command.fields)), self._headers())
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER)
        except ConnectionRefusedError:
            raise NoEndpoint(f"pod {pod.name}: connection to port {self._settings.port} refused") from None
        finally:
            connection.close()
        if answer.status in (404, 405):
            raise NoEndpoint(f"pod {pod.name}: its sidecar accepts no requests: set control.token_file there")
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


_REFUSALS = {
    401: "its sidecar rejects the token (checkpoint.token_file here, control.token_file there)",
    503: "its sidecar is busy, or cannot read its folder",
}


class _NamedHTTPS(HTTPSConnection):
    """Verifies a host name although it connects to an address: certificates rarely hold pod addresses."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext, timeout: float, name: str | None) -> None:
        super().__init__(address, port, context=context, timeout=timeout)
        self._tls, self._name = context, name or address

    def connect(self) -> None:
        HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


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
    heard = [answer for answer in answers if isinstance(answer, Answers)]
    without = [str(answer) for answer in answers if isinstance(answer, NoEndpoint)]
    ranks = tuple(rank for one in heard for rank in one.ranks)
    silent = tuple(text for one in heard for text in one.silent)
    complete = {one.world_size for one in ranks} == {len(ranks)}  # then a pod without a sidecar is only a launcher
    return Answers(ranks, silent if complete else (*silent, *without))
