"""The order in which ranks' results are added: in one tree, neighbours first, whichever rank finishes first.

((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
"""

from collections.abc import Sequence

from torch import Tensor


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """Adds tensors of one shape in the tree above; their number is a power of two."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
