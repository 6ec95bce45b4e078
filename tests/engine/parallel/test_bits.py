"""The native operators give logits with the same bits at widths 1, 2 and 4."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.parallel.rank_group import RankGroup
from tests.engine.parallel.test_widths import executor_of
from tests.engine.parallel.threads import on_ranks, over_shared_memory
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

SUMMED = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "v_head_dim": 32,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
}
"""Sizes of sums over inputs that four splits of whole heads, and of 32 inputs, divide."""
LATENT = {"num_key_value_heads": 8, "head_dim": None}


def build(directory: Path, variant: str, **changes: object) -> Path:
    config = VARIANTS[variant]()
    sizes = SUMMED | (LATENT if hasattr(config, "kv_lora_rank") else {}) | changes
    for name, value in sizes.items():
        if value is not None and (name == "head_dim" or hasattr(config, name)):
            setattr(config, name, value)
    return build_model(directory, config)


def check(directory: Path, **settings: object) -> None:
    """Compares each rank's logits with those of one rank, of a prompt in chunks of any size."""
    prompts = make_prompts([33, 1], 320)

    def logits(group: RankGroup) -> list[Tensor]:
        executor = executor_of(directory, group, cpu_backend="native", **settings)
        return [executor.logits(prompt) for prompt in prompts]

    (whole,) = on_ranks(1, logits)
    for ranks in (2, 4):
        for found in on_ranks(ranks, logits):
            assert all(map(torch.equal, found, whole)), ranks
    assert all(map(torch.equal, over_shared_memory(2, logits)[1], whole))


@pytest.mark.parametrize("variant", ["llama", "llama-biases", "gemma3", "phi3", "qwen3"])
def test_every_width_gives_the_same_bits(variant: str, tmp_path: Path) -> None:
    """Biases, norms behind sums, windows, fused projections, norms of heads."""
    check(build(tmp_path, variant))


def test_latents_give_the_same_bits(tmp_path: Path) -> None:
    check(build(tmp_path, "deepseek-v3", first_k_dense_replace=4))


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_quantized_weights_give_the_same_bits(quantization: str, tmp_path: Path) -> None:
    check(build(tmp_path, "llama"), quantization=quantization)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_bf16_gives_the_same_bits(quantization: str, tmp_path: Path) -> None:
    """Sums are rounded once, behind the last addition."""
    check(build(tmp_path, "gemma3"), quantization=quantization, dtype="bf16")


@pytest.mark.parametrize("variant", ["qwen3-moe", "qwen2-moe", "mixtral", "gpt-oss"])
def test_experts_give_the_same_bits(variant: str, tmp_path: Path) -> None:
    """Shared experts with a gate, unequal numbers of experts on the ranks, biases."""
    check(build(tmp_path, variant))


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_experts_in_bf16_give_the_same_bits(quantization: str, tmp_path: Path) -> None:
    """Latent attention and a shared expert without a gate."""
    check(build(tmp_path, "deepseek-v3"), quantization=quantization, dtype="bf16")
