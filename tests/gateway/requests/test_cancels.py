"""Cancellations until they are acknowledged: pure, with time as an argument."""

import time
from typing import Any

import pytest

from contracts.ids import AttemptKey, SampleKey, Ticket
from contracts.messages.job import AnyJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.attempt import Attempt
from gateway.requests.cancels import Cancels, Target
from gateway.requests.dispatch import Dispatch
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.workers.connection import WorkerConnection
from gateway.workers.directory import WorkerDirectory
from gateway.workers.worker import Placed
from infra.config.gateway import GatewayConfig
from pricing.routes.route import Route
from tests.effort import lines_run

ROUTE = Route("prefill", "decode")
REQUEST_TIMEOUT_S = 600.0  # that a request may take


class Listener:
    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.own_sequences = 0
        self.cancelled = 0

    def cancel(self, key: AttemptKey) -> None:
        self.cancelled += 1

    def settles(self, placed: Placed) -> None:
        pass

    def joins(self, *directory: object) -> None:
        pass


async def nowhere(job: AnyJob) -> Ticket:
    raise AssertionError("no job is placed here")


def given_up(streams: int) -> int:
    """Gives up one attempt of each of `streams`; returns the number of cancellations sent."""
    workers = WorkerDirectory[WorkerConnection]()
    listeners: list[Any] = [Listener(epoch) for epoch in ROUTE.workers()]
    for listener in listeners:
        workers.add(listener)
    config, metrics = GatewayConfig(model="m"), Metrics("m", workers)
    dispatch = Dispatch(config, "gateway", nowhere, time.time, workers, metrics)
    admitted = AdmittedPrompt(Prompt([1, 2, 3], 3), Sampling(1), Limits(16))
    now = time.monotonic()
    samples = [
        Sample(SampleKey(f"gateway-{number:x}", 0), admitted, now + REQUEST_TIMEOUT_S) for number in range(streams)
    ]
    for sample in samples:
        sample.begin(Attempt(1, ROUTE, now), now)
    for sample in samples:
        dispatch.give_up(sample, "client_gone")
    return sum(listener.cancelled for listener in listeners)


def test_a_cancellation_is_repeated_until_acknowledged() -> None:
    cancels = Cancels()
    first, second = AttemptKey("r", 0, 1), AttemptKey("r", 0, 2)
    assert cancels.add("w", second, 0.0, 100.0) == second
    assert cancels.due(0.1) == []
    assert cancels.add("w", first, 0.1, 100.0) == second, "which covers it"
    assert cancels.due(0.25) == []
    assert cancels.due(0.31) == [("w", second)]
    assert cancels.due(0.5) == []
    assert cancels.due(0.75) == [("w", second)], "each wait is twice as long"
    assert cancels.acknowledged("w", first), "of an older attempt"
    assert Target("w", second.of) in cancels
    assert cancels.acknowledged("w", second)
    assert cancels.due(50.0) == [] and len(cancels) == 0
    assert not cancels.acknowledged("w", second)


def test_cancellations_end_with_the_worker_or_the_deadline() -> None:
    cancels = Cancels()
    cancels.add("w", AttemptKey("r", 0, 1), 0.0, 100.0)
    cancels.add("v", AttemptKey("r", 0, 1), 0.0, 5.0)
    cancels.worker_gone("w")
    assert len(cancels) == 1
    cancels.due(5.0)
    assert len(cancels) == 0


@pytest.mark.parametrize("streams", [32, 512])
def test_what_is_cancelled_is_sent_once_to_each_worker(streams: int) -> None:
    assert given_up(streams) == 2 * streams


def test_a_cancellation_costs_the_same_however_many_are_open() -> None:
    """A worker's death cancels all that it had at once, on the event loop."""
    few, many = (lines_run(lambda count=count: given_up(count)) / count for count in (32, 512))  # type: ignore[misc]
    assert many < 2 * few
