"""Every width of prefill workers with every width of decode workers: the references' tokens, whichever rank is killed.

    python -m tests.e2e.width_pairs [--kinds llama,int4] [--pairs 1x4,4x1]

Runs a whole system of two prefill and two decode workers for each kind of model and each pair of widths, and prints a
row for each. In the first round a rank of the decode worker that has most answers is killed, and one of a prefill
worker that has prompts; others finish what they had begun. In the second round both workers are back, texts of the
model and of an adapter hit the prefix caches, and decode pools are so small that sequences are preempted. A pair that
fails leaves its log's path; the next one goes on.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from benchmarks.report import head, row
from contracts.kinds import Quantization
from infra.redis.records import Role
from tests.adapter_reference import ALL_LINEARS, adapted_by, build_adapter
from tests.e2e.harness.deaths import sequences
from tests.e2e.harness.golden import build_served
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import System
from tests.e2e.test_adapters import ask
from tests.engine.parallel.test_bits import SUMMED
from tests.engine.speculation.heads import build_head
from tests.engine.test_quantized_kv import certain
from tests.engine.twins import dequantized_twin
from tests.reference import Golden, golden, load_reference, make_prompts
from tests.rounded_cache import RoundingModel
from tests.variants import VARIANTS
from tests.waiting import DEADLINE_S, children, patient, wait_until

WIDTHS = (1, 2, 4)
PAIRS = tuple(product(WIDTHS, WIDTHS))
PROMPT_LENGTHS = [20, 90, 33, 150, 40]
NEW_TOKENS = 48
FLOWING_ANSWERS = 3
"""Answers that flow when a rank is killed; the others' prompts are on their way then."""
SMALL = ("--dtype", "fp32", "--max-batch-tokens", "56", "--max-model-len", "240")
PATIENT = ("--hang-seconds", "0", "--silence", "60", "--gateway-silence", "60", "--grant-deadline", "300")
NGRAM = ("--speculation", "ngram", "--speculative-tokens", "3")
ADAPTER = "sql"
HANDED_OVER = 2
"""Times of a decode pool's memory that a prefill worker has."""


@dataclass(frozen=True)
class Kind:
    """A kind of model, the decode pool in which sequences of it are preempted, and options of its workers."""

    variant: str
    kv_kib: int  # at widths of up to `kv_heads`; with more, ranks hold the same
    kv_heads: int
    options: tuple[str, ...] = NGRAM
    quantization: Quantization = "none"
    kv_dtype: str = "auto"
    adapted: tuple[str, ...] = ()  # layers that an adapter changes; none: without an adapter


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
KINDS = {
    "llama": Kind(
        "llama", 768, 2, ("--speculation", "eagle", "--eagle", "{directory}/head"), adapted=tuple(ALL_LINEARS)
    ),
    "qwen3-moe": Kind("qwen3-moe", 768, 2, adapted=ATTENTION),
    "deepseek-v3": Kind("deepseek-v3", 320, 1),  # PEFT adapts its experts as well, which Baton refuses
    "gemma3": Kind(
        "gemma3", 2560, 2, ("--speculation", "draft", "--draft-model", "{directory}/model"), adapted=tuple(ALL_LINEARS)
    ),
    "int4": Kind("llama", 1536, 4, quantization="int4", adapted=tuple(ALL_LINEARS)),
    "fp8 KV": Kind("llama", 160, 2, kv_dtype="fp8", adapted=tuple(ALL_LINEARS)),
}


class Prepared(NamedTuple):
    """A kind's files, and the references' answers."""

    directory: Path
    kind: Kind
    runs: list[tuple[str, Golden]]  # each of the model or adapter of this name


class Outcome(NamedTuple):
    killed: str
    answers: int
    tokens: int
    differing: int  # tokens that are not the reference's
    begun_anew: int  # attempts
    preemptions: int
    accepted: int  # draft tokens
    cached: int  # prompt tokens that workers have found in their caches
    seconds: int


def prepared(directory: Path, kind: Kind) -> Prepared:
    """Writes the kind's model and adapter, and what transformers and PEFT answer."""
    config = VARIANTS[kind.variant]()
    if kind.quantization != "none":  # no group of weights is cut
        for name, value in SUMMED.items():
            setattr(config, name, value)
    model = reference = build_served(directory / "model", config)
    if kind.quantization != "none":
        reference = dequantized_twin(model, directory / "twin", kind.quantization)
    build_head(directory / "head", config)
    prompts = make_prompts(PROMPT_LENGTHS, config.get_text_config().vocab_size)
    loads: dict[str, Callable[[Path], Any]] = {"model": load_reference}
    if kind.adapted:
        adapter = build_adapter(directory / ADAPTER, reference, r=4, target_modules=list(kind.adapted))
        loads[ADAPTER] = adapted_by(adapter)
    return Prepared(
        directory,
        kind,
        [(name, run) for name, load in loads.items() for run in references(reference, prompts, load, kind.kv_dtype)],
    )


