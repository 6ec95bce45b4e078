"""Measures what latent attention saves.

    python -m benchmarks.steps.latent [--context 2048] [--batch 16] [--threads 2]

Three models of the size of SmolLM2-135M with random weights in bf16: multi-head attention, grouped-query attention, and
latent attention of 64 + 16 numbers, computed by our own operators and by transformers' own forward pass as well
(`--model-impl transformers`). A step decodes one token of each of `--batch` texts of `--context` tokens, whose KV is
random. Models take turns, step by step, in one process; a ratio is of neighbouring steps, and its median is shown.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

from benchmarks.models.shapes import SMOLLM2_135M
from benchmarks.processes import as_a_worker
from benchmarks.processes.decoding import Texts
from benchmarks.processes.in_process import GREEDY, quiet
from benchmarks.report import head, in_turns, machine, ratio, row
from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import Work
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
OWN_LATENT, TRANSFORMERS_LATENT = "latent", "latent, by transformers"
MODELS = {
    "multi-head": LlamaConfig(**SMOLLM2_135M, num_key_value_heads=9),
    "grouped-query": LlamaConfig(**SMOLLM2_135M, num_key_value_heads=3),
    OWN_LATENT: DeepseekV3Config(**SMOLLM2_135M, **LATENT, num_key_value_heads=9),
    TRANSFORMERS_LATENT: DeepseekV3Config(**SMOLLM2_135M, **LATENT, num_key_value_heads=9),
}
MULTI_HEAD_TOKEN_BYTES = 30 * 2 * 9 * 64 * 2
MIN_SPEEDUP = 3.0
"""Target: speed of our own operators over that of transformers' forward pass."""
WARM_UP_STEPS = 2


def load(name: str, directory: Path, given: argparse.Namespace) -> Executor:
    """Makes and loads a model; its KV are random numbers. Raises `BatonError` where it cannot be loaded."""
    AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.bfloat16).save_pretrained(directory)
    longest = given.context + WARM_UP_STEPS + given.rounds
    config = EngineConfig(
        model=str(directory),
        device=given.device,
        dtype="bf16",
        model_impl="transformers" if name == TRANSFORMERS_LATENT else "auto",
        max_model_len=longest,
        max_sequences=given.batch,
        kv_memory=given.batch * (longest + 64) * MULTI_HEAD_TOKEN_BYTES,
    )
    executor = Executor(load_engine(config, quiet))
    for layer in executor.engine.pool.layers:
        layer[1:].normal_()
    return executor


def texts(executor: Executor, given: argparse.Namespace) -> Texts:
    groups = executor.engine.pool.spec.groups
    count = blocks_for(given.context + WARM_UP_STEPS + given.rounds, groups[0].block_tokens)

    def work(index: int, text: list[int]) -> Work:
        table = list(range(1 + index * count, 1 + (index + 1) * count))
        return Work(index, len(text) - 1, text[-1:], (table,) * len(groups), GREEDY)

    return Texts(executor, given.batch, given.context, work)


def measure(given: argparse.Namespace, stages: StageDisplay) -> None:
    """Prints a table. Raises `BatonError` where a model cannot be loaded."""
    executors = {}
    transformers.utils.logging.disable_progress_bar()
    with TemporaryDirectory() as directory:
        for name in MODELS:
            stages.show("loading", name)
            executors[name] = load(name, Path(directory) / name, given)
    ways = {name: texts(executor, given).step for name, executor in executors.items()}
    rounds = in_turns(ways, given.rounds, WARM_UP_STEPS, lambda number, of: stages.show("measuring", f"{number}/{of}"))
    stages.settle()
    print(f"{machine(given.threads)}; bf16, decode steps of {given.batch} texts of {given.context} tokens\n")
    print(head("", "KV bytes per token", "ms per step", "times as fast as latent by transformers"))
    for name, executor in executors.items():
        speedup = ratio(rounds, TRANSFORMERS_LATENT, name)
        missed = " missed" if name == OWN_LATENT and speedup < MIN_SPEEDUP else ""
        token_bytes, step_s = executor.engine.pool.spec.token_bytes(), median(each[name] for each in rounds)
        print(row(name, f"{token_bytes:,}", f"{1e3 * step_s:.1f}", f"{speedup:.1f}{missed}"))


def main() -> int:
    parser = as_a_worker.options("latent", __doc__, rounds=20, dtype=False)
    parser.add_argument("--context", type=int, default=2048, help="tokens of a text")
    parser.add_argument("--batch", type=int, default=16, help="texts")
    given = parser.parse_args()
    return as_a_worker.run(lambda: measure(given, StageDisplay()), given.threads)


if __name__ == "__main__":
    sys.exit(main())
