"""How samples are drawn, and what of a row of logits a program of theirs looks at: shared by the kernels that draw."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class SampleSettings(NamedTuple):
    """How each sample is drawn, `[samples]` each, contiguous."""

    rows: Tensor  # int32, the row of logits that it draws from
    temperature: Tensor  # fp32; 0: the largest logit
    top_k: Tensor  # int32; 0: off
    top_p: Tensor  # fp32 or fp64; 1: off
    min_p_reach: Tensor  # fp32, log min_p; -infinity: off


@triton.jit
def part_of_row(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, rows: tl.tensor, sample: tl.tensor
) -> tl.tensor:
    """A sample's row, the id at which the part of this program begins, a place where vectors begin, and its end."""
    length = tl.cdiv(tl.cdiv(vocab, tl.num_programs(1)), 16) * 16
    begin = tl.program_id(1) * length
    return logits + tl.load(rows + sample).to(tl.int64) * stride, begin, tl.minimum(begin + length, vocab)


@triton.jit
def allowed(ids: tl.tensor, inside: tl.tensor, mask: tl.tensor, vocab: tl.tensor, sample: tl.tensor) -> tl.tensor:
    """Which of the ids that are `inside` a sample's mask allows."""
    if mask is not None:
        word = tl.load(mask + sample * tl.cdiv(vocab, 32) + (ids >> 5), mask=inside, other=0)
        inside = inside & (((word >> (ids & 31)) & 1) == 1)
    return inside


def unpacked(mask: Tensor, vocab: int) -> Tensor:
    """bool `[samples, vocab]` of packed bits `[samples, ceil(vocab / 32)]`."""
    bits = (mask[:, :, None] >> torch.arange(32, device=mask.device)) & 1
    return bits.flatten(1)[:, :vocab] == 1
