"""Decode steps of models whose weights are quantized, experts or latent attention, beside the rate of memory.

A step reads the weights that its tokens use once. *limit* is that many bytes, and the KV, over the rate of a sum, which
takes turns with the steps. On one thread all times are the thread's own processor time, so that other processes disturb
them less.
"""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig

from benchmarks.limits.floor import Work, work_of
from benchmarks.models.random_weights import RandomWeights
from benchmarks.models.shapes import SMOLLM2_135M
from benchmarks.processes.decoding import Texts
from benchmarks.processes.in_process import GREEDY, quiet
from benchmarks.report import head, in_turns, machine, row
from contracts.errors import ConfigError
from contracts.kinds import Quantization
from contracts.kv.spec import blocks_for
from engine import plan
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

MIN_SHARE = 0.75
"""Target: part of the limit that a step of one text reaches."""
CONTEXT_TOKENS, STEPS_OF_TURN, WARM_UP_ROUNDS = 64, 4, 2
SUMMED_BYTES = 256 << 20
_LARGER: dict[str, Any] = dict(
    vocab_size=16384, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, tie_word_embeddings=True
)
_EXPERTS: dict[str, Any] = dict(
    num_key_value_heads=4, head_dim=64, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=256
)
_LATENT: dict[str, Any] = dict(
    num_key_value_heads=16,
    q_lora_rank=None,
    kv_lora_rank=256,
    qk_rope_head_dim=32,
    qk_nope_head_dim=64,
    v_head_dim=64,
    intermediate_size=2816,
    first_k_dense_replace=12,
)


class Kind(NamedTuple):
    """An architecture and `settings` of a transformers config, and the format of the weights."""

    architecture: str
    family: str
    settings: dict[str, Any]
    quantization: Quantization = "none"


_PLAIN = Kind("LlamaForCausalLM", "llama", {**SMOLLM2_135M, "num_key_value_heads": 3})
KINDS = {
    "bf16": _PLAIN,
    "int8": _PLAIN._replace(quantization="int8"),
    "fp8": _PLAIN._replace(quantization="fp8"),
    "int4": _PLAIN._replace(quantization="int4"),
    "experts": Kind("Qwen3MoeForCausalLM", "qwen3_moe", _LARGER | _EXPERTS),
    "experts-int4": Kind("Qwen3MoeForCausalLM", "qwen3_moe", _LARGER | _EXPERTS, "int4"),
    "latent": Kind("DeepseekV3ForCausalLM", "deepseek_v3", _LARGER | _LATENT),
}


class Loaded:
    """Measures steps of a model with random weights and random KV."""

    def __init__(self, kind: Kind, batches: tuple[int, ...], rounds: int) -> None:
        self._longest = CONTEXT_TOKENS + (rounds + WARM_UP_ROUNDS) * STEPS_OF_TURN
        with TemporaryDirectory() as directory:
            AutoConfig.for_model(kind.family, architectures=[kind.architecture], **kind.settings).save_pretrained(
                directory
            )
            config = EngineConfig(
                model=directory,
                device="cpu",
                dtype="bf16",
                quantization=kind.quantization,
                max_model_len=self._longest,
                max_sequences=max(batches),
                kv_memory=256 << 20,
            )
            weights = partial(RandomWeights, device=torch.device("cpu"), dtype=torch.bfloat16)
            self._executor = Executor(load_engine(config, quiet, weights))
        engine = self._executor.engine
        self._work: Work = work_of(engine.model_config, torch.bfloat16, kind.quantization)
        for layer in engine.pool.layers:
            layer[1:].normal_()

    def bytes_read(self, batch: int) -> float:
        return self._work.read(batch, batch) + batch * CONTEXT_TOKENS * self._work.token_bytes

    def turn(self, batch: int) -> Callable[[], float]:
        """Returns a function that computes the next step of a batch and returns its seconds."""
        groups = self._executor.engine.pool.spec.groups
        count = blocks_for(self._longest, groups[0].block_tokens)

        def work(index: int, text: list[int]) -> plan.Work:
            table = list(range(1 + index * count, 1 + (index + 1) * count))
            return plan.Work(index, len(text) - 1, text[-1:], (table,) * len(groups), GREEDY)

        texts = Texts(self._executor, batch, CONTEXT_TOKENS, work)
        return lambda: median(texts.step() for _ in range(STEPS_OF_TURN))


def chosen(names: str) -> dict[str, Kind]:
    """Returns the kinds with these names, which commas separate, or all. Raises `ConfigError` for another name."""
    unknown = sorted(set(names.split(",")) - {"all", *KINDS})
    if unknown:
        raise ConfigError("--kinds", names, f"{unknown[0]} is none of {', '.join(KINDS)}")
    return KINDS if names == "all" else {name: KINDS[name] for name in names.split(",")}


def measure(kinds: Mapping[str, Kind], batches: tuple[int, ...], rounds: int, threads: int) -> None:
    """Prints a table. Raises `BatonError` where a model cannot be loaded."""
    models = {name: Loaded(kind, batches, rounds) for name, kind in kinds.items()}
    rows = {row(name, batch): (model, batch) for name, model in models.items() for batch in batches}
    ways = {name: model.turn(batch) for name, (model, batch) in rows.items()}
    found = in_turns({"sum": _sum(threads), **ways}, rounds, WARM_UP_ROUNDS)
    rate = SUMMED_BYTES / min(each["sum"] for each in found)
    print(f"{machine(threads)}; a sum reads {rate / 1e9:.1f} GB/s\n")
    print(head("weights", "batch", "MB read", "ms per step", "best", "limit", "% of limit", "best"))
    for name, (model, batch) in rows.items():
        times = [each[name] for each in found]
        read = model.bytes_read(batch)
        limit, step = read / rate, median(times)
        missed = " missed" if batch == 1 and limit / step < MIN_SHARE else ""
        milliseconds = (f"{1e3 * each:.2f}" for each in (step, min(times), limit))
        shares = f"{100 * limit / step:.0f}{missed}", f"{100 * limit / min(times):.0f}"
        print(name + row(f"{read / 1e6:.0f}", *milliseconds, *shares)[1:])


def _sum(threads: int) -> Callable[[], float]:
    data, clock = torch.ones(SUMMED_BYTES // 4), thread_time if threads == 1 else perf_counter

    def seconds() -> float:
        begin = clock()
        data.sum()
        return clock() - begin

    return seconds
