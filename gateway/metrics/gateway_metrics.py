"""Prometheus metrics, under the names that dashboards for LLM serving query, and Baton's own goodput."""

import platform
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from contracts.messages.wire import VERSION as PROTOCOL
from contracts.version import BATON_VERSION
from gateway.metrics.choice_metrics import ChoiceMetrics
from gateway.metrics.exposition import joined_in_turns, merged, pieces
from gateway.metrics.inter_token_latency import InterTokenLatency
from gateway.metrics.ownership import PageOwner
from gateway.metrics.predictions import Predictions
from gateway.metrics.role_metrics import RoleMetrics
from gateway.metrics.tenant_metrics import TenantMetrics
from gateway.metrics.worker_metrics import OwnSequences, WorkerFigures
from gateway.workers.worker import Worker
from infra.redis.records import FinishedRecord, Judgement

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Buckets in seconds, of times per request and of times per token.
_REQUEST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_BUILD_LABELS = ["version", "protocol", "python"]
_READ_GAUGES = {
    "baton:requests_waiting": "Requests that wait until workers have room, or until they can keep their objective",
    "baton:model_unloaded": "1 while the model is unloaded because it was idle; the next request loads it",
    "baton:pairs_unreached": "Pairs of a gateway or prefill worker, and a worker that it cannot connect to",
}
"""Gauges that are read from other parts of the gateway, with their help texts."""


class Metrics:
    """Counts of one gateway life; the workers' figures are read from their records at every scrape."""

    def __init__(self, model: str, workers: Iterable[Worker]) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self.judged: Counts[Judgement] = Counts()  # requests that have ended
        self.choices = ChoiceMetrics(model, self._registry)
        self.predictions = Predictions(model, self._registry)
        self.roles = RoleMetrics(model)
        self._registry.register(self.roles.own)
        self.tenants = TenantMetrics(model, self._registry)
        self._workers = workers
        self._registry.register(OwnSequences(model, workers))
        ProcessCollector(registry=self._registry)
        build = Gauge("baton:build_info", "Versions; the value is 1", _BUILD_LABELS, registry=self._registry)
        build.labels(BATON_VERSION, str(PROTOCOL), platform.python_version()).set(1)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _REQUEST_BUCKETS_S) -> Histogram:
            return Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=self._registry).labels(model)

        def counters(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["model_name", *labels], registry=self._registry)

        self._ttft = histogram("vllm:time_to_first_token_seconds", "Time from receipt to the first output token")
        self.inter_token_latency = InterTokenLatency(
            "vllm:inter_token_latency_seconds", "Time between two output tokens of a request", _TOKEN_BUCKETS_S, model
        )
        self._registry.register(self.inter_token_latency)
        self._tpot = histogram(
            "vllm:request_time_per_output_token_seconds", "(End to end - TTFT) / (output tokens - 1)", _TOKEN_BUCKETS_S
        )
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "Time from receipt to the last output token")
        self._queue = histogram("vllm:request_queue_time_seconds", "Wait on the prefill worker")
        self._prefill = histogram("vllm:request_prefill_time_seconds", "Computation of the prompt")
        self._handoff = histogram("baton:request_handoff_time_seconds", "Time of the KV handoff")
        self._grant = histogram("baton:request_handoff_grant_seconds", "Wait for KV blocks of the decode worker")
        self._exposed = histogram(
            "baton:request_handoff_exposed_seconds", "Time of the KV handoff after the prompt was computed"
        )
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens")
        self._output = counter("vllm:generation_tokens", "Output tokens")
        self._success = counters("vllm:request_success", "Requests that finished", "finished_reason")
        self._ended = counters("baton:requests_ended", "Requests that ended, in any way", "outcome")
        self._good = counter("baton:requests_good", "Finished requests that met their SLO; its rate is the goodput")
        self._missed = counters("baton:requests_late", "Finished requests that missed ttft, tpot or both", "missed")
        self._bytes = counters("baton:handoff_bytes", "KV bytes that were handed off", "transport", "sealed", "codec")
        self._placed = counters("baton:attempts_placed", "Attempts, by who computes the prompt", "path")
        self._retries = counters(
            "baton:attempts_retried", "Attempts that failed and were followed by another", "reason"
        )
        self._dropped = counter("baton:messages_dropped", "Messages that were stale, unknown or malformed")
        self._refused = counters("baton:requests_refused", "Requests answered with an error", "status", "code")
        self._died = counters("baton:workers_died", "Workers that died, as this gateway saw it", "role")
        in_progress = "baton:requests_in_progress"
        self._in_progress = Gauge(
            in_progress, "Requests of this gateway in progress", ["model_name"], registry=self._registry
        ).labels(model)
        for role in ("prefill", "decode"):
            self._died.labels(model, role)

    def add_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Adds one of `_READ_GAUGES`, whose value `read` returns at each scrape."""
        gauge = Gauge(name, _READ_GAUGES[name], ["model_name"], registry=self._registry)
        gauge.labels(self._model).set_function(read)

    def opened(self) -> None:
        self._in_progress.inc()

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def placed(self, path: str) -> None:
        self._placed.labels(self._model, path).inc()

    def retried(self, reason: str) -> None:
        self._retries.labels(self._model, reason).inc()

    def dropped(self) -> None:
        self._dropped.inc()

    def worker_died(self, role: str) -> None:
        self._died.labels(self._model, role).inc()

    def refused(self, status: int, code: str) -> None:
        self._refused.labels(self._model, str(status), code).inc()

    def ended(self, record: FinishedRecord) -> None:
        self._in_progress.dec()
        self.judged[record.judged()] += 1
        self._ended.labels(self._model, record.outcome).inc()
        self.tenants.ended(record)
        self._prompt.inc(record.prompt_tokens)
        self._output.inc(record.output_tokens)
        if record.handoff_bytes:
            transfer = (record.transport, str(record.sealed).lower(), record.codec)
            self._bytes.labels(self._model, *transfer).inc(record.handoff_bytes)
        if record.outcome != "finished":
            return
        self._success.labels(self._model, record.reason).inc()
        if record.good:
            self._good.inc()
        else:
            missed = record.objective.missed(record.ttft_ms, record.tpot_ms)
            self._missed.labels(self._model, missed).inc()
        self._e2e.observe(record.e2e_ms / 1000)
        self._queue.observe(record.queue_ms / 1000)
        self._prefill.observe(record.prefill_ms / 1000)
        self._handoff.observe(record.handoff_ms / 1000)
        if record.handoff_ms:
            self._grant.observe(record.grant_ms / 1000)
            self._exposed.observe(record.exposed_ms / 1000)
        if record.output_tokens > 1:
            self._tpot.observe(record.tpot_ms / 1000)

    async def own(self, more: Mapping[str, str]) -> str:
        return await joined_in_turns(pieces(self._registry, more))

    async def page(self, owner: PageOwner, gateways: Sequence[str] = ()) -> str:
        """Returns all metrics: the texts of `gateways`, or else this gateway's own, and those of workers it owns."""
        own = await joined_in_turns(merged(gateways)) if gateways else await self.own({})
        of_workers = WorkerFigures(self._model, [worker for worker in self._workers if owner.owns(worker.record)])
        return own + await joined_in_turns(chain(pieces(of_workers, {}), pieces(self.roles.of_workers, {})))
