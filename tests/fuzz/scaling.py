"""Shows growing and shrinking on Ray: `python -m tests.fuzz.scaling`.

A cluster of two nodes on this machine runs `baton up --on ray --autoscale`. Requests come by chance (Poisson), so many
a second at first, then twice as many, then as many as at first, whether or not others have been answered. What counts:
how soon workers follow, that no request fails, and that changes keep to their waits.
"""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import httpx
from msgspec import Meta, Struct

from benchmarks.front.overload import ask, body_of
from benchmarks.processes.children import exit_status
from benchmarks.random_model import make
from contracts.errors import BatonError
from contracts.kinds import Positive, Seconds
from infra.cli import parse_or_exit
from launcher.stages import StageDisplay
from tests.e2e.harness.ray_cluster import RayCluster, ray_cluster

LOOK_SECONDS = 0.5
BEFORE_SECONDS = 20.0  # of the load as it is at first
ANSWER_SECONDS = 300.0


class ScalingConfig(Struct, frozen=True, kw_only=True):
    """Doubles and halves the load of a deployment on Ray, and prints how its workers follow."""

    shape: Annotated[Literal["tiny", "135m"], Meta(description="of the model, which is random")] = "tiny"
    rules: Annotated[str, Meta(description="what --autoscale is given")] = "decode=1:2,up=5s,down=15s"
    slo: Annotated[str, Meta(description="what --slo is given")] = "ttft=2s,tpot=100ms"
    rate: Annotated[Seconds, Meta(description="requests a second at first; then twice as many, then as at first")] = 9.0
    kv_memory: Annotated[str, Meta(description="of each worker")] = "3MiB"
    prompt: Annotated[Positive, Meta(description="tokens of a prompt")] = 64
    output: Annotated[Positive, Meta(description="tokens of an answer")] = 400
    seconds: Annotated[Seconds, Meta(description="of the doubled load, and of the halved one")] = 45.0


class Clients:
    """Sends requests, so many a second, and counts what became of them."""

    def __init__(self, url: str, config: ScalingConfig) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=httpx.Limits(max_connections=None))
        self._config = config
        self._chance = random.Random(0)
        self._tasks: list[asyncio.Task[None]] = []
        self._began = time.monotonic()
        self._counts: list[int] = []  # of workers that serve, when last looked at
        self.changes: list[float] = []  # s since the beginning
        self.answered = self.refused = self.failed = 0

    async def phase(self, rate: float, seconds: float) -> None:
        """Sends so many requests a second for so long, and tells when the workers that serve are others than before."""
        now = time.monotonic()
        print(f"{now - self._began:6.1f} s: {rate:g} requests a second", flush=True)
        until, next_request, next_look = now + seconds, now, now
        while (now := time.monotonic()) < until:
            if now >= next_request:
                self._tasks.append(asyncio.create_task(self._asks()))
                next_request += self._chance.expovariate(rate)
            if now >= next_look:
                await self._look()
                next_look += LOOK_SECONDS
            await asyncio.sleep(max(0.0, min(next_request, next_look) - time.monotonic()))

    async def _look(self) -> None:
        standing = (await self._http.get("/stats")).json()["standing"]
        counts = [sum(one["usable"] for one in standing[role]["workers"]) for role in ("prefill", "decode")]
        if counts != self._counts and all(counts):
            at = time.monotonic() - self._began
            self.changes += [at] if self._counts else []
            self._counts = counts
            print(f"{at:6.1f} s: {counts[0]} prefill, {counts[1]} decode workers serve", flush=True)

    async def end(self) -> None:
        """Waits for the answers that are under way."""
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _asks(self) -> None:
        """Asks until there is an answer, or it fails: who is told to come back does."""
        config = self._config
        body = body_of(config.shape, config.prompt, config.output, self._chance)
        while (outcome := await ask(self._http, body, {})).status == httpx.codes.TOO_MANY_REQUESTS:
            self.refused += 1
            await asyncio.sleep(LOOK_SECONDS)
        if outcome.timings is not None:
            self.answered += 1
            return
        self.failed += 1
        at = time.monotonic() - self._began
        print(f"{at:6.1f} s: a request failed, status {outcome.status or 'none: cut off'}", flush=True)


async def measure(url: str, config: ScalingConfig) -> Clients:
    """Puts the load on a deployment."""
    clients = Clients(url, config)
    await clients.phase(config.rate, BEFORE_SECONDS)
    await clients.phase(2 * config.rate, config.seconds)
    await clients.phase(config.rate, config.seconds)
    await clients.end()
    return clients


def run(cluster: RayCluster, directory: Path, config: ScalingConfig, stages: StageDisplay) -> Clients:
    """Has a deployment follow the load. Raises `BatonError` where it does not start."""
    model = directory / "model"
    make(model, config.shape)
    words = ["up", "--on", "ray", "--model", str(model), "--prefill", "1", "--decode", "1", "--detach"]
    words += ["--port", "0", "--dashboard-port", "0", "--kv-memory", config.kv_memory, "--slo", config.slo]
    stages.show("deployment", "starting")
    status, out, error = cluster.baton(directory, *words, "--autoscale", config.rules)
    if status != 0:
        raise BatonError(f"baton up does not become ready: {error or out}")
    stages.settle()
    clients = asyncio.run(measure(cluster.services()["gateway"].endpoint, config))
    print("\n".join(sentence for sentence in cluster.overview().sentences if "--autoscale" in sentence))
    cluster.baton(directory, "down")
    return clients


def main() -> int:
    """Prints how the workers followed; fails where a request did."""
    config = parse_or_exit(ScalingConfig, "tests.fuzz.scaling")
    failed = 0

    def work(stages: StageDisplay) -> None:
        nonlocal failed
        stages.show("cluster", "starting")
        with tempfile.TemporaryDirectory(prefix="scaling-") as directory, ray_cluster(1, [4, 4]) as cluster:
            clients = run(cluster, Path(directory), config, stages)
        print(
            f"{clients.answered} answers, {clients.refused} times told to come back, {clients.failed} failed; "
            f"{len(clients.changes)} changes"
        )
        failed = clients.failed

    return exit_status(work) or int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
