"""Frequencies equal transformers' for the same parameters."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from engine.model.families.reading import rope_of
from engine.model.rope import Rotary, rotate_
from tests.reference import LLAMA3, SIZES, YARN

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
