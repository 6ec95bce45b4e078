"""Measures the savings of shared KV in a running Baton: `python -m benchmarks.prefix --url URL --tokenizer FILE`.

Four loads on completions of token ids, and the workers' own counters (`GET /stats`):

- shared: many requests at once behind one long system prompt; computed prompt tokens beside unique ones.
- ttft: requests one after the other, with new prompts and with the shared one; median TTFT of hits over misses.
- chat: one conversation; KV bytes moved in each turn, beside the KV of the tokens since the turn before.
- mixed: prompts and answers of many lengths at once; wasted slots of blocks in use, and the cost of a pool that is too
  small: preemptions, and answers that differ from those of the same requests sent one by one (none are expected in
  fp32; narrower types round differently in other batches).

The server should have no other clients. A model for it: `python -m benchmarks.models.random_model`.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import httpx
import msgspec
from msgspec import Meta, Struct
from tokenizers import Tokenizer

from contracts.errors import BatonError, GatewayError
from contracts.kinds import Positive
from infra.cli import parse_or_exit
from infra.completions_client import CompletionEvents, CompletionsClient
from infra.redis.records import WorkerRecord
from launcher.bench.connections import LoadConnections
from launcher.bench.machine import machine
from launcher.bench.sender import connections_to
from launcher.instance.endpoint import ClientEndpoint

SAMPLE_INTERVAL_S = 0.25
SETTLE_TIMEOUT_S = 120.0
TIMEOUT_S = 600.0


class PrefixConfig(Struct, frozen=True, kw_only=True):
    """Puts loads with shared prompts on a running Baton, and prints the savings."""

    url: Annotated[str, Meta(description="URL of the gateway, without /v1")] = "http://127.0.0.1:8000"
    tokenizer: Annotated[str, Meta(description="the model's tokenizer.json; chat needs it, to repeat answers")] = ""
    vocabulary: Annotated[Positive, Meta(description="prompts are drawn from token ids below this")] = 4096
    requests: Annotated[Positive, Meta(description="requests that share the system prompt")] = 64
    system_tokens: Annotated[Positive, Meta(description="tokens of the system prompt")] = 1000
    own_tokens: Annotated[Positive, Meta(description="tokens of each request behind it")] = 24
    output_tokens: Annotated[Positive, Meta(description="tokens of each answer")] = 16
    rounds: Annotated[Positive, Meta(description="requests of each kind whose TTFT is measured")] = 8
    turns: Annotated[Positive, Meta(description="turns of the conversation")] = 8
    message_tokens: Annotated[Positive, Meta(description="tokens of each message of the conversation")] = 48
    mixed_requests: Annotated[Positive, Meta(description="requests of the mixed load")] = 48
    mixed_prompt: Annotated[Positive, Meta(description="longest prompt of the mixed load, shortest: a tenth")] = 1000
    mixed_output: Annotated[Positive, Meta(description="longest answer of the mixed load, shortest: a tenth")] = 160
    seed: Annotated[int, Meta(ge=0, description="of all prompts")] = 0


class Answer(NamedTuple):
    """One request as its client saw it."""

    text: str
    ttft: float  # s


class Totals(NamedTuple):
    """Sums over all workers, since their start."""

    computed: int  # prompt tokens that were computed
    moved: int  # bytes of KV
    preemptions: int
    swapped: int  # preempted sequences that came back from the host tier
    recomputed: int  # preempted sequences that had to compute tokens again

    def since(self, before: "Totals") -> "Totals":
        return Totals(*(now - then for now, then in zip(self, before, strict=True)))


class StreamedText:
    """The text of an answer, and when its first piece came."""

    def __init__(self) -> None:
        self.text, self.first = "", 0.0
        self.events = CompletionEvents()

    def feed(self, data: bytes, at: float) -> None:
        for chunk in self.events.feed(data):
            if chunk.text:
                self.first = self.first or at
                self.text += chunk.text


class Client:
    """Sends requests to one Baton, and reads its counters."""

    def __init__(self, http: httpx.AsyncClient, connections: LoadConnections, model: str) -> None:
        self._http = http
        self._connections = connections
        self._model = model

    async def complete(self, prompt: list[int], output: int) -> Answer:
        """Asks for exactly `output` greedy tokens. Raises `GatewayError` for anything but a whole answer."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
        content = msgspec.json.encode({**body, "stream": True})
        begin, answer = time.perf_counter(), StreamedText()
        await self._connections.post("/v1/completions", content, answer)
        if not answer.events.ended:
            raise GatewayError("the answer broke off")
        return Answer(answer.text, (answer.first or time.perf_counter()) - begin)

    async def workers(self) -> list[WorkerRecord]:
        """Returns the workers' records, at most a heartbeat old. Raises `GatewayError`."""
        try:
            answer = await self._http.get("/stats")
            return msgspec.convert(answer.raise_for_status().json()["workers"], list[WorkerRecord])
        except (httpx.HTTPError, LookupError, ValueError) as error:
            raise GatewayError(f"--url: {self._http.base_url}: {error}") from None

    async def totals(self) -> Totals:
        """Returns the counters once all requests are counted. Raises `GatewayError` after a time-out."""
        end = time.perf_counter() + SETTLE_TIMEOUT_S
        before = -1
        while time.perf_counter() < end:
            workers = await self.workers()
            loads = [worker.load for worker in workers]
            output = sum(load.output_tokens for load in loads)
            if output == before and not any(load.running or load.waiting or load.blocks_used for load in loads):
                return Totals(
                    sum(load.prompt_tokens for load in loads),
                    sum(worker.load.handoff_bytes for worker in workers if worker.role == "decode"),
                    sum(load.preemptions for load in loads),
                    sum(load.kv.preempted_swapped for load in loads),
                    sum(load.kv.preempted_recomputed for load in loads),
                )
            before = output
            await asyncio.sleep(1.5)  # longer than a heartbeat
        raise GatewayError(f"the workers are not idle after {SETTLE_TIMEOUT_S:.0f} s; does anybody else use them?")


