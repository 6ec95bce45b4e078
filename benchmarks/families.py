"""Measures the dense families beside a Llama of the same shape: `python -m benchmarks.families [--threads 2]`.

Every model has random weights in the shape of SmolLM2-135M, apart from what its family does in another way. All of them
are loaded in one process and serve the same prompts in turns, so that a busy machine slows all of them down; a ratio is
of neighbouring times, and the median over the rounds is shown.
"""

import argparse
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from benchmarks.limits.workloads import Workload
from benchmarks.processes.as_a_worker import run
from benchmarks.processes.in_process import quiet, serve
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

TARGET = 0.9
"""A family's rate over Llama's."""
SHAPE: dict[str, Any] = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "phi3": Phi3Config,
    "granite": GraniteConfig,
    "olmo2": Olmo2Config,
    "olmo3": Olmo3Config,
    "smollm3": SmolLM3Config,
    "glm4": Glm4Config,
}
WORKLOADS = (Workload(1, 16, 32), Workload(8, 16, 32), Workload(32, 16, 16), Workload(1, 1024, 1))


def make(directory: Path, family: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = FAMILIES[family](**SHAPE, head_dim=64)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)


def load(directory: Path, given: argparse.Namespace) -> tuple[Executor, EngineConfig]:
    """Loads a model. Raises `BatonError` where it cannot be."""
    longest = max(workload.longest for workload in WORKLOADS)
    config = EngineConfig(
        model=str(directory), device=given.device, dtype=given.dtype, max_model_len=longest, kv_memory=256 << 20
    )
    return Executor(load_engine(config, quiet)), config


def measure(given: argparse.Namespace, stages: StageDisplay) -> None:
    """Prints a table. Raises `BatonError` where a model cannot be loaded."""
    engines = {}
    with TemporaryDirectory() as directory:
        for family in given.families:
            stages.show("loading", family)
            make(Path(directory) / family, family)
            engines[family] = load(Path(directory) / family, given)
    found = {workload: rounds_of(workload, engines, given.rounds, stages) for workload in WORKLOADS}
    stages.settle()
    backend = engines["llama"][0].engine.backend
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, {given.dtype}, {backend.name}\n")
    print(f"| family | {' | '.join(map(str, WORKLOADS))} |\n| --- |{' --- |' * len(WORKLOADS)}")
    for family in engines:
        ratios = [median(each["llama"] / each[family] for each in found[workload]) for workload in WORKLOADS]
        missed = min(ratios) < TARGET
        print(f"| {family} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |{' missed' if missed else ''}")


def rounds_of(
    workload: Workload, engines: dict[str, tuple[Executor, EngineConfig]], rounds: int, stages: StageDisplay
) -> list[dict[str, float]]:
    counted = []
    for number in range(rounds + 1):
        stages.show("measuring", str(workload), 100 * number // (rounds + 1))
        prompts = workload.prompts(SHAPE["vocab_size"], number)
        counted.append(
            {family: serve(*engine, prompts, workload.output)[0].total for family, engine in engines.items()}
        )
    return counted[1:]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help="some of the families; all by default")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    unknown = sorted(set(given.families) - set(FAMILIES))
    if unknown:
        parser.error(f"no family {unknown[0]}; there are {', '.join(FAMILIES)}")
    given.families = list(dict.fromkeys(("llama", *given.families)))
    return given


def main() -> int:
    given = options()
    return run(lambda: measure(given, StageDisplay()), given.threads)


if __name__ == "__main__":
    sys.exit(main())
