"""Measures a real system under more load than it can serve: `python -m benchmarks.front.overload [--baseline DIR]`.

`baton up` with 2 prefill and 2 decode workers serves a model with random weights. A burst shows its capacity, in
requests per second. Then requests arrive at a multiple of that (Poisson), each with an objective (`x-slo-ttft-ms`,
`x-slo-tpot-ms`). Figures are the share of accepted requests that met it, the delay of refusals, and goodput: requests
per second that met it. With `--baseline` another checkout is measured in the same run, under the same arrivals.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.models.random_model import SHAPES, make
from benchmarks.processes.children import child, exit_status
from benchmarks.processes.python_path import ROOT
from benchmarks.processes.usable import usable_workers, wait_until
from benchmarks.report import head, row
from benchmarks.send_at import send_at
from contracts.slo import SLO, Timings, parse_objective, percentile
from infra.completions_client import CompletionEvents
from launcher.checking.preflight import check_port
from launcher.stages import StageDisplay
from workloads.arrivals import Arrivals

HOST = "127.0.0.1"
WORKER_COUNT = 4
ANSWER_TIMEOUT_S = 120.0  # s after which an answer is given up
OVERLOAD_COLUMNS = (
    "side",
    "bears/s",
    "sent",
    "accepted",
    "met",
    "TTFT p95 ms",
    "TPOT p95 ms",
    "refused",
    "after p99 ms",
    "failed",
    "goodput/s",
    "error of predicted TTFT",
)
BURST_REQUESTS = 48  # requests that are sent at once, to see what can be borne


class Outcome(NamedTuple):
    """A request's status and times."""

    status: int  # 0: it broke off
    answered: float  # s until the status came
    timings: Timings | None = None


class Measured(NamedTuple):
    """Results of one checkout."""

    bears: float  # requests/s
    outcomes: list[Outcome]
    seconds: float  # in which the load came
    error: float | None  # median error of predicted times to the first token


@contextmanager
def system(checkout: Path, model: Path, directory: Path, keys: Path | None = None, operator: str = "") -> Iterator[str]:
    """Runs `baton up` of a checkout, and gives its URL once all workers are used. Raises `BatonError`.

    `keys`: a file of API keys that are asked for, `operator`: one of these that may see figures.
    """
    port = check_port("--port", HOST, 0)
    log = directory / "up.log"
    words = ["up", "--model", str(model), "--prefill", "2", "--decode", "2", "--device", "cpu"]
    words += ["--port", str(port), "--dashboard-port", "0", "--kv-memory", "256MiB", "--log-level", "warning"]
    words += ["--api-keys", str(keys)] if keys is not None else []
    url = f"http://{HOST}:{port}"
    settings = {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1", "XDG_RUNTIME_DIR": str(directory)}
    with child([sys.executable, "-m", "launcher", *words], log, settings=settings) as process:
        wait_until(lambda: usable_workers(url, operator) == WORKER_COUNT, f"baton up of {checkout}", log, process)
        yield url


async def ask(client: httpx.AsyncClient, body: dict[str, Any], headers: Mapping[str, str]) -> Outcome:
    sent, events, first, last, tokens = time.perf_counter(), CompletionEvents(), 0.0, 0.0, 0
    status, answered = 0, 0.0
    try:
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            status, answered = response.status_code, time.perf_counter() - sent
            async for data in response.aiter_bytes():
                for chunk in events.feed(data) if status == httpx.codes.OK else ():
                    if chunk.text:
                        last = time.perf_counter()
                        first = first or last
                    tokens = chunk.tokens or tokens
    except httpx.HTTPError:
        return Outcome(0, time.perf_counter() - sent)
    if status != httpx.codes.OK or not events.ended or not first:
        return Outcome(status if status != httpx.codes.OK else 0, answered)
    return Outcome(status, answered, Timings(1000 * (first - sent), 1000 * (last - sent), tokens))


def body_of(shape: str, tokens: int, output: int, chance: random.Random) -> dict[str, Any]:
    prompt = chance.choices(range(SHAPES[shape][0]), k=tokens)
    fixed = {"max_tokens": output, "temperature": 0, "ignore_eos": True, "stream": True}
    return {"prompt": prompt, **fixed, "stream_options": {"include_usage": True}}


async def measure(url: str, given: argparse.Namespace, slo: SLO) -> Measured:
    chance = random.Random(1)
    headers = {"x-slo-ttft-ms": f"{slo.ttft_ms:g}", "x-slo-tpot-ms": f"{slo.tpot_ms:g}"}

    def body() -> dict[str, Any]:
        return body_of(given.shape, given.prompt, given.output, chance)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S, limits=limits) as client:
        await asyncio.gather(*[ask(client, body(), {}) for _ in range(4)])  # warms up
        begin = time.perf_counter()
        await asyncio.gather(*[ask(client, body(), {}) for _ in range(BURST_REQUESTS)])
        bears = BURST_REQUESTS / (time.perf_counter() - begin)
        rate = given.times * (given.bears or bears)
        bodies = [body() for _ in range(round(rate * given.seconds))]
        sends = [partial(ask, client, one, headers) for one in bodies]
        times = islice(Arrivals(rate).times(chance), len(bodies))
        outcomes = await asyncio.gather(*await send_at(times, sends, time.perf_counter()))
        facts = (await client.get("/stats")).json()
    told = facts["gateway"].get("predicted") or {}
    return Measured(bears, outcomes, given.seconds, told.get("median_error") if told.get("requests") else None)