def references(model: Path, prompts: list[list[int]], load: Callable[[Path], Any], kv_dtype: str) -> list[Golden]:
    """Returns greedy answers; those over rounded KV as far as rounding leaves no doubt."""
    if kv_dtype == "auto":
        return golden(model, prompts, NEW_TOKENS, load=load, most_dropped=0.5)
    runs = golden(
        model, prompts, NEW_TOKENS, load=lambda directory: RoundingModel(load(directory), kv_dtype), safety=0.0
    )
    sure = [Golden(run.prompt, certain(run), run.margins) for run in runs]
    return [run for run in sure if len(run.tokens) >= NEW_TOKENS // 3]


def run_pair(made: Prepared, scratch: Path, prefill: int, decode: int) -> Outcome:
    """Starts and stops a system. Raises AssertionError if an answer that a killed rank had begun ends otherwise."""
    began, kind, directory = time.monotonic(), made.kind, made.directory
    options = [*SMALL, *PATIENT, *(each.format(directory=directory) for each in kind.options)]
    options += ["--quantization", kind.quantization, "--kv-dtype", kind.kv_dtype]
    options += ["--max-loras", "1", "--lora", f"{ADAPTER}={directory}/{ADAPTER}"] if kind.adapted else []
    options += ["--prefill-tp", str(prefill), "--decode-tp", str(decode), "--kv-memory"]
    most, least = (
        f"{times * kind.kv_kib * -(-width // min(width, kind.kv_heads))}KiB"
        for times, width in ((HANDED_OVER, prefill), (1, decode))
    )
    with System(
        scratch,
        directory / "model",
        prefill=2,
        decode=2,
        worker=(*options, most),
        decode_only=("--kv-memory", least),
        forks_ranks=True,
    ) as system:
        say(f"{prefill} x {decode} has started after {time.monotonic() - began:.0f} s")
        killed = kill_while_answers_flow(system, made.runs)
        say(f"killed {killed}; all answers are the references'")
        twice = [*made.runs, *made.runs]
        found = ask(system, twice)
        loads = [record.load for record in system.wait_until_idle()]
        retried = int(system.retried())
    pairs = list(zip(found, (run.tokens for _, run in twice), strict=True))
    differing = sum(own != token for tokens, expected in pairs for own, token in zip(tokens, expected, strict=True))
    return Outcome(
        killed,
        3 * len(made.runs),
        3 * sum(len(run.tokens) for _, run in made.runs),
        differing,
        retried,
        sum(load.preemptions for load in loads),
        sum(load.speculation.accepted_tokens for load in loads),
        sum(load.kv.found_tokens for load in loads),
        round(time.monotonic() - began),
    )


def kill_while_answers_flow(system: System, runs: Sequence[tuple[str, Golden]]) -> str:
    """Kills a rank of a worker of each role, checks all answers, and starts both workers again; returns which."""
    ordered = sorted(runs, key=lambda each: -len(each[1].tokens))
    streams = Streams(system.gateway_url, [run for _, run in ordered], [name for name, _ in ordered])
    streams.begin_to_flow(FLOWING_ANSWERS)
    streams.begin(len(runs) - FLOWING_ANSWERS)
    names = [busiest(system, role) for role in ("decode", "prefill")]
    killed = [kill_rank(system, name) for name in names]
    assert streams.finish() == len(runs)
    for name in names:
        system.start_worker(name)
    for name in names:
        system.address(name)
    wait_until(lambda: system.usable() == len(system.workers), "the gateway to know all workers")
    return "; ".join(killed)


def busiest(system: System, role: Role) -> str:
    """Returns the worker of a role that has most sequences."""
    counts = sequences(system, role)
    return system.name_of(max(counts, key=lambda epoch: counts[epoch]))


def kill_rank(system: System, name: str) -> str:
    """Kills the last rank of a worker, as nothing can prevent, and returns which; waits until its worker has ended."""
    ranks = children(system.workers[name].pid)
    if not ranks:
        system.kill(name)
        return name
    worker = system.workers.pop(name)
    system.killed.add(worker.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    assert worker.wait(patient(DEADLINE_S)) == 1
    return f"{name}, rank {len(ranks)}"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.0f}: {line}", file=sys.stderr, flush=True)


def take(name: str, pairs: Sequence[str], directory: Path) -> int:
    """Runs the pairs of a kind, prints their rows, and returns how many failed or differ."""
    made, failed = prepared(directory, KINDS[name]), 0
    for pair in pairs:
        prefill, decode = map(int, pair.split("x"))
        scratch = directory / pair
        scratch.mkdir()
        try:
            outcome = run_pair(made, scratch, prefill, decode)
        except Exception as error:
            failed += 1
            say(f"{name}, {pair}: {type(error).__name__}: {error}; the log: {scratch / 'log'}")
            print(row(name, f"{prefill} x {decode}", "failed", *[""] * (len(Outcome._fields) - 1)), flush=True)
        else:
            failed += outcome.differing > 0
            print(row(name, f"{prefill} x {decode}", *outcome), flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.width_pairs", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of models, with commas")
    parser.add_argument("--pairs", default=",".join(f"{a}x{b}" for a, b in PAIRS), help="prefill x decode widths")
    given = parser.parse_args()
    if unknown := set(given.kinds.split(",")) - KINDS.keys():
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: none of {', '.join(KINDS)}")
    print(head("model", "prefill x decode", *(name.replace("_", " ") for name in Outcome._fields)), flush=True)
    failed = 0
    for name in given.kinds.split(","):
        directory = Path(mkdtemp(prefix="width-pairs-"))
        failed_of_kind = take(name, given.pairs.split(","), directory)
        if not failed_of_kind:
            shutil.rmtree(directory)
        failed += failed_of_kind
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
