"""Writes metrics in Prometheus' text format in pieces: with a hundred workers the text would block the event loop."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

SAMPLES_PER_PIECE = 32  # samples in one piece of text
WORKERS_PER_PIECE = 8  # workers whose samples are made at once
TURN_S = 0.0004  # s of writing before other tasks get a turn
WorkerT = TypeVar("WorkerT")


def worker_batches(workers: Iterable[WorkerT]) -> list[list[WorkerT]]:
    """Divides workers into groups whose samples are made at once; at least one group, which may be empty."""
    found = list(workers)
    return [found[begin : begin + WORKERS_PER_PIECE] for begin in range(0, len(found), WORKERS_PER_PIECE)] or [[]]


class _SingleMetric(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def pieces(collector: Collector, more: Mapping[str, str]) -> Iterator[str]:
    """Yields the text that `generate_latest` would write, with `more` labels on each sample.

    A collector may yield a family in consecutive parts, each with some of its samples.
    """
    last = ""
    for metric in collector.collect():
        created = metric.name + "_created"  # `_created` samples form a separate family, which comes last
        later = [sample for sample in metric.samples if sample.name == created]
        samples = [sample for sample in metric.samples if sample.name != created]
        cut = [samples[begin : begin + SAMPLES_PER_PIECE] for begin in range(0, len(samples), SAMPLES_PER_PIECE)] or [
            []
        ]
        for number, some in enumerate([*cut, *([later] if later else [])]):
            part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            part.samples = [one._replace(labels={**one.labels, **more}) for one in some] if more else some
            text = generate_latest(_SingleMetric(part)).decode()
            yield text.split("\n", 2)[2] if number or metric.name == last else text  # HELP and TYPE are written once
        last = metric.name


async def joined_in_turns(texts: Iterable[str]) -> str:
    """Joins texts that are made lazily, with pauses for other tasks."""
    found, until = [], time.monotonic() + TURN_S
    for text in texts:
        found.append(text)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + TURN_S
    return "".join(found)


def merged(texts: Iterable[str]) -> Iterator[str]:
    """Merges several texts: yields each family once, with the samples of all texts; yields "" between texts."""
    families: dict[str, list[str]] = {}
    for text in texts:
        yield ""
        head, samples = "", list[str]()
        for line in text.splitlines(keepends=True):
            if line.startswith("# HELP"):
                head = line
            elif line.startswith("# TYPE"):
                samples = families.setdefault(head + line, [])
            else:
                samples.append(line)
    for head, lines in families.items():
        yield head + "".join(lines)
