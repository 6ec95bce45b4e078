"""Measures the dense families beside a Llama of the same shape: `python -m benchmarks.steps.families [--threads 2]`.

Every model has random weights in the shape of SmolLM2-135M, apart from what its family does in another way. All of them
are loaded in one process and serve the same prompts in turns; a ratio is of neighbouring times, and the median over the
rounds is shown.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.limits.workloads import Workload
from benchmarks.models.shapes import SMOLLM2_135M
from benchmarks.processes import as_a_worker
from benchmarks.processes.in_process import quiet, serve
from benchmarks.report import head, in_turns, machine, ratio, row
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

MIN_RATE_RATIO = 0.9
"""Target: a family's rate over Llama's."""
SHAPE: dict[str, Any] = {**SMOLLM2_135M, "num_key_value_heads": 3}
FAMILIES = {
    name: name
    for name in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "granite", "olmo2", "olmo3", "smollm3", "glm4")
} | {"gemma3": "gemma3_text"}
"""`model_type` of each family's config."""
WORKLOADS = (Workload(1, 16, 32), Workload(8, 16, 32), Workload(32, 16, 16), Workload(1, 1024, 1))


def make(directory: Path, family: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(FAMILIES[family], **SHAPE, head_dim=64)
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
    print(f"{machine(given.threads)}; {given.dtype}, {engines['llama'][0].engine.backend.name} operators\n")
    print(head("family", *map(str, WORKLOADS)))
    for family in engines:
        ratios = [ratio(found[workload], "llama", family) for workload in WORKLOADS]
        missed = " missed" if min(ratios) < MIN_RATE_RATIO else ""
        print(row(family, *(f"{each:.2f}" for each in ratios)) + missed)


def rounds_of(
    workload: Workload, engines: dict[str, tuple[Executor, EngineConfig]], rounds: int, stages: StageDisplay
) -> list[dict[str, float]]:
    prompts: list[list[int]] = []

    def show(number: int, of: int) -> None:
        stages.show("measuring", str(workload), 100 * number // of)
        prompts[:] = workload.prompts(SHAPE["vocab_size"], number)

    def seconds(engine: tuple[Executor, EngineConfig]) -> float:
        return serve(*engine, prompts, workload.output)[0].total

    return in_turns({family: partial(seconds, engine) for family, engine in engines.items()}, rounds, show=show)


def main() -> int:
    parser = as_a_worker.options("families", __doc__, rounds=7)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help="some of the families; all by default")
    given = parser.parse_args()
    unknown = sorted(set(given.families) - set(FAMILIES))
    if unknown:
        parser.error(f"no family {unknown[0]}; there are {', '.join(FAMILIES)}")
    given.families = list(dict.fromkeys(("llama", *given.families)))
    return as_a_worker.run(lambda: measure(given, StageDisplay()), given.threads)


if __name__ == "__main__":
    sys.exit(main())
