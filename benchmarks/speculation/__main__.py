"""Measures guesses against none, on the demo model in one process: `python -m benchmarks.speculation [--guessing WHO]`.

Both serve the same prompts in turn, on one thread and its own clock, so that a busy machine shows little; their tokens
have to be equal. A ratio is that of one round, of seconds for all tokens of a batch, prompts included; the table has
the median of the rounds, and the quartiles. *told again* and the like: see `texts.py`. *story* at temperature 1 and
*random*, whose prompts are random tokens, say nothing twice: there guesses only cost. With `--size` the model is the
demo model made larger without a change of its function (`benchmarks/models/widened.py`), so that a trained draft meets
trained targets of several sizes.
"""

import sys
import time
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct

from benchmarks.models.widened import SIZES, widen
from benchmarks.processes.drafting import drafting
from benchmarks.processes.in_process import Loop, add, answers, quiet
from benchmarks.report import head, row
from benchmarks.speculation.texts import Prompts
from contracts.kinds import Positive
from contracts.messages.sampling import Limits, Sampling
from engine.executor import Executor
from engine.start.load import load_engine
from infra.cli import parse_or_exit
from infra.config.engine import EngineConfig
from infra.redis.worker_load import SpeculationCounts

DEMO = Path(__file__).resolve().parents[2] / "demo_model" / "weights"
GIVEN: dict[str, dict[str, Any]] = {
    "ngram": {},
    "medusa": {"medusa": str(DEMO.parent / "medusa")},
    "draft": {"draft_model": str(DEMO.parent / "draft_weights")},
}
END_OF_TURN_ID = 2  # the demo model's end of a turn
MAX_ANSWER_TOKENS = {1: 150, 4: 150, 64: 60}  # tokens of an answer at most, by batch
ROWS = [
    ("call again", 0.0, (1, 4)),
    ("told again", 0.0, (1, 4, 64)),
    ("told with another noun", 0.0, (1, 4)),
    ("words", 0.0, (1,)),
    ("call", 0.0, (1,)),
    ("story", 0.0, (1, 4, 64)),
    ("story", 1.0, (1, 4, 64)),
    ("random", 1.0, (1, 4, 64)),
]
WARM_UP_BATCHES = 8  # batches of each row in which the controller learns what pays


class SpeculationConfig(Struct, frozen=True, kw_only=True):
    """Measures guesses against none on the demo model."""

    guessing: Annotated[Literal["ngram", "medusa", "draft"], Meta(description="source of the guesses")] = "ngram"
    guesses: Annotated[int, Meta(ge=0, description="guesses in each step; 0: the controller chooses")] = 0
    size: Annotated[Literal["1.9M", "6.7M", "18M", "118M"], Meta(description="parameters of the model")] = "1.9M"
    rounds: Annotated[Positive, Meta(description="batches of each row")] = 20
    only: Annotated[str, Meta(description="kinds of texts, with commas between them; empty: all")] = ""
    batch: Annotated[int, Meta(ge=0, description="only rows with this batch; 0: all")] = 0


def run(loop: Loop, prompts: list[list[int]], output: int, temperature: float) -> tuple[float, list[list[int]]]:
    sequences = add(loop, prompts, Limits(output, (END_OF_TURN_ID,)), Sampling(seed=0, temperature=temperature))
    began = time.thread_time()
    loop.finish()
    return time.thread_time() - began, answers(sequences)


def main() -> int:
    config = parse_or_exit(SpeculationConfig, "benchmarks.speculation")
    torch.set_num_threads(1)
    who = config.guessing
    with TemporaryDirectory() as made:
        model = Path(made) if config.size in SIZES else DEMO
        if config.size in SIZES:
            widen(DEMO, model, SIZES[config.size])
        engine_config = EngineConfig(
            model=str(model), device="cpu", max_model_len=1024, kv_memory=256 << 20, speculation=who, **GIVEN[who]
        )
        engine = load_engine(engine_config, quiet)
    executor, proposing = Executor(engine), Executor(engine, proposer=engine.proposer)
    answering = Loop(executor, engine_config, clock=time.thread_time)
    prompts = Prompts(DEMO, lambda ids: run(answering, [ids], 200, 0.0)[1][0])
    draw = Random(1)
    columns = "text", "batch", "none, tokens/s", "with guesses", "ratio (quartiles)", "tokens a step"
    print(head(*columns, "guesses that came true"))
    for kind, temperature, batches in ROWS:
        if config.only and kind not in config.only.split(","):
            continue
        for batch in (each for each in batches if config.batch in (0, each)):
            plain = Loop(executor, engine_config, clock=time.thread_time)
            fast = Loop(proposing, engine_config, drafting(who, engine.tree, config.guesses), clock=time.thread_time)
            rates: list[tuple[float, float]] = []
            for number in range(config.rounds + WARM_UP_BATCHES):
                if kind == "random":
                    asked = [[draw.randrange(3, 2048) for _ in range(64)] for _ in range(batch)]
                else:
                    asked = [prompts.of(kind) for _ in range(batch)]
                loops = (plain, fast) if number % 2 else (fast, plain)
                ran = {loop: run(loop, asked, MAX_ANSWER_TOKENS[batch], temperature) for loop in loops}
                if ran[plain][1] != ran[fast][1]:
                    print(f"{kind}: guesses have changed an answer", file=sys.stderr)
                    return 1
                tokens = sum(map(len, ran[plain][1]))
                if number >= WARM_UP_BATCHES:
                    rates.append((tokens / ran[plain][0], tokens / ran[fast][0]))
            print(_row(f"{kind}, T {temperature:g}", batch, rates, fast.scheduler.load().speculation), flush=True)
    return 0


def _row(name: str, batch: int, rates: list[tuple[float, float]], counts: SpeculationCounts) -> str:
    ratios = [fast / plain for plain, fast in rates]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    plain, fast = (median(each[side] for each in rates) for side in (0, 1))
    shown = f"{median(ratios):.2f} ({low:.2f}-{high:.2f})"
    accepted = f"{counts.accepted_tokens} of {counts.proposed}"
    return row(name, batch, f"{plain:.0f}", f"{fast:.0f}", shown, f"{counts.step_tokens:.2f}", accepted)


if __name__ == "__main__":
    sys.exit(main())
