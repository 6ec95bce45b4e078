"""Metrics of the workers' steps, KV caches and draft tokens, under vLLM's names."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.exposition import worker_batches
from gateway.workers.worker import Worker
from infra.redis.records import WorkerRecord
from infra.redis.worker_load import STEP_SIZES, StepTokens

_STEP_TOKEN_BUCKETS = (*(str(float(size)) for size in STEP_SIZES), "+Inf")


def engine_families(model: str, workers: Iterable[Worker]) -> Iterator[Metric]:
    """Yields tokens per step, KV caches, accepted draft tokens and ranks, each in parts of a few workers."""
    parts = worker_batches(worker.record for worker in workers)
    yield from (_steps(model, records) for records in parts)
    yield from (_caches(model, records) for records in parts)
    yield from (_accepted(model, records) for records in parts)
    yield from (_ranks(model, records) for records in parts)


def _steps(model: str, records: Iterable[WorkerRecord]) -> Metric:
    family = HistogramMetricFamily(
        "vllm:iteration_tokens_total",
        "Tokens of prompts and of output that a step computes",
        labels=["model_name", "engine", "role"],
    )
    for record in records:
        tokens = record.load.step_tokens
        family.add_metric([model, record.epoch, record.role], _cumulative(tokens), tokens.tokens)
    return family


def _caches(model: str, records: Iterable[WorkerRecord]) -> Metric:
    family = GaugeMetricFamily(
        "vllm:cache_config_info",
        "KV cache of a worker",
        labels=["model_name", "engine", "role", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"],
    )
    for record in records:
        cache = [str(record.block_tokens), str(record.load.blocks_total), record.kv_dtype or record.dtype, "True"]
        family.add_metric([model, record.epoch, record.role, *cache], 1)
    return family


def _accepted(model: str, records: Iterable[WorkerRecord]) -> Metric:
    family = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by their position in the draft",
        labels=["model_name", "engine", "role", "position"],
    )
    for record in records:
        for place, count in enumerate(record.load.speculation.accepted):
            family.add_metric([model, record.epoch, record.role, str(place)], count)
    return family


def _ranks(model: str, records: Iterable[WorkerRecord]) -> Metric:
    text = "Tensor-parallel ranks of the worker: processes that divide its model, each on a GPU"
    family = GaugeMetricFamily("baton:worker_ranks", text, labels=["model_name", "engine", "role"])
    for record in records:
        family.add_metric([model, record.epoch, record.role], record.ranks)
    return family


def _cumulative(counts: StepTokens) -> list[tuple[str, float]]:
    """Returns the number of steps up to each bucket's bound."""
    steps = counts.steps or (0,) * len(_STEP_TOKEN_BUCKETS)
    return list(zip(_STEP_TOKEN_BUCKETS, map(float, accumulate(steps)), strict=False))
