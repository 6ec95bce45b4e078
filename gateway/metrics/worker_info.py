"""Metrics that say who a worker is, and how often its launcher has started it again."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.exposition import worker_batches
from gateway.workers.worker import Worker
from infra.redis.records import WorkerRecord


def info_families(model: str, workers: Iterable[Worker]) -> Iterator[Metric]:
    """Yields `baton:worker_info` and `baton:worker_restarts`, in parts of a few workers each.

    The first joins the label `engine` of all other metrics to a place. The second has labels that outlive a restart.
    """
    parts = worker_batches(worker.record for worker in workers)
    for records in parts:
        info = GaugeMetricFamily("baton:worker_info", "Place of a worker; the value is 1", labels=_INFO_LABELS)
        for record in records:
            gpu = record.device if record.device.startswith("cuda") else ""
            where = [record.place.host, record.service, record.device, gpu, record.place.label, record.dtype]
            info.add_metric([model, record.epoch, record.role, *where], 1)
        yield info
    for records in parts:
        restarts = CounterMetricFamily(
            "baton:worker_restarts", "Restarts of a worker by its launcher", labels=["model_name", *_LASTING_LABELS]
        )
        for record in records:
            if record.service:
                restarts.add_metric([model, *_lasting(record)], record.restarts)
        yield restarts


_INFO_LABELS = ["model_name", "engine", "role", "host", "service", "device", "gpu", "node_label", "dtype"]
_LASTING_LABELS = ["role", "host", "service"]


def _lasting(record: WorkerRecord) -> list[str]:
    return [record.role, record.place.host, record.service]
