"""Cuts the sequences of a decode step into pieces of about equal work, one for each program of attention.

    longest piece = max(SHORTEST_PART, sum of lengths / room)

A device is full when its programs have as much to do as each other, whatever sequences they are from: a long sequence
among many short ones is cut, and those are not. (FlashInfer plans its decodes alike: Ye et al., 2025,
https://arxiv.org/abs/2501.01005.) The plan is data that the kernel reads, of a size that the batch's rows decide and
lengths do not. So a recorded step serves every length: the host makes a plan for each step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.attention.attention_parts import MAX_SPLITS, MIN_PART_TOKENS

PROGRAMS_PER_PROCESSOR = 4
"""Programs to each processor: about three run there at a time, and the rest evens out pieces of unequal lengths."""
NO_SEQUENCE = -1
"""The sequence of a program that has nothing to do."""


@dataclass(frozen=True)
class SplitPlan:
    """Says which part of which sequence each program takes, as the kernel reads it."""

    owners: Tensor  # [programs] int32, the sequence of each piece, in order; NOBODY behind the last
    starts: Tensor  # [works + 1] int32, the first piece of each sequence; it is cut into starts[w + 1] - starts[w]


def max_parts(processors: int, kv_heads: int) -> int:
    """Returns how many pieces of sequences, with a program for each KV head, keep so many processors busy."""
    return max(1, PROGRAMS_PER_PROCESSOR * processors // kv_heads)


def may_split(longest: int, window: int) -> bool:
    """Tells whether any sequence of up to `longest` tokens, seen through a window (0: none), is ever cut."""
    return min(longest, window or longest) > MIN_PART_TOKENS


def split_plan_words(works: int, room: int) -> int:
    """Returns how many numbers the plan of so many sequences has: of each program, then of each sequence."""
    return works + room + works + 1


def plan_splits(lengths: NDArray[np.int64], room: int, window: int = 0) -> NDArray[np.int32]:
    """Cuts sequences of `lengths` tokens, of which a query sees the last `window` (0: all).

    Returns owners `[works + room]`, then starts `[works + 1]`, as `SplitPlan` has them. An empty sequence has one part
    as well: that part's program writes its zeros.
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
    """Takes what `plan_splits` gave apart, on the device."""
    return SplitPlan(words[: works + room], words[works + room : split_plan_words(works, room)])
