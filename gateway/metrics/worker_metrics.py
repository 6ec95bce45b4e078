"""Metrics of each worker, from the records that workers publish."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.engine_metrics import engine_families
from gateway.metrics.exposition import worker_batches
from gateway.metrics.handoff_metrics import handoff_families
from gateway.metrics.worker_info import info_families
from gateway.workers.worker import Worker
from infra.redis.worker_load import WorkerLoad

_WORKER_LABELS = ["model_name", "engine", "role"]
_Family = GaugeMetricFamily | CounterMetricFamily
_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


class OwnSequences(Collector):
    """This gateway's sequences on all workers; the sum over gateways is a worker's number."""

    def __init__(self, model: str, workers: Iterable[Worker]) -> None:
        self._model = model
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        for some in worker_batches(self._workers):
            family = GaugeMetricFamily(
                "baton:worker_sequences", "This gateway's, now in progress there", labels=_WORKER_LABELS
            )
            for worker in some:
                family.add_metric([self._model, worker.record.epoch, worker.record.role], worker.own_sequences)
            yield family


class WorkerFigures(Collector):
    """The workers' last reported figures."""

    def __init__(self, model: str, workers: Iterable[Worker]) -> None:
        self._model = model
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        workers = list(self._workers)
        for kind, name, text, of_worker in _OF_WORKER:
            for some in worker_batches(workers):
                yield self._family(kind(name, text, labels=_WORKER_LABELS), some, map(of_worker, some))
        for kind, name, text, of_load in _OF_LOAD:
            for some in worker_batches(workers):
                yield self._family(
                    kind(name, text, labels=_WORKER_LABELS), some, (of_load(one.record.load) for one in some)
                )
        yield from info_families(self._model, workers)
        yield from engine_families(self._model, workers)
        yield from handoff_families(self._model, workers)

    def _family(self, family: _Family, workers: Iterable[Worker], values: Iterable[float]) -> _Family:
        for worker, value in zip(workers, values, strict=True):
            family.add_metric([self._model, worker.record.epoch, worker.record.role], value)
        return family


def _wasted(load: WorkerLoad) -> float:
    return load.kv.wasted_slots / load.kv.used_slots if load.kv.used_slots else 0.0


_OF_WORKER: list[tuple[_Kind, str, str, Callable[[Worker], float]]] = [
    (GaugeMetricFamily, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", Worker.kv_use),
    (GaugeMetricFamily, "baton:worker_usable", "1 if requests may go there", lambda one: float(one.usable)),
]
_OF_LOAD: list[tuple[_Kind, str, str, Callable[[WorkerLoad], float]]] = [
    (GaugeMetricFamily, "vllm:num_requests_running", "Sequences in the batch", lambda load: load.running),
    (GaugeMetricFamily, "vllm:num_requests_waiting", "Sequences that wait", lambda load: load.waiting),
    (CounterMetricFamily, "vllm:num_preemptions", "Preempted sequences", lambda load: load.preemptions),
    (CounterMetricFamily, "vllm:prefix_cache_queries", "Tokens looked up", lambda load: load.kv.queried_tokens),
    (CounterMetricFamily, "vllm:prefix_cache_hits", "Tokens found", lambda load: load.kv.found_tokens),
    (CounterMetricFamily, "vllm:spec_decode_num_drafts", "Works with guesses", lambda load: load.speculation.guessed),
    (
        CounterMetricFamily,
        "vllm:spec_decode_num_draft_tokens",
        "Guesses that were verified",
        lambda load: load.speculation.proposed,
    ),
    (
        CounterMetricFamily,
        "vllm:spec_decode_num_accepted_tokens",
        "Guesses that came true",
        lambda load: load.speculation.accepted_tokens,
    ),
    (
        CounterMetricFamily,
        "baton:decode_works",
        "Sequences' worker_batches of steps that decode, a token each and the guesses that came true",
        lambda load: load.speculation.works,
    ),
    (
        GaugeMetricFamily,
        "baton:speculation_saved_seconds",
        "Time of steps that guesses have saved, less that of their rows",
        lambda load: load.speculation.saved_seconds,
    ),
    (CounterMetricFamily, "baton:handoffs", "Sequences handed off", lambda load: load.handoffs),
    (GaugeMetricFamily, "baton:kv_wasted_slots_ratio", "Share of used token slots without a token, 0 to 1", _wasted),
    (GaugeMetricFamily, "baton:kv_blocks_cached", "Idle blocks with cached KV", lambda load: load.blocks_cached),
    (CounterMetricFamily, "baton:kv_blocks_evicted", "Those that gave way", lambda load: load.kv.evicted_blocks),
    (CounterMetricFamily, "baton:kv_blocks_spilled", "To the host tier", lambda load: load.kv.spilled_blocks),
    (CounterMetricFamily, "baton:kv_blocks_returned", "From the host tier", lambda load: load.kv.returned_blocks),
    (CounterMetricFamily, "baton:kv_blocks_copied", "Copies on write", lambda load: load.kv.copied_blocks),
    (
        CounterMetricFamily,
        "baton:preemptions_swapped",
        "Preempted sequences that went on with blocks from the host tier",
        lambda load: load.kv.preempted_swapped,
    ),
    (
        CounterMetricFamily,
        "baton:preemptions_recomputed",
        "Preempted sequences that computed a block again",
        lambda load: load.kv.preempted_recomputed,
    ),
]
