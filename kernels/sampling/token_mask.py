"""Forbids tokens without a bit in a packed grammar mask: token i has bit i % 32 of word i // 32.

    x = x if the bit is set or x is not finite, else `forbidden`

Several programs share a row. A part's words are read once, in order, and logits are only read near forbidden tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"WORDS": 64}, warps=4),
    Config({"WORDS": 32}, warps=4),
    Config({"WORDS": 128}, warps=8),
)
"""The first is the default."""

TOKENS_PER_WORD: tl.constexpr = tl.constexpr(32)


def token_mask(logits: Tensor, rows: Tensor, bits: Tensor, forbidden: float, *, config: Config | None = None) -> None:
    """Masks rows of logits in place.

    Args:
        logits: `[rows, vocab]` fp32, contiguous.
        rows: `[masked]` int32, contiguous; no row is there twice.
        bits: `[masked, ceil(vocab / 32)]` int32, contiguous.
        forbidden: what logits without a bit become.

    Example: logits `[32, 128256]`, rows `[3, 17]`, bits `[2, 4008]`, forbidden -2^98.
    """
    (_, vocab), count = logits.shape, len(rows)
    words = tile_count(vocab, 32)
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    assert rows.shape == (count,) and rows.dtype == torch.int32 and rows.is_contiguous()
    assert bits.shape == (count, words) and bits.dtype == torch.int32 and bits.is_contiguous()
    config = config or tuned("token_mask", "", logits.device, CANDIDATE_CONFIGS[0])
    options = config.options()
    _token_mask[(count, tile_count(words, options["WORDS"]))](logits, vocab, rows, bits, words, forbidden, **options)


@launched_directly
@triton.jit
def _token_mask(
    logits: tl.tensor,
    vocab: tl.tensor,
    rows: tl.tensor,
    bits: tl.tensor,
    words: tl.tensor,
    forbidden: tl.tensor,
    WORDS: tl.constexpr,
) -> None:
    index = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    allowed = tl.load(bits + index * words + word, mask=word < words, other=-1)
    ids = word[:, None] * TOKENS_PER_WORD + tl.arange(0, TOKENS_PER_WORD)[None, :]
    masked = (((allowed[:, None] >> tl.arange(0, TOKENS_PER_WORD)[None, :]) & 1) == 0) & (ids < vocab)
    row = logits + tl.load(rows + index).to(tl.int64) * vocab
    x = tl.load(row + ids, mask=masked, other=0.0)
    tl.store(row + ids, tl.zeros_like(x) + forbidden, mask=masked & (tl.abs(x) < float("inf")))


def reference(logits: Tensor, rows: Tensor, bits: Tensor, forbidden: float) -> None:
    """Does the same with torch operators."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]] == 1
    x = logits[rows.long()]
    logits[rows.long()] = torch.where(allowed | ~x.isfinite(), x, forbidden)
