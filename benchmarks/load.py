"""Sends an open load with Poisson arrivals: `python -m benchmarks.load --url URL --rate R --requests N`.

A request is sent when its time comes, however many are still in progress, so that a slow server cannot slow down its
own load. TTFT here is from sending to the first piece of text; TPOT = (end-to-end - TTFT) / (output tokens - 1).

The requests are the dashboard's example chats or, with `--prompt-tokens`, completions of random token ids that are
never equal and always as long as they are asked to be: the same work for every server.
"""

import asyncio
import os
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import httpx
from msgspec import Meta, Struct

from benchmarks.report import processor
from contracts.errors import BatonError, ConfigError, GatewayError
from contracts.kinds import Positive, Seconds, TPOTLimit, TTFTLimit
from contracts.slo import SLO, Timings, percentile
from dashboard.prompts import TWENTY_PROMPTS
from infra.cli import parse_or_exit
from infra.completions_client import CompletionEvents, CompletionsClient, StreamedChunk, error_message

Answer = TypeVar("Answer")


class LoadConfig(Struct, frozen=True, kw_only=True):
    """Puts an open load on an OpenAI-compatible server, and measures the latency that its clients see."""

    url: Annotated[str, Meta(description="URL of the server, without /v1")] = "http://127.0.0.1:8000"
    model: Annotated[str, Meta(description="name of the model; empty: the first that the server names")] = ""
    rate: Annotated[float, Meta(gt=0, description="requests per second, on average")] = 2.0
    requests: Annotated[Positive, Meta(description="requests in all")] = 100
    max_tokens: Annotated[int, Meta(ge=0, description="output tokens at most; 0: as each prompt suits")] = 0
    prompt_tokens: Annotated[
        int, Meta(ge=0, description="prompts of so many random token ids, for --max-tokens each; 0: example chats")
    ] = 0
    vocabulary: Annotated[Positive, Meta(description="random token ids are below this")] = 4096
    slo_ttft_ms: TTFTLimit = 2000.0
    slo_tpot_ms: TPOTLimit = 100.0
    seed: Annotated[int, Meta(ge=0, description="seed of the arrivals and of the order of the prompts")] = 0
    timeout: Annotated[Seconds, Meta(description="seconds without a byte after which a request has failed")] = 60.0


class Result(NamedTuple):
    """One request as its client saw it: timings, or an error."""

    timings: Timings | None
    error: str
    ended_at: float  # s since the load's start


def arrivals(rate: float, count: int, chance: random.Random) -> Iterator[float]:
    """Yields the times of a Poisson process, s, beginning with 0."""
    at = 0.0
    for _ in range(count):
        yield at
        at += chance.expovariate(rate)


async def send_at(
    times: Iterable[float], requests: Iterable[Callable[[], Coroutine[Any, Any, Answer]]]
) -> list[asyncio.Task[Answer]]:
    """Starts each request at its time, s from now, and returns the tasks."""
    begin, tasks = time.perf_counter(), []
    for at, request in zip(times, requests, strict=True):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append(asyncio.create_task(request()))
    return tasks


def report(results: list[Result], slo: SLO) -> Iterator[str]:
    good = [result.timings for result in results if result.timings is not None]
    met = sum(slo.met_by(timings) for timings in good)
    span = max((result.ended_at for result in results), default=0.0) or 1.0
    tokens = sum(timings.output_tokens for timings in good)
    yield f"{'':8}{'p50':>10}{'p95':>10}{'p99':>10}   ms"
    yield _percentiles("TTFT", [timings.ttft_ms for timings in good])
    yield _percentiles("TPOT", [timings.tpot_ms() for timings in good if timings.output_tokens > 1])
    yield _percentiles("total", [timings.e2e_ms for timings in good])
    yield (
        f"goodput {met / span:.2f} requests/s: {met} of {len(results)} met "
        f"TTFT {slo.ttft_ms:g} ms and TPOT {slo.tpot_ms:g} ms"
    )
    yield f"output  {tokens / span:.1f} tokens/s, {tokens} tokens in {span:.1f} s"
    errors = Counter(result.error for result in results if result.error)
    yield f"errors  {errors.total()}"
    for error, count in errors.most_common(5):
        yield f"        {count} x {error}"


def machine() -> str:
    return f"machine {processor()}, {os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}"


