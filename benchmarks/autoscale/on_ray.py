"""Shows growing and shrinking on Ray: `python -m benchmarks.autoscale.on_ray [--seconds 60]`.

A cluster of two nodes on this machine (`ray.cluster_utils`) runs `baton up --on ray --autoscale`. Clients, each of
which sends its next request when it has its answer, are few at first, then twice as many, then as many as at first.
What counts: how soon workers follow, that no request fails, and that changes keep to their waits.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import ray
from ray.cluster_utils import Cluster

from benchmarks.front.overload import ask, body_of
from benchmarks.processes.children import child, exit_status, last_line
from benchmarks.random_model import SHAPES, make
from core.errors import BatonError
from launcher.checking.preflight import check_port
from launcher.stages import Stages

HOST = "127.0.0.1"
START_SECONDS = 240.0
LOOK_SECONDS = 0.5
BEFORE_SECONDS = 20.0  # of the load as it is at first
ANSWER_SECONDS = 300.0


class Clients:
    """Sends requests, so many at a time, and counts what became of them."""

    def __init__(self, url: str, given: argparse.Namespace) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=httpx.Limits(max_connections=None))
        self._given = given
        self._chance = random.Random(given.seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted = 0
        self._began = time.monotonic()
        self._counts: list[int] = []  # of workers that serve, when last looked at
        self.answered = self.failed = self.changes = 0

    async def phase(self, clients: int, seconds: float) -> None:
        """Keeps so many clients asking for so long, and tells when the workers that serve are others than before."""
        self._wanted = clients
        print(f"{time.monotonic() - self._began:6.1f} s: {clients} clients", flush=True)
        self._tasks += [asyncio.create_task(self._asks(number)) for number in range(len(self._tasks), clients)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            standing = (await self._http.get("/stats")).json()["standing"]
            counts = [sum(one["usable"] for one in standing[role]["workers"]) for role in ("prefill", "decode")]
            if counts != self._counts:
                self.changes += bool(self._counts)
                self._counts = counts
                at = time.monotonic() - self._began
                print(f"{at:6.1f} s: {counts[0]} prefill, {counts[1]} decode workers", flush=True)
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self) -> None:
        """Waits for the answers that are under way."""
        self._wanted = 0
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _asks(self, number: int) -> None:
        while self._wanted:
            if number >= self._wanted:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            given = self._given
            outcome = await ask(self._http, body_of(given.shape, given.prompt, given.output, self._chance), {})
            self.answered += outcome.timings is not None
            self.failed += outcome.timings is None


async def measure(url: str, given: argparse.Namespace) -> Clients:
    """Puts the load on a deployment."""
    clients = Clients(url, given)
    await clients.phase(given.clients, BEFORE_SECONDS)
    await clients.phase(2 * given.clients, given.seconds)
    await clients.phase(given.clients, given.seconds)
    await clients.end()
    return clients


def main() -> int:
    """Prints how the workers followed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale.on_ray", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rules", default="decode=1:2,up=5s,down=10s", help="--autoscale")
    parser.add_argument("--slo", default="ttft=2s,tpot=100ms")
    parser.add_argument("--clients", type=int, default=6, help="at first; then twice as many")
    parser.add_argument("--kv-memory", default="4MiB", help="of each worker")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--output", type=int, default=400, help="tokens")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the doubled load, and of the halved one")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    def work(stages: Stages) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        stages.show("cluster", "starting")
        with tempfile.TemporaryDirectory(prefix="ray-") as temporary:  # a short path: Ray makes sockets below it
            own = Path(temporary)  # each node has its own directory, as it would on its own machine
            head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": str(own / "0")}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                for number in (1, 2):
                    cluster.add_node(num_cpus=4, temp_dir=str(own / str(number)))
                _run(cluster.address, own, given, stages)
            finally:
                ray.shutdown()
                cluster.shutdown()

    return exit_status(work)


def _run(address: str, directory: Path, given: argparse.Namespace, stages: Stages) -> None:
    model = directory / "model"
    make(model, given.shape)
    port, log = check_port("--port", HOST, 0), directory / "up.log"
    words = ["up", "--on", "ray", "--ray-address", address, "--model", str(model), "--prefill", "1", "--decode", "1"]
    words += ["--port", str(port), "--dashboard-port", "0", "--kv-memory", given.kv_memory, "--slo", given.slo]
    words += ["--autoscale", given.rules]
    settings = {"PYTHONSAFEPATH": "1", "XDG_STATE_HOME": str(directory)}
    with child([sys.executable, "-m", "launcher", *words], log, settings=settings) as process:
        url = f"http://{HOST}:{port}"
        stages.show("deployment", "starting")
        _await(url, process, log)
        stages.settle()
        try:
            clients = asyncio.run(measure(url, given))
        except httpx.HTTPError as error:
            raise BatonError(f"the deployment does not answer: {error!r}; its last word: {last_line(log)}") from error
        print(f"{clients.answered} answers, {clients.failed} failed; {clients.changes} changes")
        print("\n".join(line for line in log.read_text().splitlines() if "--autoscale" in line))


def _await(url: str, process: subprocess.Popen[str], log: Path) -> None:
    """Waits until the deployment serves. Raises `BatonError`."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise BatonError(f"baton up does not become ready: {last_line(log)}")
        time.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(main())
