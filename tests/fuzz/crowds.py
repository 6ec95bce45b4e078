"""`python -m tests.fuzz.crowds` asks crowds of requests of whole systems whose workers die; tokens are the reference's.

Each round is a system of its own, with a random number of workers, block size, pool that is too small for the crowd,
chunk, host tier and transport. Its clients share prefixes, ask for several samples, and go away in the middle, while a
decode and a prefill worker are killed. Every token has to be transformers' greedy one (PEFT's with an adapter), and in
the end no worker holds a block, and each says that all are accounted for.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct

from contracts.kinds import Codec, ModelImpl, Positive, Seconds
from contracts.kv.spec import KVSpec
from engine.kv.spec import make_spec
from engine.model.read_config import read_config
from engine.start.block_counts import PoolLoad, bytes_of_counts, counts_for
from infra.cli import parse_or_exit
from tests.adapter_reference import adapted_by, build_adapter
from tests.e2e.harness.deaths import kill_busiest
from tests.e2e.harness.golden import build_served_model
from tests.e2e.harness.system import System
from tests.fuzz.crowd import Crowd, Known
from tests.reference import golden, load_reference, logprobs, make_prompts
from tests.variants import VARIANTS
from tests.waiting import wait_until

PREFIXES = (70, 200, 333)  # tokens that prompts share
LONGEST = 100  # tokens of a prompt behind them
PROMPTS = 30
LONGEST_TEXT = 640
POOLS = (660, 800, 1300, 3000)
"""Tokens that a worker's pool holds, about; an eighth of them where all layers have windows."""
LOSSY = {"none": 0.0, "int8": 0.03, "fp8": 0.3}
"""By codec: an answer is compared up to where the reference's two best tokens are closer than this."""


class CrowdsConfig(Struct, frozen=True, kw_only=True):
    """Asks crowds of requests of systems whose workers die, and says where a token is not the reference's."""

    model: Annotated[str, Meta(description="a variant of tests/variants.py")] = "gemma2"
    adapters: Annotated[int, Meta(ge=0, description="random adapters that are served beside the model")] = 0
    model_impl: Annotated[ModelImpl, Meta(description="whose code computes the model: native, or transformers")] = (
        "auto"
    )
    codec: Annotated[Codec, Meta(description="of KV on the wire")] = "none"
    host_tier: Annotated[bool, Meta(description="whether some systems have a host tier")] = False
    seconds: Annotated[Seconds, Meta(description="seconds after which no other round begins")] = 600.0
    seed: Annotated[int, Meta(ge=0, description="of the first round; the next has the next")] = 0
    requests: Annotated[Positive, Meta(description="requests of a crowd")] = 150
    at_once: Annotated[Positive, Meta(description="requests at the same time")] = 32
    longest: Annotated[Positive, Meta(description="tokens of an answer, at most")] = 48


def prompts(seed: int, vocabulary: int) -> list[list[int]]:
    """Draws prompts that share prefixes of several lengths."""
    chance = random.Random(seed)
    shared = make_prompts(PREFIXES, vocabulary, seed)
    own = make_prompts([chance.randint(1, LONGEST) for _ in range(PROMPTS)], vocabulary, seed + 1)
    return [chance.choice(shared)[: chance.choice((0, 33, 64, 64, 500, 500))] + tokens for tokens in own]


def known_answers(config: CrowdsConfig, directory: Path) -> tuple[Path, list[Known]]:
    """Builds the model and its adapters, and asks the reference of each for its answers."""
    model = build_served_model(directory / "model", config.model)
    asked = prompts(config.seed, VARIANTS[config.model]().get_text_config().vocab_size)
    loads: dict[str, Callable[[Path], Any]] = {"model": load_reference}
    for number in range(config.adapters):
        adapter = build_adapter(directory / f"adapter-{number}", model, seed=number + 5, r=4 * (number + 1))
        loads[adapter.name] = adapted_by(adapter)
    least = LOSSY[config.codec]
    known = []
    for name, load in loads.items():
        reference = load(model)
        for run in golden(model, asked, config.longest, load=load, most_dropped=1.0):
            text = run.prompt + run.tokens
            scores = logprobs(reference, text)[range(len(text) - 1), text[1:]].tolist()
            clear = next((at for at, margin in enumerate(run.margins) if margin < least), len(run.tokens))
            known.append(Known(name, run, clear, [] if least else scores))
    print(f"{len(known)} answers are known, of {sum(one.clear for one in known)} tokens that are compared")
    return model, known


