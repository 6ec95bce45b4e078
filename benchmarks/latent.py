"""Measures what latent attention saves: `python -m benchmarks.latent [--context 2048] [--batch 16] [--threads 2]`.

Three models of the size of SmolLM2-135M with random weights in bf16: multi-head attention, grouped-query attention, and
latent attention of 64 + 16 numbers, computed by our own operators and by transformers' own forward pass as well
(`--model-impl transformers`). A step decodes one token of each of `--batch` texts of `--context` tokens, whose KV is
random. Models take turns in one process; a ratio is of neighbouring times, and the median over the rounds is shown.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

from benchmarks.models.shapes import SMOLLM2_135M
from benchmarks.processes import as_a_worker
from benchmarks.processes.in_process import GREEDY, quiet
from benchmarks.report import head, in_turns, machine, ratio, row
from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

LATENT: dict[str, Any] = dict(
    q_lora_rank=None,
    kv_lora_rank=64,
    qk_rope_head_dim=16,
    qk_nope_head_dim=48,
    v_head_dim=64,
    first_k_dense_replace=30,
    n_routed_experts=1,
    num_experts_per_tok=1,
    n_group=1,
    topk_group=1,
)
MODELS = {
    "multi-head": LlamaConfig(**SMOLLM2_135M, num_key_value_heads=9),
    "grouped-query": LlamaConfig(**SMOLLM2_135M, num_key_value_heads=3),
    "latent": DeepseekV3Config(**SMOLLM2_135M, **LATENT, num_key_value_heads=9),
}
OWN_LATENT, TRANSFORMERS_LATENT = "latent", "latent, by transformers"
MIN_SPEEDUP = 3.0
"""Target: speed of our own operators over that of transformers' forward pass."""
TIMED_STEPS = 4
"""Steps of one measurement."""


def load(directory: Path, given: argparse.Namespace, implementation: Any = "auto") -> Executor:
    """Loads a model, and fills its KV pool with random numbers. Raises `BatonError` where it cannot be loaded."""
    config = EngineConfig(
        model=str(directory),
        device=given.device,
        dtype="bf16",
        model_impl=implementation,
        max_model_len=given.context + 1,
        max_sequences=given.batch,
        kv_memory=given.batch * (given.context + 64) * 30 * 2 * 9 * 64 * 2,
    )
    executor = Executor(load_engine(config, quiet))
    for layer in executor.engine.pool.layers:
        layer[1:].normal_()
    return executor


def seconds(executor: Executor, given: argparse.Namespace) -> float:
    spec = executor.engine.pool.spec
    need = blocks_for(given.context, spec.groups[0].block_tokens)
    tables = [list(range(1 + text * need, 1 + (text + 1) * need)) for text in range(given.batch)]
    works = [
        Work(text, given.context - 1, [7], (table,) * len(spec.groups), GREEDY) for text, table in enumerate(tables)
    ]
    begin = time.perf_counter()
    for number in range(TIMED_STEPS):
        executor.launch(StepPlan(number, works))
        executor.collect()
    return (time.perf_counter() - begin) / TIMED_STEPS


def measure(given: argparse.Namespace, stages: StageDisplay) -> None:
    """Prints a table. Raises `BatonError` where a model cannot be loaded."""
    executors = {}
    transformers.utils.logging.disable_progress_bar()
    with TemporaryDirectory() as directory:
        for name, config in MODELS.items():
            stages.show("loading", name)
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(Path(directory) / name)
            executors[name] = load(Path(directory) / name, given)
        executors[TRANSFORMERS_LATENT] = load(Path(directory) / OWN_LATENT, given, "transformers")
    rounds = in_turns(
        {name: partial(seconds, executor, given) for name, executor in executors.items()},
        given.rounds,
        show=lambda number, of: stages.show("measuring", f"round {number}", 100 * number // of),
    )
    stages.settle()
    print(f"{machine(given.threads)}; bf16, decode steps of {given.batch} texts of {given.context} tokens\n")
    print(head("", "KV bytes per token", "ms per step", "times as fast as latent by transformers"))
    for name, executor in executors.items():
        speedup = ratio(rounds, TRANSFORMERS_LATENT, name)
        missed = " missed" if name == OWN_LATENT and speedup < MIN_SPEEDUP else ""
        milliseconds = 1e3 * median(each[name] for each in rounds)
        print(
            row(name, f"{executor.engine.pool.spec.token_bytes():,}", f"{milliseconds:.1f}", f"{speedup:.1f}{missed}")
        )


def main() -> int:
    parser = as_a_worker.options("latent", __doc__, rounds=5, dtype=False)
    parser.add_argument("--context", type=int, default=2048, help="tokens of a text")
    parser.add_argument("--batch", type=int, default=16, help="texts")
    given = parser.parse_args()
    return as_a_worker.run(lambda: measure(given, StageDisplay()), given.threads)


if __name__ == "__main__":
    sys.exit(main())
