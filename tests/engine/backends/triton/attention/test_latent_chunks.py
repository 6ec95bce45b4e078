"""Chunks of latent attention with built keys and values: prompts and later chunks in one step, in several groups."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from contracts.kv.spec import blocks_for
from contracts.messages.sampling import Sampling
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.attention import latent_chunks
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.model.batch import build_batch
from engine.model.config import LatentAttention
from engine.model.rope import Rope
from engine.plan import StepPlan, Work
from kernels.attention.expanded_attention import ExpandedKV, expanded_attention

pytestmark = pytest.mark.interpreted
CPU = torch.device("cpu")
BLOCK_TOKENS = 8
ATTENTION = LatentAttention(
    heads=3, query_rank=0, latent_rank=40, rope_dim=8, nope_dim=24, value_dim=16, scale=0.2, rope=Rope(dim=8)
)
BLOCK_BYTES = BLOCK_TOKENS * 3 * (24 + 16) * 4
"""Keys and values of a block, for all heads, in fp32."""
Stored = tuple[int, int]
"""Stored and new tokens of a work."""
WORKS = [(30, 1), (0, 70), (45, 66), (9, 64)]
"""A decode, a prompt, and two chunks behind a prefix, of which no length is a multiple of 8."""


class Launch(NamedTuple):
    chunks: int
    queries: int
    heads: int


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Returns the launches of the expanded form, as they come."""
    found: list[Launch] = []

    def watched(queries: Tensor, kv: ExpandedKV, *args: Any, **named: Any) -> Tensor:
        found.append(Launch(len(kv.lengths), *queries.shape[:2]))
        return expanded_attention(queries, kv, *args, **named)

    monkeypatch.setattr(latent_chunks, "expanded_attention", watched)
    return found


def attended(
    attention: TritonAttention | ReferenceAttention,
    given: Sequence[Stored],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    works, first = [], 1
    for number, (start, count) in enumerate(given):
        end = first + blocks_for(start + count, BLOCK_TOKENS)
        works.append(Work(number, start, [0] * count, (list(range(first, end))[::-1],), Sampling(seed=0)))
        first = end
    step = attention.begin(build_batch(StepPlan(0, works), BLOCK_TOKENS, CPU, None))
    return step.attend_latent(0, queries, ReferenceLinears(CPU, torch.float32).latent(keys, values))


@pytest.mark.parametrize(
    ("most_bytes", "launches"),
    [(1 << 20, [(3, 3)]), (23 * BLOCK_BYTES, [(2, 3), (1, 3)]), (1, [(1, 1)] * 9)],
    ids=["together", "in two groups", "a head of a chunk at a time"],
)
def test_chunks_equal_the_reference_backends(
    most_bytes: int, launches: list[tuple[int, int]], seen: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks and heads are divided among launches that fit into the memory; their numbers are the parameters."""
    monkeypatch.setattr(latent_chunks, "MAX_EXPANDED_BYTES", most_bytes)
    compare(WORKS)
    assert [(each.chunks, each.heads) for each in seen] == launches


@pytest.mark.parametrize(
    ("works", "launches"),
    [
        ([(0, 70), (3, 20), (5, 18), (9, 64)], [(1, 70), (1, 64)]),
        ([(30, 1), (200, 40), (0, 70), (9, 64), (0, 33)], [(2, 134)]),
        ([(3, 20), (5, 18)], []),
    ],
    ids=["between two prompts", "before and behind, with a decode", "all"],
)
def test_short_chunks_are_absorbed_alone(
    works: list[Stored], launches: list[tuple[int, int]], seen: list[Launch]
) -> None:
    """The parameters are the numbers of chunks and of queries in each launch of the expanded form."""
    compare(works)
    assert [(each.chunks, each.queries) for each in seen] == launches


def compare(works: Sequence[Stored]) -> None:
    """Attends to random vectors as the reference backend does."""
    torch.manual_seed(0)
    blocks = 1 + sum(blocks_for(start + count, BLOCK_TOKENS) for start, count in works)
    layer = torch.randn(blocks, 1, BLOCK_TOKENS, ATTENTION.latent_rank + ATTENTION.rope_dim)
    keys, values = (torch.randn(3, width, 40) / 40**0.5 for width in (ATTENTION.nope_dim, ATTENTION.value_dim))
    queries = torch.randn(sum(count for _, count in works), 3, ATTENTION.nope_dim + ATTENTION.rope_dim)
    expected, found = (
        attended(make([layer], [ATTENTION]), works, queries, keys, values)
        for make in (ReferenceAttention, TritonAttention)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