def worker_options(config: CrowdsConfig, chance: random.Random, specs: list[KVSpec], directory: Path) -> list[str]:
    """Draws the options of a system's workers. `specs`: of the KV in blocks of each size that they have."""
    chunk, tokens = chance.choice((16, 56, 130, 512)), chance.choice(POOLS)
    tokens //= 8 if all(group.window for group in specs[0].groups) else 1
    texts = PoolLoad(LONGEST_TEXT, in_flight=2 * chunk)
    memory = max(bytes_of_counts(spec, counts_for(spec, texts, tokens)) for spec in specs)
    options = ["--log-level", "debug", "--dtype", "fp32", "--max-model-len", str(LONGEST_TEXT)]
    options += ["--model-impl", config.model_impl, "--max-batch-tokens", str(chunk)]
    options += ["--kv-codec", config.codec, "--kv-memory", str(memory)]
    options += ["--kv-transport", chance.choice(("tcp", "ipc", "shm"))]
    options += ["--waiting-share", chance.choice(("0.5", "1"))]
    if config.host_tier and chance.random() < 0.7:
        options += ["--host-kv-memory", str(int(memory * chance.choice((0.3, 2.0))))]
    for number in range(config.adapters):
        options += ["--lora", f"adapter-{number}={directory}/adapter-{number}"]
    return options


def one_round(config: CrowdsConfig, number: int, model: Path, known: list[Known], crowds: Counter[str]) -> list[str]:
    """Starts a system, asks a crowd of it, and returns a sentence for each thing that is not as it should be."""
    chance = random.Random(number)
    sizes = [chance.choice((8, 16, 32)) for _ in range(2)]
    if chance.random() < 0.6:
        sizes[1] = sizes[0]
    prefill, decode = chance.choice(((1, 2), (2, 1), (2, 2), (2, 2)))
    read = read_config(model, LONGEST_TEXT)
    specs = [make_spec(read, torch.float32, size, "") for size in sizes]
    options = worker_options(config, chance, specs, model.parent)
    said = f"round {number}: {prefill}P{decode}D, blocks {sizes}, {' '.join(options[2:])}"
    print(said, flush=True)
    with tempfile.TemporaryDirectory(prefix="baton-crowds-") as directory:
        worker = [*options, "--block-size", str(sizes[0])]
        other = ["--block-size", str(sizes[1])]
        with System(Path(directory), model, prefill=prefill, decode=decode, worker=worker, decode_only=other) as system:
            # The last prefill worker may die: decode workers can do all of it.
            dying = [partial(system.kill, f"prefill-{prefill - 1}")]
            dying += [partial(kill_busiest, system, least=1)] * (decode > 1)
            chance.shuffle(dying)
            times = [config.requests // 3, config.requests * 2 // 3]
            crowd = Crowd(system.gateway_url, known, f"{number} crowd")
            deaths = dict(zip(times, dying, strict=False))
            asyncio.run(crowd.ask(config.requests, config.at_once, deaths))
            wrong = crowd.wrong + left_behind(system)
            crowds.update(crowd.seen)
            counted(system, crowds)
            if wrong:
                log = Path(tempfile.gettempdir()) / f"baton-crowds-{config.model}-{number}.log"
                log.write_text(system.log())
                print(f"what the services wrote is in {log}")
    return [f"{said}: {one}" for one in wrong]


def left_behind(system: System) -> list[str]:
    """Returns what the workers that live still hold when all has ended, and what went wrong in their logs."""
    try:
        wait_until(lambda: len(system.records()) == len(system.workers), "the dead workers' records to expire")
        records = system.wait_until_idle(60)
        accounts = [f"idle after {record.load.steps} steps: all blocks are accounted for" for record in records]
        wait_until(lambda: all(account in system.log() for account in accounts), f"the workers to say {accounts}")
    except AssertionError as error:
        return [str(error)]
    return [line for line in system.log().splitlines() if "Traceback" in line or " ERROR " in line]


def counted(system: System, crowds: Counter[str]) -> None:
    """Adds what has happened to blocks, so that a search that never met anything shows."""
    for record in system.records():
        kv = record.load.kv
        crowds["tokens found"] += kv.found_tokens
        crowds["blocks evicted"] += kv.evicted_blocks
        crowds["forks"] += kv.forks
        crowds["preempted"] += kv.preempted_swapped + kv.preempted_recomputed
        crowds["blocks returned"] += kv.returned_blocks
    crowds["tried again"] += sum(record.attempts > 1 for record in system.finished())


def main() -> int:
    """Prints what came of it; returns 1 where something was wrong."""
    config = parse_or_exit(CrowdsConfig, "python -m tests.fuzz.crowds")
    crowds, wrong, rounds = Counter[str](), list[str](), 0
    with tempfile.TemporaryDirectory() as directory:
        model, known = known_answers(config, Path(directory))
        began = time.monotonic()
        while time.monotonic() - began < config.seconds:
            found = one_round(config, config.seed + rounds, model, known, crowds)
            print("\n".join(found[:5]), f"{len(found)} wrong, {dict(crowds)}", flush=True)
            wrong += found
            rounds += 1
    print(f"{rounds} rounds of {config.model} in {time.monotonic() - began:.0f} s: {len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