def line(name: str, measured: Measured, slo: SLO) -> str:
    accepted = [one for one in measured.outcomes if one.status == httpx.codes.OK and one.timings is not None]
    refused = [one for one in measured.outcomes if one.status == httpx.codes.TOO_MANY_REQUESTS]
    failed = len(measured.outcomes) - len(accepted) - len(refused)
    met = sum(slo.met_by(one.timings) for one in accepted if one.timings is not None)
    ttft = percentile([one.timings.ttft_ms for one in accepted if one.timings is not None], 0.95)
    tpot = percentile([one.timings.tpot_ms() for one in accepted if one.timings is not None], 0.95)
    late = 1000 * percentile([one.answered for one in refused], 0.99)
    error = "" if measured.error is None else f"{measured.error:.0%}"
    share = met / len(accepted) if accepted else 0.0
    counts = (
        f"{measured.bears:.1f}",
        len(measured.outcomes),
        len(accepted),
        f"{share:.1%}",
        f"{ttft:.0f}",
        f"{tpot:.0f}",
    )
    return row(name, *counts, len(refused), f"{late:.0f}", failed, f"{met / measured.seconds:.2f}", error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front.overload", description=__doc__)
    parser.add_argument("--baseline", type=Path, help="directory of another checkout, measured after this one")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="135m")
    parser.add_argument("--slo", default="ttft=2s,tpot=250ms", help="objective of each request")
    parser.add_argument("--times", type=float, default=2.0, help="times the load that it can bear")
    parser.add_argument("--bears", type=float, default=0.0, help="requests/s that it can bear; 0: measured")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens")
    given = parser.parse_args()
    wanted = parse_objective(given.slo)
    slo = wanted.limits(SLO(2000.0, 100.0))
    sides = {"this code": ROOT} | ({"baseline": given.baseline.resolve()} if given.baseline else {})

    def work(stages: StageDisplay) -> None:
        load = f"{given.prompt} + {given.output} tokens, {given.times:g} times what it bears"
        print(f"{given.shape}, {load}, {given.slo}")
        print(head(*OVERLOAD_COLUMNS), flush=True)
        with tempfile.TemporaryDirectory(prefix="baton-overload-") as temporary:
            model = Path(temporary, "model")
            make(model, given.shape)
            for name, checkout in sides.items():
                directory = Path(temporary, name.replace(" ", "-"))
                directory.mkdir(mode=0o700)
                with system(checkout, model, directory) as url:
                    measured = asyncio.run(measure(url, given, slo))
                print(line(name, measured, slo), flush=True)
                given.bears = given.bears or measured.bears  # the same load for both

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
