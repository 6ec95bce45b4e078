"""How samples are drawn, and which part of a row of logits a program looks at: for the kernels that draw."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class SampleSettings(NamedTuple):
    """How each sample is drawn: five contiguous tensors `[samples]`."""

    rows: Tensor  # int32, the row of logits that the sample draws from
    temperature: Tensor  # fp32; 0: the largest logit is taken
    top_k: Tensor  # int32; 0: off
    top_p: Tensor  # fp32 or fp64; 1: off
    min_p_reach: Tensor  # fp32, log min_p; -infinity: off


@triton.jit
def part_of_row(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, rows: tl.tensor, sample: tl.tensor
) -> tl.tensor:
    """Returns a sample's row, and the vocabulary ids first … end - 1 that are this program's part of it.

    Parts begin at multiples of 16 ids, where vectors begin.
    """
    length = tl.cdiv(tl.cdiv(vocab, tl.num_programs(1)), 16) * 16
    begin = tl.program_id(1) * length
    return logits + tl.load(rows + sample).to(tl.int64) * stride, begin, tl.minimum(begin + length, vocab)
