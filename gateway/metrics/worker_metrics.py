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
_LoadMetric = tuple[str, str, Callable[[WorkerLoad], float]]  # name, help text, value


class OwnSequences(Collector):
    """The sequences of this gateway on each worker; their sum over all gateways is the number on the worker."""

    def __init__(self, model: str, workers: Iterable[Worker]) -> None:
        self._model = model
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        text = "Sequences of this gateway in progress on the worker"
        for workers in worker_batches(self._workers):
            family = GaugeMetricFamily("baton:worker_sequences", text, labels=_WORKER_LABELS)
            yield _filled(family, self._model, workers, (worker.own_sequences for worker in workers))


class WorkerFigures(Collector):
    """What the workers last reported of themselves."""

    def __init__(self, model: str, workers: Iterable[Worker]) -> None:
        self._model = model
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        workers = list(self._workers)
        batches = worker_batches(workers)
        for name, text, of_worker in _WORKER_GAUGES:
            for batch in batches:
                family = GaugeMetricFamily(name, text, labels=_WORKER_LABELS)
                yield _filled(family, self._model, batch, map(of_worker, batch))
        for kind, metrics in ((GaugeMetricFamily, _LOAD_GAUGES), (CounterMetricFamily, _LOAD_COUNTERS)):
            for name, text, of_load in metrics:
                for batch in batches:
                    values = (of_load(worker.record.load) for worker in batch)
                    yield _filled(kind(name, text, labels=_WORKER_LABELS), self._model, batch, values)
        yield from info_families(self._model, workers)
        yield from engine_families(self._model, workers)
        yield from handoff_families(self._model, workers)


def _filled(family: _Family, model: str, workers: Iterable[Worker], values: Iterable[float]) -> _Family:
    for worker, value in zip(workers, values, strict=True):
        family.add_metric([model, worker.record.epoch, worker.record.role], value)
    return family


def _wasted_slots_ratio(load: WorkerLoad) -> float:
    return load.kv.wasted_slots / load.kv.used_slots if load.kv.used_slots else 0.0


_WORKER_GAUGES: list[tuple[str, str, Callable[[Worker], float]]] = [
    ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", Worker.kv_use),
    ("baton:worker_usable", "1 if requests may go to the worker", lambda worker: float(worker.usable)),
]
_LOAD_GAUGES: list[_LoadMetric] = [
    ("vllm:num_requests_running", "Sequences in the batch", lambda load: load.running),
    ("vllm:num_requests_waiting", "Sequences that wait for the batch", lambda load: load.waiting),
    (
        "baton:speculation_saved_seconds",
        "Time of decode steps that draft tokens saved, less the time to verify them",
        lambda load: load.speculation.saved_seconds,
    ),
    (
        "baton:kv_wasted_slots_ratio",
        "Share of the token slots of used KV blocks that hold no token, 0 to 1",
        _wasted_slots_ratio,
    ),
    ("baton:kv_blocks_cached", "KV blocks of no sequence that hold a cached prefix", lambda load: load.blocks_cached),
]
_LOAD_COUNTERS: list[_LoadMetric] = [
    ("vllm:num_preemptions", "Preempted sequences", lambda load: load.preemptions),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda load: load.kv.queried_tokens),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda load: load.kv.found_tokens),
    (
        "vllm:spec_decode_num_drafts",
        "Decode steps of a sequence with draft tokens",
        lambda load: load.speculation.guessed,
    ),
    ("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified", lambda load: load.speculation.proposed),
    ("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens", lambda load: load.speculation.accepted_tokens),
    (
        "baton:decode_works",
        "Decode steps of a sequence, each of which gives a token and the accepted draft tokens",
        lambda load: load.speculation.works,
    ),
    ("baton:handoffs", "Sequences handed off", lambda load: load.handoffs),
    ("baton:kv_blocks_evicted", "Cached KV blocks that were evicted for others", lambda load: load.kv.evicted_blocks),
    ("baton:kv_blocks_spilled", "KV blocks copied to the host tier", lambda load: load.kv.spilled_blocks),
    ("baton:kv_blocks_returned", "KV blocks copied back from the host tier", lambda load: load.kv.returned_blocks),
    ("baton:kv_blocks_copied", "Shared KV blocks copied before a write", lambda load: load.kv.copied_blocks),
    (
        "baton:preemptions_swapped",
        "Preempted sequences that went on with KV blocks from the host tier",
        lambda load: load.kv.preempted_swapped,
    ),
    (
        "baton:preemptions_recomputed",
        "Preempted sequences that computed KV blocks again",
        lambda load: load.kv.preempted_recomputed,
    ),
]
