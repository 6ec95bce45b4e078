"""Paged attention against dense attention in fp64, for odd sizes, ragged batches and windows."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec import structs

from contracts.kv.spec import blocks_for
from contracts.messages.sampling import Sampling
from engine.backends.reference.attention import head_attention as attention_torch
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.model.attention import Attention, AttentionStep
from engine.model.batch import Batch, build_batch
from engine.model.config import HeadAttention
from engine.plan import NULL_BLOCK, StepPlan, Work
from launcher.devices.gpus import visible_gpus
from tests.engine.configs import attention as head_attention

CPU = torch.device("cpu")
DEVICE = "cuda" if visible_gpus() else "cpu"

SHAPES = {  # (start, tokens) of each work
    "decode": [(0, 1), (5, 1), (62, 1), (63, 1), (64, 1), (300, 1)],
    "one decode": [(77, 1)],
    "prompts": [(0, 63), (0, 60), (0, 7), (0, 1), (0, 64)],
    "chunks": [(16, 13), (17, 13), (160, 31), (3, 2)],
    "mixed": [(40, 1), (0, 9), (33, 17), (41, 1), (200, 1), (0, 1)],
}


def filled(shape: list[tuple[int, int]], block: int, heads: int, dim: int) -> tuple[list[torch.Tensor], StepPlan]:
    """Every work's keys and values `[tokens, 2 x kv_heads, dim]`, and a plan with tables in random order."""
    generator = torch.Generator().manual_seed(0)
    totals = [start + count for start, count in shape]
    order = (torch.randperm(sum(blocks_for(total, block) for total in totals), generator=generator) + 1).tolist()
    works, contents = [], []
    for number, (start, count) in enumerate(shape):
        need = blocks_for(start + count, block)
        own, order = order[:need], order[need:]
        works.append(Work(number, start, [0] * count, ([*own, 9999],), Sampling(seed=0)))
        contents.append(torch.randn(start + count, 2 * heads, dim, generator=generator))
    return contents, StepPlan(0, works)


def through(plan: StepPlan, window: int, block: int) -> StepPlan:
    """The plan in a model of a layer that sees all and one with a window, whose table has no block that it hides."""
    if not window:
        return plan
    works = []
    for work in plan.works:
        hidden = max(0, work.start - window + 1) // block
        seen = [NULL_BLOCK] * hidden + work.blocks[0][hidden:]
        works.append(structs.replace(work, blocks=(work.blocks[0], seen)))
    return StepPlan(plan.step, works)


