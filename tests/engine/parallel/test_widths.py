"""A model that is cut among 2 and 4 ranks gives transformers' greedy tokens."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from contracts.errors import ConfigError
from engine.executor import Executor
from engine.model.open_checkpoint import open_checkpoint
from engine.parallel.rank_group import RankGroup
from engine.start.load_model import load_model
from infra.config.engine import EngineConfig
from tests.engine.drive import answers
from tests.engine.parallel.threads import on_ranks, over_shared_memory
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS

LENGTHS = [1, 7, 16, 33]
NEW_TOKENS = 8
POOL_BLOCKS = 64
FP32_ERROR = 1e-4
"""Sums of 200 terms of size 1 in another order differ by less, through four layers."""
CUT = (
    "qwen3-moe-some-dense",
    "gemma3",
    "phi3",
    "ernie4.5",
    "gpt-oss",
    "deepseek-v2",
    "deepseek-v2-lite",
    "mixtral",
    "qwen2-moe",
)
"""Norms of heads, windows, fused projections, neighbouring pairs, biases and sinks, latents, uneven experts."""
REFUSED = {"olmo2": "a norm over all heads", "deepseek-v3-dense": "3 heads", "gpt-oss-unbiased": "3 experts"}


def executor_of(directory: Path, group: RankGroup, **changes: object) -> Executor:
    settings: dict[str, object] = dict(
        model=str(directory), device="cpu", cpu_backend="torch", dtype="fp32", kv_memory=4 << 20, max_model_len=256
    )
    config = EngineConfig(**{**settings, **changes})  # type: ignore[arg-type]
    loaded = load_model(config, lambda stage, percent: None, open_checkpoint, group)
    return Executor(replace(loaded.with_pool([POOL_BLOCKS] * len(loaded.spec.groups)), launch_depth=2))


@pytest.mark.parametrize("variant", CUT)
def test_every_width_gives_the_references_tokens(variant: str, tmp_path: Path) -> None:
    """Every rank samples for itself from the gathered logits."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts(LENGTHS, config.get_text_config().vocab_size), NEW_TOKENS)

    def found(group: RankGroup) -> list[list[int]]:
        return answers(executor_of(directory, group), expected, stagger=1, chunk=13)

    for ranks in (2, 4):
        assert on_ranks(ranks, found) == [[each.tokens for each in expected]] * ranks


def test_ranks_over_shared_memory_give_the_references_tokens(tmp_path: Path) -> None:
    config = VARIANTS["llama"]()
    directory = build_model(tmp_path / "model", config)
    expected = golden(directory, make_prompts(LENGTHS, config.vocab_size), NEW_TOKENS)

    def found(group: RankGroup) -> list[list[int]]:
        return answers(executor_of(directory, group), expected, stagger=1, chunk=13)

    assert over_shared_memory(4, found) == [[each.tokens for each in expected]] * 4


@pytest.mark.parametrize(("variant", "why"), REFUSED.items())
def test_what_cannot_be_cut_is_refused_with_the_widths_that_fit(variant: str, why: str, tmp_path: Path) -> None:
    directory = build_model(tmp_path / variant, VARIANTS[variant]())
    with pytest.raises(ConfigError, match=rf"--tensor-parallel: 4: {why}.*; widths that fit {variant}: 1"):
        on_ranks(4, partial(executor_of, directory))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_weights_have_the_scales_of_the_whole_weight(quantization: str, tmp_path: Path) -> None:
    """Rounded weights are the same at every width; other scales would change logits by some hundredths."""
    config = VARIANTS["llama"]()
    directory = build_model(tmp_path / "model", config)
    (prompt,) = make_prompts([33], config.vocab_size)

    def logits(group: RankGroup) -> Tensor:
        return executor_of(directory, group, quantization=quantization).logits(prompt)

    (whole,) = on_ranks(1, logits)
    assert all((found - whole).abs().max() < FP32_ERROR for found in on_ranks(2, logits))


@pytest.mark.parametrize(
    ("variant", "vectors", "half"),
    [("llama", {1: 4, 2: 2, 4: 2}, 0.5), ("qwen3-moe", {1: 4, 2: 2, 4: 2}, 4 / 7), ("deepseek-v3", {2: 1}, 0.5)],
)
def test_a_rank_holds_its_part_of_the_weights_and_its_vectors(
    variant: str, vectors: dict[int, int], half: float, tmp_path: Path
) -> None:
    """Of two KV heads, keys and values; latents are on every rank. Of seven experts one of two ranks has four."""
    directory = build_model(tmp_path / "model", VARIANTS[variant]())

    def sizes(group: RankGroup) -> tuple[int, int, int, int]:
        engine = executor_of(directory, group, cpu_backend="native").engine
        (own,) = engine.pool.spec.groups
        assert sum(layer[0].nbytes for layer in engine.pool.layers) == own.layers_bytes()
        return engine.model.weights_bytes(), own.vectors, own.block_bytes, group.shard.ranks

    ((weights, all_vectors, block, _),) = on_ranks(1, sizes)
    cut = [each for ranks in vectors for each in on_ranks(ranks, sizes)]
    for own_weights, own_vectors, own_block, ranks in cut:
        assert own_vectors == vectors[ranks] and own_block * all_vectors == block * own_vectors
        assert ranks == 1 or own_weights <= (1.1 * half if ranks == 2 else 0.35) * weights
