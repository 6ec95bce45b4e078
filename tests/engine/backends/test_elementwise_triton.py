"""The Triton kernels between a layer's products against PyTorch's operators, on the same step."""

import pytest
import torch

from core.messages import Sampling
from engine.backends.reference.elementwise import ReferenceElementwise
from engine.backends.triton.attention import TritonAttention, TritonAttentionStep
from engine.backends.triton.elementwise import TritonElementwise
from engine.model.batch import build_batch
from engine.model.elementwise import Elementwise
from engine.model.rope import Rope, angle_table
from engine.plan import Plan, Work
from launcher.gpus import visible_gpus
from tests.engine.configs import attention

DEVICE = "cuda" if visible_gpus() else "cpu"
TOLERANCE = 64 * 2.0**-24
"""fp32: a sum of up to 44 squares and some ten operations behind it, each rounded by 2^-24."""
EPS = 1e-5
HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 8
ROPE = Rope(dim=DIM, theta=500.0, magnitude=1.1)
ATTENTION = attention(HEADS, KV_HEADS, DIM)
WORKS = [Work(1, 9, [0], ([3, 1],), Sampling(seed=0)), Work(2, 6, [0] * 5, ([2, 4],))]


def both() -> tuple[Elementwise[TritonAttentionStep], Elementwise[TritonAttentionStep]]:
    device = torch.device(DEVICE)
    tables = {ROPE: angle_table(ROPE, 64, device)}
    return TritonElementwise(tables, EPS), ReferenceElementwise([ROPE], EPS, device, torch.float32)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("weighted", [False, True])
def test_queries_and_what_is_stored(weighted: bool) -> None:
    weight = random(HEADS + KV_HEADS, DIM, seed=1) if weighted else None
    batch = build_batch(Plan(0, WORKS), BLOCK, torch.device(DEVICE), None)
    queries, pools = [], []
    for between in both():
        pool = torch.zeros(2, 5, KV_HEADS, 2, BLOCK, DIM, device=DEVICE)
        step = TritonAttention(list(pool), [ATTENTION] * 2).begin(batch)
        heads = random(6, HEADS + 2 * KV_HEADS, DIM, seed=2)
        angles = between.angles(batch.positions, ROPE)
        queries.append(between.rotate_and_store(heads, angles, weight, step, 1, ATTENTION))
        pools.append(pool)
    assert queries[0].shape == (6, HEADS, DIM) and pools[0][1].any() and not pools[0][0].any()
    torch.testing.assert_close(queries[0], queries[1], rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(pools[0], pools[1], rtol=TOLERANCE, atol=TOLERANCE)


def test_norm_and_gate() -> None:
    ours, theirs = both()
    x, weight = random(9, 44, seed=1), random(44, seed=2)
    for change in (None, random(9, 44, seed=3)):
        found = ours.add_norm(x.clone(), change, weight)
        torch.testing.assert_close(found, theirs.add_norm(x, change, weight), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(ours.gate(x, "silu"), theirs.gate(x, "silu"), rtol=TOLERANCE, atol=TOLERANCE)
