"""Metrics of handoffs from the workers' reports. Label values are a few fixed words of the workers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gateway.metrics.exposition import worker_batches
from gateway.workers.worker import Worker
from infra.redis.records import WorkerRecord

_Family = GaugeMetricFamily | CounterMetricFamily
_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
_Values = Mapping[tuple[str, ...], float]  # figures by the values of their labels


def handoff_families(model: str, workers: Iterable[Worker]) -> Iterator[_Family]:
    """Yields all metrics of handoffs, as last reported, in parts of a few workers each."""
    parts = worker_batches(worker.record for worker in workers)
    for kind, name, text, labels, values in _HANDOFF_FAMILIES:
        for records in parts:
            family = kind(name, text, labels=["model_name", "engine", "role", *labels])
            for record in records:
                for words, value in values(record).items():
                    family.add_metric([model, record.epoch, record.role, *words], value)
            yield family


def _of_each(counts: Mapping[str, float]) -> _Values:
    return {(word,): count for word, count in counts.items()}


def _seconds(record: WorkerRecord) -> _Values:
    counts = record.load.handoff
    if record.role == "decode":
        return {("land",): counts.land_seconds}
    return {("grant",): counts.grant_seconds, ("send",): counts.send_seconds, ("exposed",): counts.exposed_seconds}


def _blocks(record: WorkerRecord) -> _Values:
    held = record.load.held
    taken = ("reserved", held.reserved) if record.role == "decode" else ("pinned", held.pinned)
    return _of_each(dict([taken, ("quarantined", held.quarantined)]))


def _links(record: WorkerRecord) -> _Values:
    return Counter((link.transport, str(link.sealed).lower(), link.codec) for link in record.links)


_HANDOFF_FAMILIES: list[tuple[_Kind, str, str, tuple[str, ...], Callable[[WorkerRecord], _Values]]] = [
    (CounterMetricFamily, "baton:handoff_seconds", "Seconds of successful handoffs, by stage", ("stage",), _seconds),
    (
        CounterMetricFamily,
        "baton:handoffs_given_up",
        "Handoffs that failed, by reason",
        ("reason",),
        lambda record: _of_each(record.load.handoff.given_up),
    ),
    (
        CounterMetricFamily,
        "baton:handoff_frames_dropped",
        "Messages and payloads of handoffs that were dropped, by reason",
        ("reason",),
        lambda record: _of_each(record.load.handoff.dropped),
    ),
    (GaugeMetricFamily, "baton:handoff_blocks", "KV blocks that handoffs hold", ("state",), _blocks),
    (
        GaugeMetricFamily,
        "baton:handoff_links",
        "Links that KV passes over",
        ("transport", "sealed", "codec"),
        _links,
    ),
]
