"""The Triton kernels between a layer's products against PyTorch's operators, on the same step."""

from typing import get_args

import pytest
import torch
from msgspec import structs

from contracts.messages.sampling import Sampling
from engine.backends.reference.elementwise import ReferenceElementwise
from engine.backends.triton.attention.attention_step import TritonAttentionStep
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.backends.triton.elementwise import TritonElementwise
from engine.model.batch import build_batch
from engine.model.config import Activation
from engine.model.elementwise import Elementwise
from engine.model.rope import Rope, angle_table
from engine.plan import StepPlan, Work
from launcher.devices.gpus import visible_gpus
from tests.engine.configs import attention

DEVICE = "cuda" if visible_gpus() else "cpu"
MAX_DIFFERENCE = 64 * 2.0**-24
"""fp32: a sum of up to 44 squares and some ten operations behind it, each rounded by 2^-24."""
EPS = 1e-5
HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 8
ROPE = Rope(dim=DIM, theta=500.0, magnitude=1.1)
PART = structs.replace(ROPE, dim=6)
ATTENTION = structs.replace(attention(HEADS, KV_HEADS, DIM), rope=ROPE)
KINDS = {
    "plain": (False, ATTENTION),
    "normed": (True, structs.replace(ATTENTION, norm="head")),
    "normed as one, a part rotated": (True, structs.replace(ATTENTION, norm="all", rope=PART)),
    "not rotated": (False, structs.replace(ATTENTION, rope=None)),
}
WORKS = [Work(1, 9, [0], ([3, 1],), Sampling(seed=0)), Work(2, 6, [0] * 5, ([2, 4],))]


def both() -> tuple[Elementwise[TritonAttentionStep], Elementwise[TritonAttentionStep]]:
    device = torch.device(DEVICE)
    tables = {rope: angle_table(rope, 64, device) for rope in (ROPE, PART)}
    return TritonElementwise(tables, EPS), ReferenceElementwise([*tables], EPS, device, torch.float32)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_what_is_stored(kind: str) -> None:
    weighted, layer = KINDS[kind]
    weight = random(HEADS + KV_HEADS, DIM, seed=1) if weighted else None
    batch = build_batch(StepPlan(0, WORKS), BLOCK, torch.device(DEVICE), None)
    queries, pools = [], []
    for between in both():
        pool = torch.zeros(2, 5, 2 * KV_HEADS, BLOCK, DIM, device=DEVICE)
        step = TritonAttention(list(pool), [ATTENTION] * 2).begin(batch)
        heads = random(6, HEADS + 2 * KV_HEADS, DIM, seed=2)
        angles = None if layer.rope is None else between.angles(batch.positions, layer.rope)
        queries.append(between.rotate_and_store(heads, angles, weight, step, 1, layer))
        pools.append(pool)
    assert queries[0].shape == (6, HEADS, DIM) and pools[0][1].any() and not pools[0][0].any()
    torch.testing.assert_close(queries[0], queries[1], rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)
    torch.testing.assert_close(pools[0], pools[1], rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)


def test_norm_and_gate() -> None:
    ours, theirs = both()
    x, weight = random(9, 44, seed=1), random(44, seed=2)
    for change in (None, random(9, 44, seed=3)):
        found = ours.add_norm(x.clone(), change, weight)
        torch.testing.assert_close(found, theirs.add_norm(x, change, weight), rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)
    for activation in get_args(Activation):
        gated = ours.gate(x, activation)
        torch.testing.assert_close(gated, theirs.gate(x, activation), rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)
    assert ours.add_norm(x.clone(), x, None)[1].equal(x + x) and ours.add_norm(x, None, None)[1].equal(x)
