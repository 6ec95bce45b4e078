"""Reports what the workers' engines say of their steps and of their KV cache, under vLLM's names."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from core.redis.records import STEP_SIZES, StepTokens
from gateway.workers.worker import Worker

_BOUNDS = (*(str(float(size)) for size in STEP_SIZES), "+Inf")


def engine_families(model: str, workers: Iterable[Worker]) -> Iterator[Metric]:
    """Yields a histogram of tokens in a step, and what each worker's cache consists of."""
    steps = HistogramMetricFamily(
        "vllm:iteration_tokens_total",
        "Tokens of a step, of prompts and of output",
        labels=["model_name", "engine", "role"],
    )
    caches = GaugeMetricFamily(
        "vllm:cache_config_info",
        "KV cache of a worker",
        labels=["model_name", "engine", "role", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"],
    )
    for record in (worker.record for worker in workers):
        labels = [model, record.epoch, record.role]
        load = record.load
        steps.add_metric(labels, _cumulative(load.step_tokens), load.step_tokens.tokens)
        caches.add_metric(
            [*labels, str(record.block_tokens), str(load.blocks_total), record.kv_dtype or record.dtype, "True"], 1
        )
    yield steps
    yield caches


def _cumulative(counts: StepTokens) -> list[tuple[str, float]]:
    """Returns the steps of at most so many tokens, by bound."""
    steps = counts.steps or (0,) * len(_BOUNDS)
    return list(zip(_BOUNDS, map(float, accumulate(steps)), strict=False))
