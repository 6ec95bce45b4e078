"""Plans split-KV: cuts the sequences of a decode step into parts of about equal length, one for each program.

    longest part = max(MIN_PART_TOKENS, sum of lengths / capacity)

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


def split_plan_words(works: int, capacity: int) -> int:
    """Returns the int32 words of a plan for `works` sequences: one for each program, then one for each sequence."""
    return works + capacity + works + 1


def plan_splits(lengths: NDArray[np.int64], capacity: int, window: int) -> NDArray[np.int32]:
    """Cuts sequences of `lengths` tokens, of which a query sees the last `window` (0: all).

    `capacity` is the number of parts that keeps the device busy. Returns owners `[works + capacity]`, then starts
    `[works + 1]`, as in `SplitPlan`. An empty sequence has one part as well, whose program writes its zeros.
    """
    works = len(lengths)
    visible = np.minimum(lengths, window) if window else lengths
    longest = max(MIN_PART_TOKENS, -(-int(visible.sum()) // capacity))
    counts = np.clip(-(-visible // longest), 1, MAX_SPLITS)
    plan = np.full(split_plan_words(works, capacity), NO_SEQUENCE, dtype=np.int32)
    starts = plan[works + capacity :]
    starts[0] = 0
    np.cumsum(counts, out=starts[1:])
    plan[: starts[-1]] = np.repeat(np.arange(works), counts)
    return plan


def split_plan_of(words: Tensor, works: int, capacity: int) -> SplitPlan:
    return SplitPlan(words[: works + capacity], words[works + capacity : split_plan_words(works, capacity)])
