"""Endpoints about the server itself: readiness, version, load, statistics, metrics, and a page with links."""

import platform
from collections import Counter
from typing import Any

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from contracts.messages.wire import VERSION as PROTOCOL
from contracts.version import BATON_VERSION
from gateway.metrics.gateway_metrics import CONTENT_TYPE
from gateway.metrics.predictions import Predicted
from gateway.service import Gateway
from gateway.web.endpoint import Endpoint
from gateway.web.routes.models import context_of
from gateway.web.routes.page import page
from gateway.web.serving import Serving, reply
from gateway.workers.unreached import UnreachedPair
from infra.redis.records import GatewayRecord, Judgement, WorkerRecord
from pricing.scaling.standing import Standing


class HealthReport(Struct, frozen=True):
    """Whether a request would be served, and the progress of the start."""

    status: str  # `ok` or `unavailable`
    stage: str
    percent: float


class Version(Struct, frozen=True):
    """Names the version of the server."""

    version: str


class LoadReport(Struct, frozen=True):
    """Counts the answers in progress."""

    server_load: int


class GatewayStatus(Struct, frozen=True):
    """Describes the gateway that was asked: no secret, no address, no path."""

    model: str
    max_model_len: int | None
    started_at: float  # s since 1970
    versions: dict[str, str]
    settings: dict[str, int | float | bool | str]
    predicted: Predicted


class GatewayLife(Struct, frozen=True):
    """A gateway that shares the port."""

    epoch: str
    started_at: float  # s since 1970
    in_progress: int  # answers, as last reported
    judged: dict[Judgement, int]  # requests that have ended since `started_at`


class Stats(Struct, frozen=True):
    """The reports of the gateway and of the workers."""

    gateway: GatewayStatus
    workers: list[WorkerRecord]
    standing: Standing  # of the workers by role, as last seen by the gateway that was asked
    gateways: list[GatewayLife]  # all gateways that share this port; empty: the port is not shared
    unreached: tuple[UnreachedPair, ...]  # the first of each pair cannot connect to the second
    judged: dict[Judgement, int]  # requests that have ended: of all gateways that share this port, else of this one
    unloaded: str  # `unloaded` or `loading again`: the model was idle (--idle-unload); empty: it is loaded


class Nothing(Struct, frozen=True):
    """The answer of a gateway that accepts requests: an empty object."""


def endpoints(serving: Serving) -> list[Endpoint]:
    gateway = serving.gateway

    async def health(request: Request) -> Response:
        stage, percent = gateway.readiness()
        ready = gateway.serves()
        state = HealthReport("ok" if ready else "unavailable", stage, percent)
        return reply(state, 200 if ready else 503, {} if ready else {"retry-after": "1"})

    async def ping(request: Request) -> Response:
        return reply(Nothing())

    async def version(request: Request) -> Response:
        return reply(Version(BATON_VERSION))

    async def load(request: Request) -> Response:
        return reply(LoadReport(await gateway.all_in_progress()))

    async def stats(request: Request) -> Response:
        found = [_life(record) for record in await gateway.siblings()]
        judged = (
            sum((Counter(life.judged) for life in found), Counter[Judgement]()) if found else gateway.metrics.judged
        )
        standing, unreached = gateway.metrics.roles.standing, gateway.discovery.unreached
        return reply(
            Stats(
                _gateway_status(gateway),
                await gateway.worker_records(),
                standing,
                found,
                unreached,
                dict(judged),
                gateway.unloaded.stage(),
            )
        )

    async def metrics(request: Request) -> Response:
        return Response(await gateway.metrics_page(), media_type=CONTENT_TYPE)

    async def index(request: Request) -> Response:
        return HTMLResponse(page(gateway.model, gateway.readiness()[0], str(request.base_url).rstrip("/")))

    unready = {503: HealthReport}
    return [
        Endpoint(
            "GET", "/health", health, "Says whether a request would be served.", answer=HealthReport, others=unready
        ),
        Endpoint(
            "GET", "/ready", health, "Says whether a request would be served.", answer=HealthReport, others=unready
        ),
        Endpoint("GET", "/ping", ping, "Answers as soon as the gateway does.", answer=Nothing),
        Endpoint("POST", "/ping", ping, "Answers as soon as the gateway does.", answer=Nothing),
        Endpoint("GET", "/version", version, "Names the version.", answer=Version),
        Endpoint("GET", "/load", load, "Counts the answers in progress.", answer=LoadReport),
        Endpoint("GET", "/stats", stats, "Returns the reports of the gateway and of the workers.", answer=Stats),
        Endpoint("GET", "/metrics", metrics, "Returns metrics for Prometheus.", media=CONTENT_TYPE),
        Endpoint("GET", "/", index, "Shows a page with links.", media="text/html; charset=utf-8", shown=False),
    ]


def _life(record: GatewayRecord) -> GatewayLife:
    return GatewayLife(record.epoch, record.started_at, record.in_progress, record.judged)


def _gateway_status(gateway: Gateway) -> GatewayStatus:
    """Returns only settings that cannot be secrets: numbers, switches, and enumerations."""
    config: dict[str, Any] = structs.asdict(gateway.config)
    enumerations = ("log_level", "spelled_tokens")
    settings = {name: value for name, value in config.items() if isinstance(value, int | float) or name in enumerations}
    versions = {"baton": BATON_VERSION, "protocol": str(PROTOCOL), "python": platform.python_version()}
    predicted = gateway.metrics.predictions.summary()
    return GatewayStatus(gateway.model, context_of(gateway), float(gateway.created), versions, settings, predicted)
