"""Measures n-gram drafting beside llama.cpp's and vLLM's: `python -m benchmarks.speculation.peers`.

The demo model, texts that repeat themselves (`texts.py`), each peer with its own guesses and settings, installed
as for `benchmarks.peers`. All answer the same prompts greedily, on as many threads, in turn; seconds are each system's
own, prompts included. llama.cpp guesses for one text at a time, so more than one are answered one after the other.
"""

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct

from benchmarks.peers.model import Model
from benchmarks.peers.process import PeerProcess, loaded
from benchmarks.peers.setup import PEERS, Peer, directory_of, set_up
from benchmarks.processes.children import exit_status
from benchmarks.processes.in_process import quiet as silent
from benchmarks.processes.in_process import serve
from benchmarks.report import head, row
from benchmarks.speculation.texts import Prompts
from contracts.errors import ConfigError
from contracts.kinds import Positive
from engine.executor import Executor
from engine.start.load import load_engine
from infra.cli import parse_or_exit
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

DEMO = Path(__file__).resolve().parents[2] / "demo_model" / "weights"
RUNNERS = {"llama.cpp": "llama_cpp-ngram", "vllm": "vllm-ngram"}
OURS = Peer("baton, n-gram", "baton-ngram", ())
CONVERSATION_KINDS = ("call again", "told again", "told with another noun", "words")
BATCH_SIZES = (1, 4)
MAX_CONTEXT_TOKENS = 1024
MAX_OWN_ANSWER_TOKENS = 150  # tokens of an answer that a prompt repeats, at most


class SpeculationPeersConfig(Struct, frozen=True, kw_only=True):
    """Measures n-gram drafting beside llama.cpp's and vLLM's, on the demo model."""

    directory: Annotated[
        str, Meta(description="where the peers are installed, and their logs; empty: this user's cache")
    ] = ""
    only: Annotated[str, Meta(description="some of llama.cpp, vllm with commas between them; empty: both")] = ""
    threads: Annotated[Positive, Meta(description="threads of each")] = 1
    output: Annotated[Positive, Meta(description="tokens of an answer, whatever ends it")] = 100
    rounds: Annotated[Positive, Meta(description="rounds of each row, behind two that count for nothing")] = 10


def compare(config: SpeculationPeersConfig, stages: StageDisplay) -> None:
    """Installs, measures and prints. Raises `BatonError`."""
    names = [name.strip() for name in config.only.split(",")] if config.only else list(RUNNERS)
    for name in names:
        if name not in RUNNERS:
            raise ConfigError("--only", config.only, f"{name!r} is none of {', '.join(RUNNERS)}")
    peers = [replace(peer, runner=RUNNERS[peer.name]) for peer in PEERS if peer.name in names]
    directory = directory_of(config.directory)
    for peer in peers:
        set_up(directory, peer, stages)
    engine_config = EngineConfig(model=str(DEMO), device="cpu", max_model_len=MAX_CONTEXT_TOKENS, kv_memory=64 << 20)
    engine = load_engine(engine_config, silent)
    executor = Executor(engine)
    prompts = Prompts(DEMO, lambda ids: serve(executor, engine_config, [ids], MAX_OWN_ANSWER_TOKENS)[1][0])
    model = Model(DEMO, "bf16", engine.model_config.vocab_size, MAX_CONTEXT_TOKENS).with_files(directory, peers, stages)
    with ExitStack() as stack:
        systems = loaded(stack, (OURS, *peers), directory, model, config.threads, stages)
        stages.settle()
        print(head("text", "batch", *(f"{each.name}, tokens/s" for each in systems), "ours / best"))
        for kind in CONVERSATION_KINDS:
            for batch in BATCH_SIZES:
                print(_row(kind, batch, prompts, systems, config), flush=True)
        for each in systems:
            print(f"{each.name}: " + ", ".join(f"{name} {what}" for name, what in each.versions.items()))


def _row(kind: str, batch: int, prompts: Prompts, systems: list[PeerProcess], config: SpeculationPeersConfig) -> str:
    rates: list[list[float]] = []
    for number in range(config.rounds + 2):
        asked = [prompts.of(kind) for _ in range(batch)]
        order = systems if number % 2 else systems[::-1]
        ran = {each.name: each.run(asked, config.output)[0] for each in order}
        if number >= 2:
            rates.append([batch * config.output / ran[each.name] for each in systems])
    medians = [median(column) for column in zip(*rates, strict=True)]
    ratio = median(own / max(others) for own, *others in rates)
    return row(kind, batch, *(f"{rate:.0f}" for rate in medians), f"{ratio:.2f}")


def main() -> int:
    config = parse_or_exit(SpeculationPeersConfig, "benchmarks.speculation.peers")
    return exit_status(partial(compare, config))


if __name__ == "__main__":
    sys.exit(main())
