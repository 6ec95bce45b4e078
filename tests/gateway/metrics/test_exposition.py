"""Figures written in pieces are those that Prometheus' own client writes, and several gateways' are one page."""

import asyncio

from msgspec import structs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.metrics.exposition import merged, pieces
from gateway.metrics.gateway_metrics import Metrics
from gateway.metrics.inter_token_latency import InterTokenLatency
from gateway.metrics.ownership import PageOwner
from gateway.metrics.worker_metrics import WorkerFigures
from gateway.workers.worker import Worker
from infra.redis.records import WorkerRecord
from infra.redis.worker_load import STEP_SIZES


def filled() -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("a", 'A "text"\\n', ["x"], registry=registry)
    histogram = Histogram("b", "B", ["x"], registry=registry, buckets=(1, 2, 5))
    for number in range(100):
        counter.labels(f'{number}"\n').inc(number / 3)
        histogram.labels(str(number)).observe(number)
    Gauge("c", "C", registry=registry).set(7)
    Counter("none", "Without a sample", ["x"], registry=registry)
    return registry


def test_pieces_add_up_to_what_the_client_writes() -> None:
    registry = filled()
    found = list(pieces(registry, {}))
    assert len(found) > 10
    assert "".join(found).encode() == generate_latest(registry)


def test_a_label_is_put_on_every_sample() -> None:
    families = text_string_to_metric_families("".join(pieces(filled(), {"gateway": "g1"})))
    samples = [sample for family in families for sample in family.samples]
    assert len(samples) > 700 and all(sample.labels["gateway"] == "g1" for sample in samples)


def test_the_figures_of_several_gateways_are_one_page() -> None:
    texts = ["".join(pieces(filled(), {"gateway": name})) for name in ("g1", "g2")]
    page = "".join(merged(texts))
    families = {family.name: family for family in text_string_to_metric_families(page)}
    alone = {family.name: family for family in text_string_to_metric_families(texts[0])}
    assert families.keys() == alone.keys()
    assert all(len(families[name].samples) == 2 * len(alone[name].samples) for name in alone)
    assert page.count("# TYPE a_total counter") == 1


def workers(count: int) -> list[Worker]:
    record = WorkerRecord("", "decode", "", "", "m", "f", "c", 16, 99, "cpu", "fp32", 0.0)
    return [Worker(structs.replace(record, epoch=f"e{number}", ranks=1 + number % 2)) for number in range(count)]


def of_workers(count: int) -> Collector:
    """Returns what collects the figures of so many workers."""
    return WorkerFigures("m", workers(count))


def test_parts_of_a_family_are_written_as_one() -> None:
    together, apart = list(pieces(of_workers(1), {})), list(pieces(of_workers(100), {}))
    page = "".join(apart)
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert page.count("# HELP") == len(families) == "".join(together).count("# HELP")
    assert len(families["vllm:iteration_tokens_total"].samples) == 100 * (len(STEP_SIZES) + 3)
    caches = families["vllm:cache_config_info"].samples
    assert {sample.labels["engine"] for sample in caches} == {f"e{number}" for number in range(100)}
    assert [sample.value for sample in families["baton:worker_ranks"].samples] == [1.0, 2.0] * 50


def test_nothing_makes_the_samples_of_a_hundred_workers_at_once() -> None:
    assert max(len(metric.samples) for metric in of_workers(100).collect()) <= 200
    assert max(text.count("\n") for text in pieces(of_workers(100), {})) <= 50


def test_the_texts_of_several_gateways_are_read_in_turns() -> None:
    texts = ["".join(pieces(filled(), {"gateway": name})) for name in ("g1", "g2", "g3")]
    found = list(merged(texts))
    assert found[:3] == ["", "", ""] and all(found[3:])


async def test_others_have_turns_while_a_page_of_a_hundred_workers_is_written() -> None:
    metrics = Metrics("m", workers(100))
    writing = asyncio.ensure_future(metrics.page(PageOwner("g1")))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5 and len(await writing) > 100_000


def test_gaps_are_counted_as_the_client_counts_them() -> None:
    bounds, values = (0.001, 0.01, 0.1), (0.0005, 0.001, 0.002, 0.05, 3.0)
    theirs, ours = (
        Histogram("g", "G", ["model_name"], registry=None, buckets=bounds),
        InterTokenLatency("g", "G", bounds, "m"),
    )
    for value in values:
        theirs.labels("m").observe(value)
        theirs.labels("m").observe(value)
        ours.observe(value, 2)
    assert _samples(ours) == [one for one in _samples(theirs) if not one[0].endswith("_created")]


def _samples(collector: Collector) -> list[tuple[str, dict[str, str], float]]:
    return [(one.name, one.labels, one.value) for metric in collector.collect() for one in metric.samples]
