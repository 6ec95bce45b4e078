"""Penalizes tokens that occur in a text, by counts on the device, after counting its newest token.

    x = x / repetition if x > 0 else x * repetition           of tokens in prompt or output
    x = x - count * frequency - (presence if count > 0)       of tokens in the output

(repetition: Keskar et al., "CTRL", 2019, https://arxiv.org/abs/1909.05858; the others: OpenAI's "Advanced usage"). A
stored count is twice the number of occurrences in the output, plus 1 if the token is in the prompt. Several programs
share a row; the program whose part has the newest token counts it. Logits are only read for tokens with a count. All
roundings equal the reference's: division is IEEE's, and product and difference are not fused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 2048}, warps=4),
    Config({"TILE": 2048}, warps=8),
    Config({"TILE": 4096}, warps=8),
)
"""The first is the default."""


def penalize(
    logits: Tensor,
    counts: Tensor,
    texts: Tensor,
    penalties: Tensor,
    sampled: Tensor,
    *,
    config: Config | None = None,
) -> None:
    """Counts the newest token of each text, and penalizes its row of logits in place.

    Args:
        logits: `[rows, vocab]` fp32, contiguous.
        counts: `[counted texts, vocab]` int32, contiguous; changed where a token is new.
        texts: `[3, texts]` int32, contiguous: of each text its row of `logits`, its row of `counts`, and the place of
            its newest token in `sampled`, or -1 if nothing is to be counted. No row is there twice.
        penalties: `[3, texts]` fp32, contiguous: repetition (1: off), frequency and presence (0: off).
        sampled: `[samples]` int64.

    Example: logits `[32, 128256]`, counts `[64, 128256]`, texts `[[4, 7], [0, 9], [-1, 12]]` for the rows 4 and 7,
    penalties `[[1, 1.2], [0.5, 0], [0, 0]]`, sampled `[32]`.
    """
    (_, vocab), (_, count) = logits.shape, texts.shape
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    assert counts.shape[1] == vocab and counts.dtype == torch.int32 and counts.is_contiguous()
    assert texts.shape == penalties.shape == (3, count) and texts.is_contiguous() and penalties.is_contiguous()
    assert texts.dtype == torch.int32 and penalties.dtype == torch.float32 and sampled.dtype == torch.int64
    config = config or tuned("penalize", "", logits.device, CANDIDATE_CONFIGS[0])
    options = config.options()
    grid = (count, tile_count(vocab, options["TILE"]))
    _penalize[grid](logits, counts, vocab, texts, penalties, count, sampled, enable_fp_fusion=False, **options)


@launched_directly
@triton.jit(do_not_specialize=["count"])
def _penalize(
    logits: tl.tensor,
    counts: tl.tensor,
    vocab: tl.tensor,
    texts: tl.tensor,
    penalties: tl.tensor,
    count: tl.tensor,
    sampled: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    text = tl.program_id(0)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    valid = ids < vocab
    row = logits + tl.load(texts + text).to(tl.int64) * vocab
    row_counts = counts + tl.load(texts + count + text).to(tl.int64) * vocab
    newest = tl.load(texts + 2 * count + text)
    stored = tl.load(row_counts + ids, mask=valid, other=0)
    if newest >= 0:
        found = valid & (ids == tl.load(sampled + newest))
        stored = tl.where(found, stored + 2, stored)
        tl.store(row_counts + ids, stored, mask=found)
    x = tl.load(row + ids, mask=valid & (stored > 0), other=0.0)
    repetition = tl.load(penalties + text)
    frequency, presence = tl.load(penalties + count + text), tl.load(penalties + 2 * count + text)
    x = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
    x = x - (stored >> 1).to(tl.float32) * frequency
    x = x - tl.where(stored > 1, presence, 0.0)
    tl.store(row + ids, x, mask=valid & (stored > 0))


def reference(logits: Tensor, counts: Tensor, texts: Tensor, penalties: Tensor, sampled: Tensor) -> None:
    """Does the same with torch operators."""
    rows, count_rows, newest = texts.long()
    indices = count_rows * counts.shape[1] + sampled[newest.clamp(min=0)]
    counts.view(-1).index_add_(0, indices, torch.where(newest >= 0, 2, 0).int())
    repetition, frequency, presence = penalties[:, :, None]
    x, stored = logits[rows], counts[count_rows]
    changed = torch.where(x > 0, x / repetition, x * repetition)
    changed = changed - (stored // 2) * frequency - torch.where(stored > 1, presence, 0.0)
    logits[rows] = torch.where(stored > 0, changed, x)
