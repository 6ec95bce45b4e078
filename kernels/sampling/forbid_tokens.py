"""Forbids single tokens in rows of logits, some only if a token that is known only on the device has a given value.

    x = `forbidden` where x is finite, and the condition holds

A thread takes an entry; several entries for the same place write the same value.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (Config({"TILE": 128}, warps=4),)
"""There is little to choose: the work is a launch."""


def forbid_tokens(
    logits: Tensor, entries: Tensor, sampled: Tensor, forbidden: float, *, config: Config | None = None
) -> None:
    """Changes logits in place.

    Args:
        logits: `[rows, vocab]` fp32, contiguous.
        entries: `[4, n]` int32, contiguous: of each its row, its token, a place in `sampled`, and the token that has to
            be there; the place -1: whatever is there.
        sampled: `[samples]` int64.
        forbidden: what the logits become.

    Example: logits `[32, 128256]`, entries `[[0, 9], [77, 1234], [-1, 5], [0, 42]]`: of row 0 token 77, and of row 9
    token 1234 if sampled[5] is 42.
    """
    vocab, count = logits.shape[1], entries.shape[1]
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    assert entries.shape == (4, count) and entries.dtype == torch.int32 and entries.is_contiguous()
    assert sampled.dtype == torch.int64
    config = config or tuned("forbid_tokens", "", logits.device, CANDIDATE_CONFIGS[0])
    options = config.options()
    grid = (tile_count(count, options["TILE"]),)
    _forbid_tokens[grid](logits, vocab, entries, count, sampled, forbidden, **options)


@launched_directly
@triton.jit(do_not_specialize=["count"])
def _forbid_tokens(
    logits: tl.tensor,
    vocab: tl.tensor,
    entries: tl.tensor,
    count: tl.tensor,
    sampled: tl.tensor,
    forbidden: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = entry < count
    row = tl.load(entries + entry, mask=valid, other=0).to(tl.int64)
    token = tl.load(entries + count + entry, mask=valid, other=0)
    index = tl.load(entries + 2 * count + entry, mask=valid, other=-1)
    expected = tl.load(entries + 3 * count + entry, mask=valid, other=0)
    holds = valid & ((index < 0) | (tl.load(sampled + index, mask=index >= 0, other=-1) == expected))
    address = logits + row * vocab + token
    x = tl.load(address, mask=holds, other=0.0)
    tl.store(address, tl.zeros_like(x) + forbidden, mask=holds & (tl.abs(x) < float("inf")))


def reference(logits: Tensor, entries: Tensor, sampled: Tensor, forbidden: float) -> None:
    """Does the same with torch operators."""
    rows, tokens, index, expected = entries.long()
    holds = (index < 0) | (sampled[index.clamp(min=0)] == expected)
    rows, tokens = rows[holds], tokens[holds]
    x = logits[rows, tokens]
    logits[rows, tokens] = torch.where(x.isfinite(), forbidden, x)