def dense(
    queries: torch.Tensor,
    content: torch.Tensor,
    start: int,
    window: int,
    *,
    scale: float = 0.0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The definition, in fp64: `queries` `[tokens, heads, dim]`, `sinks` `[heads]`."""
    kv_heads = content.shape[1] // 2
    shared = queries.shape[1] // kv_heads
    keys, values = (part.repeat_interleave(shared, 1).double() for part in content.chunk(2, 1))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * (scale or queries.shape[2] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    query = start + torch.arange(len(queries))[:, None]
    key = torch.arange(len(content))
    scores = scores.masked_fill((key > query) | ((key <= query - window) if window else False), -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, len(queries), 1)), -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(content)], values)


def write_history(layer: torch.Tensor, contents: list[torch.Tensor], plan: StepPlan, block: int) -> None:
    """What earlier steps have stored, token by token, by the layout's definition."""
    for content, work in zip(contents, plan.works, strict=True):
        for position in range(work.start):
            place = work.blocks[0][position // block]
            layer[place, :, :, position % block] = content[position].view(2, -1, layer.shape[-1]).transpose(0, 1)


def check(
    attention: Callable[[list[torch.Tensor], list[HeadAttention]], Attention[AttentionStep]],
    shape: list[tuple[int, int]],
    window: int,
    kv_heads: int,
    shared: int,
    dim: int,
    dtype: torch.dtype,
    tolerance: float,
    device: torch.device = CPU,
    *,
    cleared: bool = True,
    scale: float = 0.0,
    softcap: float = 0.0,
    sunk: bool = False,
) -> None:
    """Stores what is new and attends, in a pool of NaN; `cleared`: but for the tails of the sequences' own blocks."""
    block = 8
    contents, plan = filled(shape, block, kv_heads, dim)
    contents = [content.to(dtype).float() for content in contents]
    layers = list(torch.full((2, 200, kv_heads, 2, block, dim), math.nan, dtype=dtype, device=device))
    for layer in layers:
        layer[0] = 0
    write_history(layers[1], contents, plan, block)
    for work in plan.works:
        if cleared and work.start % block:  # as it was when the sequence entered the block
            layers[1][work.blocks[0][work.start // block], :, :, work.start % block :] = 0
    attentions = [head_attention(kv_heads * shared, kv_heads, dim, window=each) for each in (0, window)]
    attentions[1] = structs.replace(attentions[1], scale=scale or dim**-0.5, softcap=softcap)
    pool = [layer.flatten(1, 2) for layer in layers]
    step = attention(pool, attentions).begin(build_batch(through(plan, window, block), block, device, None))
    new = torch.cat([content[work.start :] for content, work in zip(contents, plan.works, strict=True)])
    queries = torch.randn(len(new), kv_heads * shared, dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    step.store(1, new.to(device, dtype))
    sinks = torch.randn(kv_heads * shared, generator=torch.Generator().manual_seed(2)) if sunk else None
    found = step.attend(1, queries.to(device), None if sinks is None else sinks.to(device)).cpu()
    begin = 0
    for content, work in zip(contents, plan.works, strict=True):
        end = begin + len(work.token_ids)
        more: Any = {"scale": scale, "softcap": softcap, "sinks": sinks}
        expected = dense(queries[begin:end].float(), content, work.start, window, **more)
        torch.testing.assert_close(found[begin:end].double(), expected, rtol=tolerance, atol=tolerance)
        begin = end
    assert not layers[1][0].any(), "the null block was written"
    assert layers[0][1:].isnan().all(), "another layer was written"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 10])
@pytest.mark.parametrize(
    ("kv_heads", "shared", "dim", "gathered"),
    [
        (1, 1, 2, 1),
        (2, 3, 10, attention_torch.MAX_GATHERED_BYTES),
        (3, 1, 64, 1),
        (1, 5, 24, attention_torch.MAX_GATHERED_BYTES),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_paged_equals_dense(
    shape: str,
    window: int,
    kv_heads: int,
    shared: int,
    dim: int,
    dtype: torch.dtype,
    tolerance: float,
    gathered: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_torch, "MAX_GATHERED_BYTES", gathered)
    check(ReferenceAttention, SHAPES[shape], window, kv_heads, shared, dim, dtype, tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("scale", "softcap", "sunk"), [(0.5, 0.0, False), (0.0, 3.0, False), (0.2, 2.0, True)])
def test_scales_soft_caps_and_sinks(shape: str, scale: float, softcap: float, sunk: bool) -> None:
    more: Any = {"scale": scale, "softcap": softcap, "sunk": sunk}
    for window in (0, 10):
        check(ReferenceAttention, SHAPES[shape], window, 2, 3, 10, torch.float32, 3e-6, **more)
        check(ReferenceAttention, SHAPES[shape], window, 1, 5, 24, torch.bfloat16, 3e-2, **more)


@pytest.mark.parametrize("window", [0, 10])
def test_the_kernels_equal_dense_too(window: int) -> None:
    """Both of them: a decode, then chunks. Behind a sequence's tokens is NaN, which they never multiply."""
    check(TritonAttention, SHAPES["mixed"], window, 2, 3, 16, torch.float32, 3e-6, torch.device(DEVICE), cleared=False)


def batch_of(shape: list[tuple[int, int]], block: int = 16) -> Batch:
    return build_batch(filled(shape, block, 1, 2)[1], block, CPU, None)


def test_rectangles_are_few_and_waste_little() -> None:
    """A decode step of any size is one rectangle unless lengths differ a lot; prompts do not join single queries."""

    def works(shape: list[tuple[int, int]]) -> list[int]:
        layers = list(torch.zeros(1, 4000, 2, 16, 2))
        step = ReferenceAttention(layers, [head_attention(2, 1, 2)]).begin(batch_of(shape))
        return [rectangle.works for rectangle in step.steps[0].rectangles]

    assert works([(100 + index, 1) for index in range(64)]) == [64]
    assert works([(100, 1)] * 8 + [(20000, 1)]) == [8, 1]
    assert works([(0, 16)] * 32) == [32]
    assert works([(50, 1), (0, 512), (51, 1)]) == [2, 1]


def test_what_a_rectangle_gathers_is_bounded_however_many_share_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool holds a shared prompt once, but each of its sequences gathers it."""
    monkeypatch.setattr(attention_torch, "MAX_GATHERED_BYTES", 1 << 20)
    prompt = list(range(1, 65))
    works = [Work(number, 1024, [0], ([*prompt, 65 + number],), Sampling(seed=0)) for number in range(100)]
    layers = list(torch.zeros(1, 200, 4, 16, 8))
    step = ReferenceAttention(layers, [head_attention(2, 2, 8)]).begin(build_batch(StepPlan(0, works), 16, CPU, None))
    rectangles = step.steps[0].rectangles
    sizes = [each.tables.numel() * 4 * 16 * 8 * 4 for each in rectangles]
    assert sum(each.works for each in rectangles) == 100 and max(sizes) <= 1 << 20
    assert min(sizes[:-1]) > 1 << 19, "they are as large as they may be"


def test_a_window_gathers_its_own_blocks_only() -> None:
    shape = [(1000 + 100 * index, 1) for index in range(8)]
    layers = list(torch.zeros(2, 2000, 2, 16, 2))
    attentions = [head_attention(2, 1, 2, window=window) for window in (0, 40)]
    plan = through(filled(shape, 16, 1, 2)[1], 40, 16)
    step = ReferenceAttention(layers, attentions).begin(build_batch(plan, 16, CPU, None))
    (whole,), (seen,) = (each.rectangles for each in step.steps)
    assert whole.tables.shape == (8, 107) and seen.tables.shape == (8, 4)
    assert not (seen.tables[:, :3] == NULL_BLOCK).any()  # a fourth is padding behind some
