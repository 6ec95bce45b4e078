"""Every width of prefill workers with every width of decode workers: the references' tokens, whichever rank is killed.

    python -m tests.e2e.width_pairs [--kinds llama,int4] [--pairs 1x4,4x1]

Runs a whole system of two prefill and two decode workers for each kind of model and each pair of widths, and prints a
row for each: in the first round a rank is killed while answers flow, and what it has begun is finished by others; in
the second the worker is back, prompts hit the prefix caches, and pools are so small that sequences are preempted.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.report import head, row
from contracts.kinds import Quantization
from tests.e2e.harness.golden import build_served, complete_all
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import STOP_SECONDS, System
from tests.engine.parallel.test_bits import SUMMED
from tests.engine.speculation.heads import build_head
from tests.engine.test_quantized_kv import certain
from tests.engine.twins import dequantized_twin
from tests.reference import Golden, golden, make_prompts
from tests.rounded_cache import load_rounding
from tests.variants import VARIANTS
from tests.waiting import children, wait_until

WIDTHS = (1, 2, 4)
PAIRS = tuple(product(WIDTHS, WIDTHS))
LENGTHS = [20, 300, 90, 210, 40, 400]
NEW_TOKENS = 60
SMALL = ("--dtype", "fp32", "--max-batch-tokens", "56", "--max-model-len", "480")
NGRAM = ("--speculation", "ngram", "--speculative-tokens", "3")


@dataclass(frozen=True)
class Kind:
    """A kind of model, the pool in which sequences of it are preempted, and options of its workers."""

    variant: str
    kv_kib: int  # at widths of up to `kv_heads`; with more, ranks hold the same
    kv_heads: int
    options: tuple[str, ...] = NGRAM
    quantization: Quantization = "none"
    kv_dtype: str = "auto"


KINDS = {
    "llama": Kind("llama", 1536, 2, ("--speculation", "eagle", "--eagle", "{directory}/head")),
    "qwen3-moe": Kind("qwen3-moe", 1536, 2),
    "deepseek-v3": Kind("deepseek-v3", 1024, 1),
    "gemma3": Kind("gemma3", 4096, 2, ("--speculation", "draft", "--draft-model", "{directory}/model")),
    "int4": Kind("llama", 3072, 4, quantization="int4"),
    "fp8 KV": Kind("llama", 512, 2, kv_dtype="fp8"),
}


class Outcome(NamedTuple):
    killed: str
    answers: int
    tokens: int
    differing: int  # tokens that are not the reference's
    preemptions: int
    accepted: int  # draft tokens
    cached: int  # prompt tokens that prefill workers have found in their caches


def prepared(directory: Path, kind: Kind) -> list[Golden]:
    """Writes the kind's model, and returns what transformers answers, as far as rounded KV leaves no doubt."""
    config = VARIANTS[kind.variant]()
    if kind.quantization != "none":  # no group of weights is cut
        for name, value in SUMMED.items():
            setattr(config, name, value)
    model = reference = build_served(directory / "model", config)
    if kind.quantization != "none":
        reference = dequantized_twin(model, directory / "twin", kind.quantization)
    build_head(directory / "head", config)
    prompts = make_prompts(LENGTHS, config.get_text_config().vocab_size)
    if kind.kv_dtype == "auto":
        return golden(reference, prompts, NEW_TOKENS, most_dropped=0.5)
    runs = golden(reference, prompts, NEW_TOKENS, load=load_rounding(kind.kv_dtype), safety=0.0)
    sure = [Golden(run.prompt, certain(run), run.margins) for run in runs]
    return [run for run in sure if len(run.tokens) >= NEW_TOKENS // 3]


def run_pair(directory: Path, kind: Kind, runs: Sequence[Golden], prefill: int, decode: int) -> Outcome:
    """Starts and stops a system. Raises AssertionError if an answer that a killed rank had begun ends otherwise."""
    scratch = directory / f"{prefill}x{decode}"
    scratch.mkdir()
    options = [each.format(directory=directory) for each in kind.options]
    options += ["--quantization", kind.quantization, "--kv-dtype", kind.kv_dtype]
    options += ["--kv-memory", f"{kind.kv_kib * -(-max(prefill, decode) // kind.kv_heads)}KiB"]
    options += ["--prefill-tp", str(prefill), "--decode-tp", str(decode)]
    role = "prefill" if prefill > decode else "decode"
    with System(scratch, directory / "model", prefill=2, decode=2, worker=(*SMALL, *options)) as system:
        streams = Streams(system.gateway_url, list(runs))
        streams.begin_to_flow(len(runs))
        killed = kill_rank(system, f"{role}-0")
        streams.finish()
        system.start_worker(f"{role}-0")
        system.address(f"{role}-0")
        wait_until(lambda: system.usable() == len(system.workers), "the gateway to know all workers")
        found = complete_all(system.gateway_url, [*runs, *runs])
        loads = [record.load for record in system.wait_until_idle()]
    pairs = zip(found, [*runs, *runs], strict=True)
    differing = sum(own != token for tokens, run in pairs for own, token in zip(tokens, run.tokens, strict=True))
    return Outcome(
        killed,
        3 * len(runs),
        3 * sum(len(run.tokens) for run in runs),
        differing,
        sum(load.preemptions for load in loads),
        sum(load.speculation.accepted_tokens for load in loads),
        sum(load.kv.found_tokens for load in loads),
    )


def kill_rank(system: System, name: str) -> str:
    """Kills the last rank of a worker, as nothing can prevent, and returns which; waits until its worker has ended."""
    ranks = children(system.workers[name].pid)
    if not ranks:
        system.kill(name)
        return name
    worker = system.workers.pop(name)
    system.killed.add(worker.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    assert worker.wait(STOP_SECONDS) == 1
    return f"{name}, rank {len(ranks)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.width_pairs", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of models, with commas")
    parser.add_argument("--pairs", default=",".join(f"{a}x{b}" for a, b in PAIRS), help="prefill x decode widths")
    given = parser.parse_args()
    print(head("model", "prefill x decode", *(name.replace("_", " ") for name in Outcome._fields)), flush=True)
    differing = 0
    for name in given.kinds.split(","):
        with TemporaryDirectory() as made:
            runs = prepared(Path(made), KINDS[name])
            for pair in given.pairs.split(","):
                prefill, decode = map(int, pair.split("x"))
                outcome = run_pair(Path(made), KINDS[name], runs, prefill, decode)
                differing += outcome.differing
                print(row(name, f"{prefill} x {decode}", *outcome), flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
