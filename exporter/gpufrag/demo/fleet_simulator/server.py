"""The HTTP server: /jobs/NAME/metrics for each job, and /targets for Prometheus (http_sd_configs)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ... import metrics
from ...web.asgi import make_app
from ...web.executor import SerialExecutor
from .film import Film
from .fleet import Job, Period, see


def app(
    jobs: Sequence[Job],
    films: Mapping[str, Film],
    period: Period,
    *,
    detail: bool = True,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """The jobs start when this is called."""
    by_name, begun, worker = {job.name: job for job in jobs}, clock(), SerialExecutor("gpufrag-fleet")

    async def scrape(request: Request) -> Response:
        job = by_name.get(request.path_params["job"])
        if job is None:
            return PlainTextResponse("no such job; see /targets\n", 404)
        accept = request.headers.get("accept", "")
        content_type, body = await worker.run(
            lambda: metrics.render(see(job, films, period, begun, clock()), accept, detail=detail)
        )
        return Response(body, headers={"content-type": content_type})

    async def targets(request: Request) -> Response:
        found = [target(job, request.url.netloc) for job in jobs]
        return Response(json.dumps(found), media_type="application/json")

    async def index(request: Request) -> Response:
        paths = ["targets", *(f"jobs/{job.name}/metrics" for job in jobs)]
        return PlainTextResponse("gpufrag simulate-fleet\n" + "".join(f"{request.base_url}{p}\n" for p in paths))

    return make_app([Route("/", index), Route("/targets", targets), Route("/jobs/{job}/metrics", scrape)])


def target(job: Job, address: str) -> dict[str, object]:
    """Return a target of http_sd_configs, with the labels that a cluster's service discovery would add."""
    labels = {
        "__metrics_path__": f"/jobs/{job.name}/metrics",
        "instance": f"{job.name}-0:9836",
        "namespace": job.namespace,
        "job_name": job.name,
        "pod": f"{job.name}-0",
    }
    return {"targets": [address], "labels": labels}
