"""Plans split-KV: cuts the sequences of a decode step into parts of about equal length, one for each program.

    longest part = max(MIN_PART_TOKENS, sum of lengths / room)

A device is well used when its programs have equal work, so a long sequence among short ones is split. (FlashInfer plans
decodes in the same way: Ye et al., 2025, https://arxiv.org/abs/2501.01005.) The plan is data that the kernel reads; its
size depends on the number of sequences, not on their lengths. A CUDA graph can therefore be replayed for all lengths,
with a new plan for each step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.attention.attention_parts import MAX_SPLITS, MIN_PART_TOKENS

PROGRAMS_PER_PROCESSOR = 4
"""Programs for each processor: about three run at a time, the rest evens out unequal parts."""
NO_SEQUENCE = -1
"""Marks a program without a part."""


@dataclass(frozen=True)
class SplitPlan:
    """Split-KV plan: which part of which sequence each program computes."""

    owners: Tensor  # [programs] int32, the sequence of each part, in order; then NO_SEQUENCE
    starts: Tensor  # [works + 1] int32, the first part of each sequence, which has starts[w + 1] - starts[w] parts


def max_parts(processors: int, kv_heads: int) -> int:
    """Returns the number of parts, with one program for each KV head, that keeps `processors` busy."""
    return max(1, PROGRAMS_PER_PROCESSOR * processors // kv_heads)


def may_split(longest: int, window: int) -> bool:
    """Returns whether sequences of up to `longest` tokens are ever split, given a window (0: none)."""
    return min(longest, window or longest) > MIN_PART_TOKENS


def split_plan_words(works: int, room: int) -> int:
    """Returns the int32 words of a plan for `works` sequences: one for each program, then one for each sequence."""
    return works + room + works + 1


def plan_splits(lengths: NDArray[np.int64], room: int, window: int) -> NDArray[np.int32]:
    """Cuts sequences of `lengths` tokens, of which a query sees the last `window` (0: all).

    Returns owners `[works + room]`, then starts `[works + 1]`, as in `SplitPlan`. An empty sequence has one part as
    well, whose program writes its zeros.
    """
    works = len(lengths)
    seen = np.minimum(lengths, window) if window else lengths
    longest = max(MIN_PART_TOKENS, -(-int(seen.sum()) // room))
    counts = np.clip(-(-seen // longest), 1, MAX_SPLITS)
    found = np.full(split_plan_words(works, room), NO_SEQUENCE, dtype=np.int32)
    starts = found[works + room :]
    starts[0] = 0
    np.cumsum(counts, out=starts[1:])
    found[: starts[-1]] = np.repeat(np.arange(works), counts)
    return found


def split_plan_of(words: Tensor, works: int, room: int) -> SplitPlan:
    return SplitPlan(words[: works + room], words[works + room : split_plan_words(works, room)])
