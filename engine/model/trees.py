"""Says which guesses of a step see each other, where guesses branch: a tree of them is verified in one pass.

KV lies in the order of a work's tokens: its own, and behind them its guesses, each behind its parent. A guess stands at
the position of its depth (the children of the last own token are one behind it), and sees the text, its ancestors and
itself. So a row sees all places of its sequence up to one of them, and behind that place those that have a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.plan import Work

MAX_TREE_DRAFTS = 63
"""Guesses of a tree, a bit of an int64 for each."""


@dataclass(frozen=True)
class TreeMasks:
    """Holds what each row of a step sees, int64 on the device: of its sequence's KV, by place."""

    lasts: Tensor  # [tokens] all up to this place …
    bits: Tensor  # [tokens] … and of those behind it place lasts + 1 + j, where bit j is set
    deepest: int  # guess, in tokens behind the last own one
    works: frozenset[int]  # indices of those whose guesses branch


@dataclass(frozen=True)
class HostTreeMasks:
    """Holds the same on the host, and the rows' positions."""

    positions: NDArray[np.int64]  # [tokens]
    lasts: NDArray[np.int64]  # [tokens]
    bits: NDArray[np.int64]  # [tokens]
    deepest: int
    works: frozenset[int]


def host_tree_masks(works: Sequence[Work], places: NDArray[np.int64]) -> HostTreeMasks | None:
    """Finds what the rows of `works` see, whose KV goes to `places` `[tokens]` of their sequences.

    None where no guesses branch: then a row's position is its place, and it sees all up to there.
    """
    branching = frozenset(index for index, work in enumerate(works) if work.parents)
    if not branching:
        return None
    positions, lasts, bits = places.copy(), places.copy(), np.zeros_like(places)
    end = deepest = 0
    for index, work in enumerate(works):
        end += len(work.token_ids)
        if index not in branching:
            continue
        depths, paths = depths_and_paths(work.parents)
        guesses = slice(end - len(depths), end)
        own = places[end - len(depths) - 1]  # of the last token of the text
        positions[guesses], lasts[guesses], bits[guesses] = own + np.array(depths), own, paths
        deepest = max(deepest, *depths)
    return HostTreeMasks(positions, lasts, bits, deepest, branching)


def depths_and_paths(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns of each guess its depth, from 1 on, and the bits of itself and of its ancestors."""
    assert len(parents) <= MAX_TREE_DRAFTS, "more guesses than an integer has bits"
    depths: list[int] = []
    paths: list[int] = []
    for guess, parent in enumerate(parents):
        assert -1 <= parent < guess, "a guess before its parent"
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
        paths.append((paths[parent] if parent >= 0 else 0) | 1 << guess)
    return depths, paths
