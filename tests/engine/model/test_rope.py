"""Frequencies equal transformers' for the same parameters."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as apply_to_neighbours
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from engine.model.families.reading import rope_of
from engine.model.rope import Rope, Rotary, halves_order, rotate_, served
from tests.variants import LLAMA3, SIZES, YARN

KINDS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 1000000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 1000},
    YARN,
    {**YARN, "factor": 32.0, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    {**YARN, "rope_theta": 1000000.0, "original_max_position_embeddings": 32768},  # both ends of the band inside
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    {**YARN, "attention_factor": 1.25},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["rope_type"])
@pytest.mark.parametrize("head_dim", [2, 10, 64, 128])
def test_rotation_equals_transformers(kind: dict[str, Any], head_dim: int) -> None:
    config = LlamaConfig(**{**SIZES, "head_dim": head_dim, "rope_parameters": dict(kind)})
    positions = torch.tensor([0, 1, 17, 500, 1023])
    queries = torch.randn(5, 3, head_dim, generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(config)(queries, positions[None])
    expected, _ = apply_rotary_pos_emb(queries.transpose(0, 1)[None], queries.transpose(0, 1)[None], cos, sin)
    rotary = Rotary(rope_of(config, "test"), torch.device("cpu"), torch.float32)
    found = queries.clone()
    rotate_(found, *rotary.angles(positions))
    torch.testing.assert_close(found, expected[0].transpose(0, 1), rtol=1e-6, atol=1e-6)


def test_rotation_in_place_of_a_part_leaves_the_rest() -> None:
    rotary = Rotary(rope_of(LlamaConfig(**SIZES), "test"), torch.device("cpu"), torch.float32)
    heads = torch.randn(4, 6, 32)
    before = heads.clone()
    rotate_(heads[:, :4], *rotary.angles(torch.arange(4)))
    assert torch.equal(heads[:, 4:], before[:, 4:]) and not torch.equal(heads[1:, :4], before[1:, :4])
    assert math.isclose(float(heads[:, :4].norm()), float(before[:, :4].norm()), rel_tol=1e-5)


@pytest.mark.parametrize("longest", [3, 4, 5])
def test_longrope_equals_transformers_for_texts_of_that_length(longest: int) -> None:
    """Transformers chooses by the text, we by the longest one there may be."""
    kind = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0], "long_factor": [4.0, 5.5, 9.0]}
    sizes = {**SIZES, "hidden_size": 32, "original_max_position_embeddings": 4, "pad_token_id": None}
    config = Phi3Config(**{**sizes, "rope_parameters": {**kind, "partial_rotary_factor": 0.75}})
    positions = torch.arange(longest)
    cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), positions[None])
    rope = served(rope_of(config, "test", partial=True), longest)
    assert rope.factors == ((1.0, 1.5, 2.0) if longest <= 4 else (4.0, 5.5, 9.0)) and rope.dim == 6
    found_cos, found_sin = Rotary(rope, torch.device("cpu"), torch.float32).angles(positions)
    torch.testing.assert_close(found_cos[:, 0], cos[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found_sin[:, 0].abs(), sin[0].abs(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rotated", "begin"), [(4, 0), (8, 0), (4, 4), (2, 3)])
def test_pairs_of_neighbours_are_reordered_to_halves(rotated: int, begin: int) -> None:
    """Rotating what was reordered is reordering what transformers rotates by neighbours."""
    heads, dim = 3, 8
    rotary = Rotary(Rope(dim=rotated), torch.device("cpu"), torch.float32)
    cos, sin = rotary.angles(torch.arange(5))
    given = torch.randn(5, heads, dim, generator=torch.Generator().manual_seed(0))
    order = halves_order(heads, dim, rotated, begin)
    found = given.flatten(1)[:, order].view(5, heads, dim)
    rotate_(found[..., begin:], cos, sin)
    part = given[..., begin:].transpose(0, 1)[None]
    turned = apply_to_neighbours(part, part, cos[:, 0][None], sin[:, 0].abs()[None] * _signs(sin))[0][0].transpose(0, 1)
    expected = torch.cat((given[..., :begin], turned), -1)
    torch.testing.assert_close(found, expected.flatten(1)[:, order].view(5, heads, dim), rtol=1e-6, atol=1e-6)


def _signs(sin: torch.Tensor) -> torch.Tensor:
    """The signs of the sines, which `Rotary` negates in the first half."""
    half = sin[:, 0, sin.shape[-1] // 2 :].sign()
    return torch.cat((half, half), -1)[None]
