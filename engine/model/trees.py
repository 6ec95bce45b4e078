"""Tree masks: which draft tokens of a tree attend to each other, so that one pass verifies the whole tree.

KV is stored in the order of a work's tokens: its own tokens, then its draft tokens, parents before children. The
position of a draft token is given by its depth (1 for children of the last own token). It attends to the text, its
ancestors and itself. A row therefore attends to all KV up to some position, and after that to the positions set in a
mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.plan import Work

MAX_TREE_DRAFTS = 63
"""Maximum draft tokens of a tree: one bit of an int64 each."""


@dataclass(frozen=True)
class TreeMasks:
    """The positions of its sequence's KV that each row of a step attends to, int64 on the device."""

    lasts: Tensor  # [tokens] all positions up to this one …
    bits: Tensor  # [tokens] … and position lasts + 1 + j where bit j is set
    deepest: int  # depth of the deepest draft token
    works: frozenset[int]  # indices of works with trees


@dataclass(frozen=True)
class HostTreeMasks:
    """The same on the host, with the rows' positions."""

    positions: NDArray[np.int64]  # [tokens]
    lasts: NDArray[np.int64]  # [tokens]
    bits: NDArray[np.int64]  # [tokens]
    deepest: int
    works: frozenset[int]


def host_tree_masks(works: Sequence[Work], kv_positions: NDArray[np.int64]) -> HostTreeMasks | None:
    """Returns the masks of `works`, whose KV goes to `kv_positions` `[tokens]` of their sequences.

    None where there is no tree: then a row's position is that of its KV, and it attends to all up to there.
    """
    branching = frozenset(index for index, work in enumerate(works) if work.parents)
    if not branching:
        return None
    positions, lasts, bits = kv_positions.copy(), kv_positions.copy(), np.zeros_like(kv_positions)
    end = deepest = 0
    for index, work in enumerate(works):
        end += len(work.token_ids)
        if index not in branching:
            continue
        depths, paths = depths_and_paths(work.parents)
        drafts = slice(end - len(depths), end)
        own = kv_positions[end - len(depths) - 1]  # of the last token of the text
        positions[drafts], lasts[drafts], bits[drafts] = own + np.array(depths), own, paths
        deepest = max(deepest, *depths)
    return HostTreeMasks(positions, lasts, bits, deepest, branching)


def depths_and_paths(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns by draft token its depth, from 1 on, and the bits of itself and its ancestors."""
    assert len(parents) <= MAX_TREE_DRAFTS, "more draft tokens than an integer has bits"
    depths: list[int] = []
    paths: list[int] = []
    for draft, parent in enumerate(parents):
        assert -1 <= parent < draft, "a draft token before its parent"
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
        paths.append((paths[parent] if parent >= 0 else 0) | 1 << draft)
    return depths, paths
