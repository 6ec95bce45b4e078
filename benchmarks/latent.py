"""Measures what latent attention saves: `python -m benchmarks.latent [--context 2048] [--batch 16] [--threads 2]`.

Three models of the size of SmolLM2-135M with random weights in bf16: multi-head attention, grouped-query attention, and
latent attention of 64 + 16 numbers, which is computed by our own operators and by transformers' own forward as well
(`--model-impl transformers`). All are loaded in one process. A step decodes one token of each of `--batch` texts that
have `--context` tokens; their KV is made up. Models take turns, so that a busy machine slows all of them down; a ratio
is of neighbouring times, and the median over the rounds is shown.
"""

import argparse
import platform
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

from benchmarks.processes.as_a_worker import run
from benchmarks.processes.in_process import quiet
from contracts.kv.spec import blocks_for
from contracts.messages.sampling import Sampling
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

SHAPE: dict[str, Any] = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
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
    "multi-head": LlamaConfig(**SHAPE, num_key_value_heads=9),
    "grouped-query": LlamaConfig(**SHAPE, num_key_value_heads=3),
    "latent": DeepseekV3Config(**SHAPE, **LATENT, num_key_value_heads=9),
}
OWN_LATENT, TRANSFORMERS_LATENT = "latent", "latent, by transformers"
TARGET_RATIO = 3.0
"""How many times faster our own operators are to be than transformers' forward."""
TIMED_STEPS = 4
"""Steps of one measurement."""


def load(directory: Path, given: argparse.Namespace, implementation: Any = "auto") -> Executor:
    """Loads a model, and makes up its KV. Raises `BatonError` where it cannot be."""
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
    spec, groups = executor.engine.pool.spec, len(executor.engine.pool.spec.groups)
    need = blocks_for(given.context, spec.groups[0].block_tokens)
    greedy = Sampling(seed=0, temperature=0.0)
    tables = [list(range(1 + text * need, 1 + (text + 1) * need)) for text in range(given.batch)]
    works = [Work(text, given.context - 1, [7], (table,) * groups, greedy) for text, table in enumerate(tables)]
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
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(Path(directory) / name)
            executors[name] = load(Path(directory) / name, given)
        executors[TRANSFORMERS_LATENT] = load(Path(directory) / OWN_LATENT, given, "transformers")
    rounds = []
    for number in range(given.rounds + 1):
        stages.show("measuring", f"round {number}", 100 * number // (given.rounds + 1))
        rounds.append({name: seconds(executor, given) for name, executor in executors.items()})
    stages.settle()
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, bf16")
    print(f"decode steps of {given.batch} texts of {given.context} tokens\n")
    print("| | KV bytes per token | ms per step | times as fast as latent by transformers |\n" + "| --- " * 4 + "|")
    for name, executor in executors.items():
        ratio = median(each[TRANSFORMERS_LATENT] / each[name] for each in rounds[1:])
        missed = " missed" if name == OWN_LATENT and ratio < TARGET_RATIO else ""
        milliseconds = 1e3 * median(each[name] for each in rounds[1:])
        tokens = executor.engine.pool.spec.token_bytes()
        print(f"| {name} | {tokens:,} | {milliseconds:.1f} | {ratio:.1f}{missed} |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latent", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a text")
    parser.add_argument("--batch", type=int, default=16, help="texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    return run(lambda: measure(given, StageDisplay()), given.threads)


if __name__ == "__main__":
    sys.exit(main())
