"""The order of sums that several ranks may share: neighbouring inputs by themselves, then these sums in one tree.

((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))

A sum over inputs is cut into a fixed number of splits, however many ranks there are. A rank that holds half of the
inputs, or a quarter, computes a subtree in fp32; the ranks' sums are added in the same tree and rounded once. So a
number has the same bits at every width that is at most the number of splits: at widths 1, 2 and 4, and at width 8 where
sums are long. To keep eight splits of a shorter sum apart would cost up to 8% of its product.
"""

from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import Tensor

SPLIT_COUNTS = (8, 4, 2)
LEAST_SUM_OF_MOST_SPLITS = 8192
"""Inputs of a sum from which it has as many splits as `SPLIT_COUNTS` begins with."""
SPLIT_MULTIPLE = 32
"""Inputs that the native operators quantize together, and multiply in one step of AMX."""


class SumOrder(Struct, frozen=True):
    """How a layer sums its inputs."""

    splits: int = 1
    partial: bool = False  # a rank's part of a sum: fp32, and not rounded


WHOLE_SUM = SumOrder()


def split_sum(inputs: int, *uncut: int, ranks: int = 1) -> SumOrder:
    """Returns the order of a rank's sum over its part of `inputs`, of which no unit of a size in `uncut` is cut.

    Splits are the most that cut none, of 8, 4, 2 and 1; 8 are for long sums.
    """
    units, allowed = (SPLIT_MULTIPLE, *uncut), SPLIT_COUNTS if inputs >= LEAST_SUM_OF_MOST_SPLITS else SPLIT_COUNTS[1:]
    splits = next((splits for splits in allowed if all(inputs % (splits * unit) == 0 for unit in units)), 1)
    return SumOrder(max(1, splits // ranks), ranks > 1)


def tree_sum(parts: Sequence[Tensor], place: Tensor | None = None) -> Tensor:
    """Adds tensors of one shape in the tree above, of two or more into a `place`; their number is a power of two."""
    while len(parts) > 2:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return torch.add(*parts, out=place) if len(parts) == 2 else parts[0]