class Request(NamedTuple):
    """Path and body of a request, without model and streaming."""

    path: str
    body: dict[str, Any]


def requests(config: LoadConfig, chance: random.Random) -> list[Request]:
    """Makes the load's requests, in order. Raises `ConfigError` for token ids without a length of the answer."""
    if not config.prompt_tokens:
        prompts = [chance.choice(TWENTY_PROMPTS) for _ in range(config.requests)]
        return [
            Request(
                "/v1/chat/completions",
                {
                    "messages": [{"role": "user", "content": prompt.text}],
                    "max_tokens": config.max_tokens or prompt.max_tokens,
                },
            )
            for prompt in prompts
        ]
    if not config.max_tokens:
        raise ConfigError("--max-tokens", 0, "random token ids suit no length; say how long each answer is")
    fixed = {"max_tokens": config.max_tokens, "temperature": 0, "ignore_eos": True}
    return [
        Request(
            "/v1/completions",
            {"prompt": [chance.randrange(config.vocabulary) for _ in range(config.prompt_tokens)], **fixed},
        )
        for _ in range(config.requests)
    ]


async def run(config: LoadConfig, linger: float | None = None) -> list[Result]:
    """Sends the load, and cuts off unanswered requests `linger` seconds after the last one; None: never.

    Raises `GatewayError` if the server names no model, `ConfigError` as `requests` does.
    """
    chance = random.Random(config.seed)
    load = requests(config, chance)
    model = config.model or await asyncio.to_thread(first_model, config.url)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=config.url, timeout=config.timeout, limits=limits) as client:
        start = time.perf_counter()
        sends = [partial(_one, client, model, request, start) for request in load]
        tasks = await send_at(arrivals(config.rate, config.requests, chance), sends)
        _, late = await asyncio.wait(tasks, timeout=linger)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        cut = Result(None, "no answer in time", time.perf_counter() - start)
        return [cut if task.cancelled() else task.result() for task in tasks]


def first_model(url: str) -> str:
    """Returns the name of the model that a server names first. Raises `GatewayError`."""
    try:
        return CompletionsClient(url).model()
    except GatewayError as error:
        raise GatewayError(f"--url: {error}") from None


async def stream(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> AsyncIterator[StreamedChunk]:
    """Posts `body` and yields the answer as it comes. Raises `GatewayError` for anything but a whole answer."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    events = CompletionEvents()
    try:
        async with client.stream("POST", path, json=streamed) as response:
            if response.status_code != httpx.codes.OK:
                said = error_message(await response.aread())
                raise GatewayError(f"status {response.status_code}: {said}")
            async for data in response.aiter_bytes():
                for chunk in events.feed(data):
                    yield chunk
    except httpx.HTTPError as error:
        raise GatewayError(f"{type(error).__name__}: {error}") from None
    if not events.ended:
        raise GatewayError("the answer broke off")


async def _one(client: httpx.AsyncClient, model: str, request: Request, start: float) -> Result:
    sent = time.perf_counter()
    first = last = 0.0
    tokens: int | None = None
    error = ""
    try:
        async for chunk in stream(client, request.path, {"model": model, **request.body}):
            if chunk.text:
                last = time.perf_counter()
                first = first or last
            if chunk.tokens is not None:
                tokens = chunk.tokens
    except GatewayError as failure:
        error = str(failure)
    ended = time.perf_counter() - start
    if error:
        return Result(None, error, ended)
    if tokens is None:
        return Result(None, "the server sent no usage, so TPOT is not known", ended)
    if not first:
        first = last = time.perf_counter()  # an answer without text: its end is all that a client sees
    return Result(Timings(1000 * (first - sent), 1000 * (last - sent), tokens), "", ended)


def _percentiles(name: str, values: Iterable[float]) -> str:
    shown = list(values)
    return f"{name:8}" + "".join(f"{percentile(shown, share):10.1f}" for share in (0.5, 0.95, 0.99))


def main() -> int:
    config = parse_or_exit(LoadConfig, "benchmarks.load")
    print(machine())
    print(f"load    {config.requests} requests at {config.rate:g}/s (Poisson, seed {config.seed}) on {config.url}")
    try:
        results = asyncio.run(run(config))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(results, SLO(config.slo_ttft_ms, config.slo_tpot_ms))))
    return 1 if any(result.error for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
