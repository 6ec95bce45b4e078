"""Tells metrics, the dashboard, the access log and traces about requests that have ended."""

import time

from contracts.slo import SLO
from gateway.metrics.gateway_metrics import Metrics
from gateway.reports.access_log import log_ended
from gateway.reports.publisher import Publisher
from gateway.requests.records import finished_record
from gateway.requests.request import Request
from gateway.requests.sample import State
from infra.config.gateway import GatewayConfig
from infra.redis.store import ServerClock


class EndReports:
    """Makes the record of each request that has ended, and hands it on."""

    def __init__(
        self, config: GatewayConfig, model: str, clock: ServerClock, metrics: Metrics, publisher: Publisher
    ) -> None:
        self._model = model
        self._slo = SLO(config.slo_ttft_ms, config.slo_tpot_ms)
        self._logs_ends = config.access_log
        self._clock = clock
        self._metrics = metrics
        self._publisher = publisher

    def ended(self, request: Request) -> None:
        record = finished_record(request, self._model, self._slo, time.monotonic(), self._clock.server_now())
        self._metrics.ended(record)
        shapes = [stream.shape() for stream in request.streams if stream.sample.state is State.FINISHED]
        for shape in shapes:
            self._metrics.choices.finished(shape)
        if record.outcome == "finished":
            self._metrics.choices.request(shapes)
        self._publisher.ended(record)
        if self._logs_ends:
            log_ended(record, request.trace.id if request.trace is not None else "")
        if request.trace is not None:
            request.trace.ended(record)