class Prompts:
    """Draws random token ids."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._vocabulary = vocabulary
        self._chance = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        return self._chance.choices(range(self._vocabulary), k=count)

    def between(self, least: int, most: int) -> int:
        return self._chance.randint(max(1, least), most)


async def shared(client: Client, config: PrefixConfig, prompts: Prompts, system: list[int]) -> AsyncIterator[str]:
    before = await client.totals()
    sent = [system + prompts.tokens(config.own_tokens) for _ in range(config.requests)]
    answers = await asyncio.gather(*(client.complete(prompt, config.output_tokens) for prompt in sent))
    done = (await client.totals()).since(before)
    unique = len(system) + config.requests * config.own_tokens
    yield f"shared  {config.requests} requests at once: {len(system)} common tokens and {config.own_tokens} own ones"
    yield (
        f"        prompt tokens sent {sum(map(len, sent))}, unique {unique}, computed {done.computed}"
        f" = {done.computed / unique:.3f} x unique"
    )
    yield f"        TTFT {1000 * median(answer.ttft for answer in answers):.0f} ms, {done.moved / 2**20:.1f} MiB moved"


async def ttft(client: Client, config: PrefixConfig, prompts: Prompts, system: list[int]) -> AsyncIterator[str]:
    kinds: dict[str, list[float]] = {"misses": [], "hits": []}
    for _ in range(config.rounds):
        for kind, begin in (("misses", prompts.tokens(len(system))), ("hits", system)):
            answer = await client.complete(begin + prompts.tokens(config.own_tokens), config.output_tokens)
            kinds[kind].append(answer.ttft)
    misses, hits = (1000 * median(kinds[kind]) for kind in ("misses", "hits"))
    ratio = hits / misses
    yield f"ttft    alone, median of {config.rounds}: misses {misses:.1f} ms, hits {hits:.1f} ms = {ratio:.3f} x"


async def chat(client: Client, config: PrefixConfig, prompts: Prompts, system: list[int]) -> AsyncIterator[str]:
    if not config.tokenizer:
        yield "chat    left out: it repeats answers, for which it needs --tokenizer"
        return
    tokenizer = Tokenizer.from_file(config.tokenizer)
    token_bytes = max(worker.memory.token_bytes for worker in await client.workers())
    yield f"chat    {config.turns} turns; KV moved, beside {token_bytes / 1024:.1f} KiB for each token"
    said: list[int] = []
    known = 0
    for turn in range(config.turns):
        said += prompts.tokens(config.message_tokens)
        before = await client.totals()
        answer = await client.complete(said, config.output_tokens)
        done = (await client.totals()).since(before)
        new = len(said) - known
        yield (
            f"        turn {turn + 1}: prompt {len(said):5} tokens, new {new:4}; moved {done.moved / 1024:8.0f} KiB"
            f" = {done.moved / token_bytes:5.0f} tokens; computed {done.computed:5}"
        )
        said += tokenizer.encode(answer.text).ids
        known = len(said)


async def mixed(client: Client, config: PrefixConfig, prompts: Prompts) -> AsyncIterator[str]:
    load = [
        (
            prompts.tokens(prompts.between(config.mixed_prompt // 10, config.mixed_prompt)),
            prompts.between(config.mixed_output // 10, config.mixed_output),
        )
        for _ in range(config.mixed_requests)
    ]
    before = await client.totals()
    used, wasted = 0, 0

    async def watch() -> None:
        nonlocal used, wasted
        while True:
            for worker in await client.workers():
                used += worker.load.kv.used_slots
                wasted += worker.load.kv.wasted_slots
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    watching = asyncio.create_task(watch())
    try:
        together = await asyncio.gather(*(client.complete(prompt, output) for prompt, output in load))
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    done = (await client.totals()).since(before)
    alone = [await client.complete(prompt, output) for prompt, output in load]
    differing = sum(one.text != other.text for one, other in zip(together, alone, strict=True))
    need = sum(len(prompt) + output for prompt, output in load)
    room = sum(worker.memory.tokens for worker in await client.workers() if worker.role == "decode")
    yield f"mixed   {len(load)} requests at once, {need} tokens; the decode workers hold {room} = {room / need:.0%}"
    yield f"        wasted slots {wasted / used if used else 0:.1%} of those in use"
    yield (
        f"        preempted {done.preemptions}; of those that came back, {done.swapped} from the host tier,"
        f" {done.recomputed} computed tokens again"
    )
    yield f"        {differing} answers differ from those of the same requests sent alone"


async def run(config: PrefixConfig) -> None:
    """Runs all loads, and prints each line as soon as it is known. Raises `GatewayError`."""
    prompts = Prompts(config.vocabulary, config.seed)
    system = prompts.tokens(config.system_tokens)
    model = CompletionsClient(config.url).model()
    endpoint = ClientEndpoint(config.url, "", "")
    async with httpx.AsyncClient(base_url=config.url) as http, connections_to(endpoint, TIMEOUT_S) as connections:
        client = Client(http, connections, model)
        for worker in await client.workers():
            memory = worker.memory
            print(
                f"        {worker.role}: {worker.dtype} on {worker.device}, blocks of {worker.block_tokens} tokens,"
                f" pool {memory.tokens} tokens, host tier {memory.host_tier_bytes / 2**20:.0f} MiB"
            )
        await client.complete(prompts.tokens(config.own_tokens), config.output_tokens)  # warms up
        for part in (
            shared(client, config, prompts, system),
            ttft(client, config, prompts, system),
            chat(client, config, prompts, system),
            mixed(client, config, prompts),
        ):
            async for line in part:
                print(line, flush=True)


def main() -> int:
    config = parse_or_exit(PrefixConfig, "benchmarks.prefix")
    if config.tokenizer and not Path(config.tokenizer).is_file():
        print(f"error: --tokenizer {config.tokenizer}: there is no such file", file=sys.stderr)
        return 2
    print(machine())
    try:
        asyncio.run(run(config))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
