"""Native operators over a quantized pool store the reference's bytes, and attend to the numbers that these mean."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.native.attention import NativeAttention
from engine.backends.native.library import DTYPE_CODES
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.backends.reference.kv_rounding import KV_DTYPES, rounded
from engine.model.attention import Attention, AttentionStep
from engine.model.batch import build_batch
from engine.model.config import HeadAttention
from engine.model.kv_layout import AnyAttention, KVForm, bytes_of_vector, layout_of
from engine.plan import StepPlan
from tests.engine.backends.native.measures import random
from tests.engine.backends.native.test_attention import LIMITS
from tests.engine.backends.reference.attention.test_latent_attention import attention_of
from tests.engine.backends.reference.attention.test_paged_attention import CPU, SHAPES, dense, filled
from tests.engine.configs import attention

FORMS = pytest.mark.parametrize("form", ["int8", "fp8"])
FORMATS_TESTED = pytest.mark.parametrize("dtype", DTYPE_CODES, ids=["fp32", "bf16"])
CASES: dict[str, tuple[AnyAttention, int]] = {
    "heads": (attention(6, 2, 64), 16),
    "a window": (attention(6, 2, 64, window=33), 8),
    "odd heads": (attention(5, 1, 22), 64),
    "latent vectors": (attention_of("17 heads"), 16),
}
"""Attention, and tokens of a block."""
Make = Callable[..., Attention[AttentionStep]]
Shape = list[tuple[int, int]]


def stored(
    make: Make, case: str, shape: Shape, form: KVForm, dtype: torch.dtype, spoilt: float = 0.0
) -> tuple[AttentionStep, list[Tensor], Tensor]:
    """Makes the step behind one that has stored what is before; each work's vectors, and the pool's bytes.

    What nobody has written is anything. `spoilt` is a number of the first KV head's value, or latent vector, of the
    first work's last token.
    """
    attention, block = CASES[case]
    layout = layout_of(attention)
    _, plan = filled(shape, block, 1, 2)
    contents = []
    for number, (start, count) in enumerate(shape):
        contents.append(random(start + count, layout.vectors, layout.width, seed=number).to(dtype))
    if spoilt:
        contents[0][-1, layout.vectors // 2, 1] = spoilt
    blocks = 1 + sum(len(work.blocks[0]) - 1 for work in plan.works)
    generator, size = torch.Generator().manual_seed(0), bytes_of_vector(layout, block)
    memory = torch.randint(256, (blocks, layout.vectors, size), generator=generator, dtype=torch.uint8)
    backend = make([memory.view(KV_DTYPES[form])], [attention], dtype)
    earlier = [structs.replace(work, start=0, token_ids=[0] * work.start) for work in plan.works if work.start]
    before = [content[:start] for content, (start, _) in zip(contents, shape, strict=True) if start]
    behind = [content[start:] for content, (start, _) in zip(contents, shape, strict=True)]
    for works, parts in ((earlier, before), (plan.works, behind)):
        if works:
            step = backend.begin(build_batch(StepPlan(0, works), block, CPU, None))
            step.store(0, torch.cat(parts))
    return step, contents, memory


@pytest.mark.parametrize("case", CASES)
@FORMS
@FORMATS_TESTED
def test_bytes_and_attention_are_the_references(
    level: ctypes.CDLL, case: str, form: KVForm, dtype: torch.dtype
) -> None:
    """Numbers that bytes mean are rounded to bf16 for a processor that multiplies those, and fp32 for one without."""
    attention, _ = CASES[case]
    layout = layout_of(attention)
    for shape in SHAPES.values():
        step, contents, memory = stored(lambda *given: NativeAttention(level, *given), case, shape, form, dtype)
        assert torch.equal(memory, stored(ReferenceAttention, case, shape, form, dtype)[2])
        exact = [rounded(content.float(), form, layout.parts) for content in contents]
        queries = random(sum(count for _, count in shape), attention.heads, layout.width, seed=7, dtype=dtype)
        found = step.attend(0, queries)
        assert found.dtype == dtype
        meant = exact, [content.to(dtype).float() for content in exact]
        assert min(_error(found, queries, each, shape, attention) for each in meant) < LIMITS[dtype]


def _error(found: Tensor, queries: Tensor, contents: list[Tensor], shape: Shape, attention: AnyAttention) -> float:
    """Returns the largest error, as `LIMITS` has it.

    A latent vector is its token's value, and with what follows it the key.
    """
    error, begin, scale = 0.0, 0, attention.scale
    for content, (start, count) in zip(contents, shape, strict=True):
        keys_values = content if isinstance(attention, HeadAttention) else content.repeat(1, 2, 1)
        rows, sizes = slice(begin, begin + count), keys_values.clone()
        sizes[:, sizes.shape[1] // 2 :].abs_()
        given = queries[rows].float()
        expected, size = (dense(given, each, start, attention.window, scale=scale) for each in (keys_values, sizes))
        off = (found[rows].double() - expected[..., : found.shape[2]]).abs()
        off = torch.where(off == 0, 0.0, off / size[..., : found.shape[2]])  # a value may be 0 in all tokens
        error = max(error, float(off.nan_to_num(math.inf).max()))
        begin += count
    return error


@pytest.mark.parametrize("case", ["heads", "latent vectors"])
@pytest.mark.parametrize("strange", [math.nan, math.inf])
@FORMATS_TESTED
def test_what_is_not_finite_is_seen_by_those_who_see_its_token(
    level: ctypes.CDLL, case: str, strange: float, dtype: torch.dtype
) -> None:
    """Spoils the last token of the first text.

    Only its own query, and of it the heads that share the KV head, are spoilt.
    """
    attention, _ = CASES[case]
    shape = [(40, 30), (3, 20)]
    make: Any = lambda *given: NativeAttention(level, *given)  # noqa: E731
    queries = random(50, attention.heads, layout_of(attention).width, seed=7, dtype=dtype)
    right, spoilt = (stored(make, case, shape, "int8", dtype, each)[0].attend(0, queries) for each in (0.0, strange))
    sees = torch.zeros(50, attention.heads, dtype=torch.bool)
    sees[29, : attention.heads // 2 if isinstance(attention, HeadAttention) else None] = True
    assert torch.equal(spoilt.isfinite().all(-1), ~sees)
    assert torch.equal(spoilt[~sees], right[~sees])
