"""Measures what adapters cost a decode step: `python -m benchmarks.steps.lora [--batch 32] [--rank 16] [--threads 2]`.

The model is a random one of 135M parameters; adapters change all linear layers of attention and MLP. Every way takes
its turn, step by step, in one process, so that a busy machine slows all of them down; ratios are of neighbouring steps,
and their median. With one thread on a CPU times are on its own clock, and a busy machine shows little.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from benchmarks.models.random_model import SHAPES, make
from benchmarks.processes import as_a_worker
from benchmarks.processes.decoding import MakeWork, Texts
from benchmarks.processes.in_process import GREEDY, quiet
from benchmarks.report import head, in_turns, machine, ratio, row
from contracts.kinds import BlockSize
from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import Work
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

ADAPTER_COUNT = 8
MAX_RATIOS = {"1 on every row": 1.15, f"{ADAPTER_COUNT} mixed": 1.25}
"""Target: time of a step over that of a step without adapters."""
TEXT_TOKENS = 256
"""Tokens of a text when it begins."""
BLOCK_TOKENS: BlockSize = 16
WARM_UP_STEPS = 3


def write_adapter(directory: Path, shape: str, rank: int, seed: int) -> None:
    _, hidden, intermediate, layers, heads, kv_heads, _, _ = SHAPES[shape]
    keys = hidden // heads * kv_heads
    sizes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden)}
    sizes |= {"self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden)}
    sizes |= {"mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden)}
    sizes |= {"mlp.down_proj": (hidden, intermediate)}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name, (outputs, inputs) in sizes.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{module}.lora_A.weight"] = torch.randn((rank, inputs), generator=generator) * 0.02
            tensors[f"{module}.lora_B.weight"] = torch.randn((outputs, rank), generator=generator) * 0.02
    directory.mkdir()
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    config["target_modules"] = sorted(name.rpartition(".")[2] for name in sizes)
    (directory / "adapter_config.json").write_text(json.dumps(config))


def works_of(adapters: Sequence[str]) -> MakeWork:
    def work(index: int, text: list[int]) -> Work:
        count = blocks_for(TEXT_TOKENS + 1024, BLOCK_TOKENS)
        blocks = list(range(1 + index * count, 1 + (index + 1) * count))
        adapter = adapters[index % len(adapters)]
        return Work(
            index, len(text) - 1, text[-1:], (blocks,), GREEDY, output_index=len(text) - TEXT_TOKENS, adapter=adapter
        )

    return work


def ways(directory: Path, given: argparse.Namespace) -> dict[str, Texts]:
    """Loads the model twice, and the adapters. Raises `BatonError` where they cannot be."""
    make(directory / "model", given.shape)
    longest = TEXT_TOKENS + 1024
    config = EngineConfig(
        model=str(directory / "model"),
        max_model_len=longest,
        kv_memory=2 * given.batch * longest * 45 << 10,
        max_sequences=given.batch,
        max_loras=ADAPTER_COUNT,
        max_lora_rank=given.rank,
        allow_lora_loading=True,
        device=given.device,
        dtype=given.dtype,
        cpu_backend=given.cpu_backend,
        block_size=BLOCK_TOKENS,
    )
    engine = load_engine(config, quiet)
    assert engine.adapters is not None
    digests = []
    for number in range(ADAPTER_COUNT):
        write_adapter(directory / f"{number}", given.shape, given.rank, number)
        digests.append(engine.adapters.load(directory / f"{number}"))
    executor = Executor(engine)
    kinds = {
        "none": [""],
        "1 on every row": digests[:1],
        f"{ADAPTER_COUNT} mixed": digests,
        "1 on every second row": ["", digests[0]],
    }
    return {name: Texts(executor, given.batch, TEXT_TOKENS, works_of(own)) for name, own in kinds.items()}


def measure(given: argparse.Namespace) -> None:
    """Prints a table. Raises `BatonError` where the model cannot be loaded."""
    with TemporaryDirectory() as directory:
        found = ways(Path(directory), given)
    rounds = in_turns({name: texts.step for name, texts in found.items()}, given.rounds, WARM_UP_STEPS)
    print(f"{machine(given.threads)}; {given.dtype}, {given.cpu_backend}")
    print(f"batch {given.batch}, rank {given.rank}, {given.rounds} steps of each\n")
    print(head("adapters", "ms a step", "over none", "target"))
    for name in found:
        over, limit = ratio(rounds, name, "none"), MAX_RATIOS.get(name)
        verdict = "" if limit is None else f"{limit:.2f}{' missed' if over > limit else ''}"
        print(row(name, f"{1000 * median(each[name] for each in rounds):.2f}", f"{over:.3f}", verdict))


def main() -> int:
    parser = as_a_worker.options("lora", __doc__, rounds=60, backend="native")
    parser.add_argument("--shape", default="135m", choices=[name for name, shape in SHAPES.items() if not shape[-1]])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args()
    return as_a_worker.run(lambda: measure(given), given.threads)


if __name__ == "__main__":
    sys.exit(main())
