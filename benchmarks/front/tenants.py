"""Measures how one tenant's flood delays another tenant: `python -m benchmarks.front.tenants`.

`baton up` with 2 prefill and 2 decode workers serves two tenants of equal weight. A burst shows the capacity, in
requests per second. Then windows alternate: in one, the first tenant sends a share of the capacity, in the next a
multiple of it. The other tenant always sends the same rate, below its share. Figures are its TTFT, and the ratio of
TTFT beside the flood to TTFT beside the share. Arrivals are Poisson's, without objectives, and prompts of equal length.
The rest of a flood is cancelled when its window ends, and the next window begins on an empty system.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.front.overload import BURST_REQUESTS, Outcome, ask, body_of, system
from benchmarks.models.random_model import SHAPES, make
from benchmarks.processes.children import exit_status
from benchmarks.processes.python_path import ROOT
from benchmarks.processes.usable import bearer
from benchmarks.report import head, row
from benchmarks.send_at import send_at
from contracts.errors import BatonError
from contracts.slo import percentile
from infra.keys.api_key import KeyOptions, NewKey, make_key
from infra.keys.key_file import change_keys
from launcher.stages import StageDisplay
from workloads.arrivals import Arrivals

ANSWER_TIMEOUT_S = 300.0  # s after which an answer is given up
CANCEL_TIMEOUT_S = 60.0  # within which cancelled requests end
TENANT_COLUMNS = (
    "beside",
    "sends/s",
    "answered of its",
    "other's requests",
    "other's TTFT p50 ms",
    "other's TTFT p95 ms",
    "windows' p95, ms",
)


class Window(NamedTuple):
    """Outcomes of one window."""

    other: list[Outcome]
    first: list[Outcome]


class Tenants:
    """Sends requests of two tenants to one gateway."""

    def __init__(self, url: str, given: argparse.Namespace, keys: tuple[NewKey, ...]) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, timeout=ANSWER_TIMEOUT_S, limits=httpx.Limits(max_connections=None)
        )
        self._given = given
        self._chance = random.Random(given.seed)
        self._first, self._other, self._operator = (bearer(key.text) for key in keys)

    async def bears(self) -> float:
        await self._at_once(4)  # warms up
        begin = time.perf_counter()
        await self._at_once(BURST_REQUESTS)
        return BURST_REQUESTS / (time.perf_counter() - begin)

    async def window(self, rate: float, other: float) -> Window:
        first = asyncio.create_task(self._load(rate, self._given.lead + self._given.seconds, self._first))
        await asyncio.sleep(self._given.lead)
        outcomes = await _all(await self._load(other, self._given.seconds, self._other))
        tasks = await first
        done = [task.result() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._empty()
        return Window(outcomes, done)

    async def close(self) -> None:
        await self._client.aclose()

    async def _load(self, rate: float, seconds: float, headers: Mapping[str, str]) -> list[asyncio.Task[Outcome]]:
        count = max(1, round(rate * seconds))
        times = islice(Arrivals(rate).times(self._chance), count)
        return await send_at(times, [partial(self._ask, headers)] * count, time.perf_counter())

    def _ask(self, headers: Mapping[str, str]) -> Coroutine[Any, Any, Outcome]:
        given = self._given
        return ask(self._client, body_of(given.shape, given.prompt, given.output, self._chance), headers)

    async def _at_once(self, count: int) -> None:
        await asyncio.gather(*[self._ask(self._other) for _ in range(count)])

    async def _empty(self) -> None:
        until = time.monotonic() + CANCEL_TIMEOUT_S
        while (await self._client.get("/load", headers=self._operator)).json()["server_load"]:
            if time.monotonic() > until:
                raise BatonError(f"requests are still in progress {CANCEL_TIMEOUT_S:g} s after they were cancelled")
            await asyncio.sleep(0.1)


async def _all(tasks: list[asyncio.Task[Outcome]]) -> list[Outcome]:
    return list(await asyncio.gather(*tasks))


def ttfts(outcomes: list[Outcome]) -> list[float]:
    """Returns times to the first token, ms. Raises `BatonError` for a request without an answer."""
    failed = [one.status for one in outcomes if one.timings is None]
    if failed:
        raise BatonError(f"{len(failed)} of the other tenant's requests were not answered: {failed[:8]}")
    return [one.timings.ttft_ms for one in outcomes if one.timings is not None]


async def measure(url: str, given: argparse.Namespace, keys: tuple[NewKey, ...]) -> None:
    tenants = Tenants(url, given, keys)
    bears = given.bears or await tenants.bears()
    rates = {"its share": given.share * bears, "its flood": given.flood * bears}
    print(f"bears {bears:.1f} requests/s; the other sends {given.other * bears:.2f}/s", flush=True)
    windows: dict[str, list[Window]] = {name: [] for name in rates}
    for _ in range(given.rounds):
        for name, rate in rates.items():
            windows[name].append(await tenants.window(rate, given.other * bears))
    await tenants.close()
    print(head(*TENANT_COLUMNS))
    p95 = {}
    for name, rate in rates.items():
        each = [ttfts(window.other) for window in windows[name]]
        together = [one for some in each for one in some]
        p95[name] = percentile(together, 0.95)
        answered = sum(one.timings is not None for window in windows[name] for one in window.first)
        parts = ", ".join(f"{percentile(some, 0.95):.0f}" for some in each)
        print(row(name, f"{rate:.1f}", answered, len(together), f"{median(together):.0f}", f"{p95[name]:.0f}", parts))
    print(f"beside the flood / beside the share: {p95['its flood'] / p95['its share']:.2f} (wanted: 1.3 at most)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front.tenants", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="135m")
    parser.add_argument("--bears", type=float, default=0.0, help="requests/s that it can bear; 0: measured")
    parser.add_argument("--share", type=float, default=0.5, help="of that, what the first tenant sends as its share")
    parser.add_argument("--flood", type=float, default=2.0, help="times that, what it sends as a flood")
    parser.add_argument("--other", type=float, default=0.25, help="of that, what the other tenant sends")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a window")
    parser.add_argument("--lead", type=float, default=5.0, help="seconds that the first tenant sends before a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each side")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        with tempfile.TemporaryDirectory(prefix="baton-tenants-") as temporary:
            directory = Path(temporary)
            directory.chmod(0o700)
            options = [KeyOptions(tenant="a"), KeyOptions(tenant="b"), KeyOptions(tenant="c", operator=True)]
            keys = tuple(make_key(one.tenant, one, time.time()) for one in options)
            change_keys(directory / "keys.json", lambda known: [key.record for key in keys], create=True)
            make(directory / "model", given.shape)
            print(f"{given.shape}, {given.prompt} + {given.output} tokens", flush=True)
            with system(ROOT, directory / "model", directory, directory / "keys.json", keys[-1].text) as url:
                asyncio.run(measure(url, given, keys))

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
