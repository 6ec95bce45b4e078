"""Measures how long a gateway takes to give up many streams at once, as it does when a worker dies.

    python -m benchmarks.stress.giving_up [--streams 8192]

In one process, without sockets: each stream's attempt is given up, and its workers are told. The event loop stands
still for so long, so the time for each stream should not grow with their number.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from contracts.ids import AttemptKey, SampleKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from gateway.reports.metrics import Metrics
from gateway.requests.attempt import Attempt
from gateway.requests.dispatch import Dispatch
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.workers.directory import WorkerDirectory
from gateway.workers.worker import Placed
from infra.config.gateway import GatewayConfig
from infra.network.sealing import Sealer
from infra.redis.clients import connect
from infra.redis.queue import JOB_PURPOSE
from infra.redis.store import ServerClock
from pricing.route import Route

ROUTE = Route("prefill", "decode")
REQUEST_TIMEOUT_S = 600.0  # that a request may take


class Listener:
    """Stands for the connection to a worker, and counts what it is told."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.own_sequences = 0
        self.cancelled = 0

    def cancel(self, key: AttemptKey) -> None:
        self.cancelled += 1

    def settles(self, placed: Placed) -> None:
        """Takes what a worker's figures are kept by; here there are none."""


def given_up(streams: int) -> tuple[float, int]:
    workers = WorkerDirectory()
    listeners: list[Any] = [Listener(epoch) for epoch in ROUTE.workers()]
    for listener in listeners:
        workers.add(listener)
    sealer = Sealer(b"0123456789abcdef", JOB_PURPOSE)
    config, store, metrics = GatewayConfig(model="m"), connect("redis://127.0.0.1"), Metrics("m", workers)
    dispatch = Dispatch(config, "gateway", store, sealer, ServerClock(), workers, metrics)
    admitted = AdmittedPrompt(Prompt([1, 2, 3], 3), Sampling(1), Limits(16))
    now = time.monotonic()
    samples = [
        Sample(SampleKey(f"gateway-{number:x}", 0), admitted, now + REQUEST_TIMEOUT_S) for number in range(streams)
    ]
    for sample in samples:
        sample.begin(Attempt(1, ROUTE, now), now)
    began = time.monotonic()
    for sample in samples:
        dispatch.give_up(sample)
    return time.monotonic() - began, sum(listener.cancelled for listener in listeners)


def rows(most: int) -> Iterator[str]:
    streams = max(1, most // 8)
    while streams <= most:
        seconds, cancelled = given_up(streams)
        each = 1e6 * seconds / streams
        yield f"{streams} streams given up in {seconds:.3f} s: {each:.0f} us each, {cancelled} cancellations sent"
        streams *= 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.stress.giving_up", description=__doc__)
    parser.add_argument("--streams", type=int, default=8192)
    for line in rows(parser.parse_args().streams):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
