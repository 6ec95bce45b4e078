"""What tests of attention to guesses that branch share: works with trees, and what dense attention finds."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec import structs
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.model.attention import Attention, AttentionStep
from engine.model.batch import Batch, build_batch
from engine.model.config import HeadAttention
from engine.model.trees import depths_and_paths
from engine.plan import StepPlan
from tests.engine.backends.reference.attention.test_paged_attention import CPU, dense, filled, through, write_history
from tests.engine.configs import attention as head_attention

SHAPES = {  # (start, own tokens, guesses) of each work
    "one": [(40, 1, 7)],
    "across tiles": [(100, 1, 40), (127, 1, 63), (126, 1, 9), (128, 1, 20), (250, 1, 30)],
    "beside others": [(9, 1, 0), (33, 1, 12), (0, 1, 5), (0, 40, 0), (200, 3, 0), (17, 5, 63)],
}


def parents_of(guesses: int, deepest: int, seed: int) -> tuple[int, ...]:
    """A random tree, no deeper than that."""
    draw = random.Random(seed)
    parents: list[int] = []
    for guess in range(guesses):
        depths = depths_and_paths(parents)[0]
        parents.append(draw.choice([-1] + [at for at in range(guess) if depths[at] < deepest]))
    return tuple(parents)


@dataclass(frozen=True)
class Problem:
    """A step's works, all their keys and values by place `[tokens, 2 x kv_heads, dim]`, and its batch."""

    contents: list[Tensor]
    plan: StepPlan
    batch: Batch

    def ways(self, work: int) -> list[list[int]]:
        """The places that each row of a work sees, in the order of their positions."""
        own = self.plan.works[work]
        paths = depths_and_paths(own.parents)[1]
        text = own.start + len(own.token_ids) - len(paths)
        rows = [list(range(place + 1)) for place in range(own.start, text)]
        return rows + [[*range(text), *(text + bit for bit in range(len(paths)) if path >> bit & 1)] for path in paths]


def problem(shape: str, *, block: int, kv_heads: int, dim: int, window: int) -> Problem:
    """Works with trees that are as deep as a window lets them be."""
    sizes = SHAPES[shape]
    contents, plan = filled([(start, own + guesses) for start, own, guesses in sizes], block, kv_heads, dim)
    deepest = min(20, window - 1) if window else 20
    works = [
        structs.replace(work, proposed=(0,) * guesses, parents=parents_of(guesses, deepest, at), sampling=Sampling(0))
        for at, (work, (_, _, guesses)) in enumerate(zip(plan.works, sizes, strict=True))
    ]
    plan = StepPlan(0, works)
    return Problem(contents, plan, build_batch(through(plan, window, block), block, CPU, None))


def largest_error(
    make: Callable[[list[Tensor], list[HeadAttention]], Attention[AttentionStep]],
    shape: str,
    *,
    kv_heads: int = 2,
    shared: int = 3,
    dim: int = 48,
    block: int = 16,
    window: int = 0,
    softcap: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> float:
    """The largest |found - expected| / sum of weight x |value|, in a pool whose other slots are NaN."""
    given = problem(shape, block=block, kv_heads=kv_heads, dim=dim, window=window)
    contents = [content.to(dtype).float() for content in given.contents]
    blocks = 1 + sum(len(work.blocks[0]) - 1 for work in given.plan.works)
    layers = list(torch.full((2, blocks, kv_heads, 2, block, dim), math.nan, dtype=dtype))
    for layer in layers:
        layer[0] = 0
    write_history(layers[1], contents, given.plan, block)
    for work in given.plan.works:
        if work.start % block:  # as it was when the sequence entered the block
            layers[1][work.blocks[0][work.start // block], :, :, work.start % block :] = 0
    attentions = [head_attention(kv_heads * shared, kv_heads, dim, window=each) for each in (0, window)]
    attentions[1] = structs.replace(attentions[1], softcap=softcap)
    step = make([layer.flatten(1, 2) for layer in layers], attentions).begin(given.batch)
    new = torch.cat([content[work.start :] for content, work in zip(contents, given.plan.works, strict=True)])
    queries = torch.randn(len(new), kv_heads * shared, dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    step.store(1, new.to(dtype))
    found = step.attend(1, queries)
    rows = [(at, way) for at in range(len(given.plan.works)) for way in given.ways(at)]
    assert len(rows) == len(queries)
    error = 0.0
    for query, result, (at, way) in zip(queries, found, rows, strict=True):
        content = contents[at][way]
        sizes = content.clone()
        sizes[:, kv_heads:] = sizes[:, kv_heads:].abs()
        expected, size = (
            dense(query[None].float(), each, len(way) - 1, window, softcap=softcap)[0] for each in (content, sizes)
        )
        error = max(error, float(((result.double() - expected).abs() / size).nan_to_num(math.inf).max()))
    return error
