"""Groups the works of a step into few rectangles with little padding, since PyTorch's operators compute rectangles.

Works of similar shape are padded to one rectangle of queries and keys, so that a decode step of any batch is a few
operator calls per layer. Blocks before a window are not in the rectangle.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.model.batch import Batch, Ints
from engine.model.trees import MAX_TREE_DRAFTS

MAX_WASTE_FACTOR = 1.25
"""A rectangle may compute this much more than its works need …"""
FREE_WASTED_PAIRS = 8192
"""… or this many query-key pairs more, which take about as long as the operator calls of another rectangle."""


@dataclass(frozen=True)
class Rectangle:
    """Works that attend together."""

    rows: Tensor | None  # [works, queries] rows of the batch; None: the whole batch in order, one query each
    kept: Tensor | None  # [tokens] indices of rows that are not padding; None: all
    tables: Tensor  # [works, blocks] visible blocks, with arbitrary padding
    mask: Tensor | None  # [works, 1, queries, keys], 0 or -inf; None: causal, from the first token on
    works: int
    queries: int

    def taken(self, queries: Tensor) -> Tensor:
        """Returns its own rows of the batch's queries, `[works, queries, …]` of `[tokens, …]`."""
        return queries.unsqueeze(1) if self.rows is None else queries[self.rows]

    def put(self, found: Tensor, output: Tensor) -> None:
        """Writes its rows' results, `[works, queries, …]`, to their places in `[tokens, …]`."""
        if self.rows is None:
            output.copy_(found.squeeze(1))
        elif self.kept is None:
            output[self.rows.flatten()] = found.flatten(0, 1)
        else:
            output[self.rows.flatten()[self.kept]] = found.flatten(0, 1)[self.kept]


def rectangles(batch: Batch, group: int, block: int, window: int, most: int, dtype: torch.dtype) -> Iterator[Rectangle]:
    """Makes rectangles of a step's works, over the blocks of one KV group. Masks are of `dtype`.

    All keys of a rectangle, padding included, are at most `most`, unless it is a single work.
    """
    starts = batch.kv_lengths - batch.query_lengths
    begins = np.maximum(starts - window + 1, 0) // block if window else np.zeros_like(starts)
    counts = -(-batch.kv_lengths // block) - begins
    tables = batch.groups[group].block_tables
    for members in _similar(batch.query_lengths, counts * block, most):
        place = torch.from_numpy(begins[members]).to(tables.device)[:, None]  # of the first block that a work sees
        places = place + torch.arange(int(counts[members].max()), device=tables.device)  # [works, blocks]
        works = torch.tensor(members, device=tables.device)
        seen = tables[works[:, None], places.clamp(max=tables.shape[1] - 1)]
        yield _rectangle(batch, members, works, seen, place * block, window, seen.shape[1] * block, dtype)


def _rectangle(
    batch: Batch,
    members: list[int],
    works: Tensor,
    tables: Tensor,
    first: Tensor,
    window: int,
    keys: int,
    dtype: torch.dtype,
) -> Rectangle:
    device = tables.device
    lengths = batch.query_lengths[members]
    count = int(lengths.max())
    steps = torch.minimum(torch.arange(count, device=device), torch.from_numpy(lengths).to(device)[:, None] - 1)
    rows = batch.query_start[works][:, None] + steps  # padding repeats a work's last query
    ragged = bool((lengths != count).any())
    kept = torch.from_numpy(np.flatnonzero(np.arange(count) < lengths[:, None])).to(device) if ragged else None
    whole = count == 1 and members == list(range(len(batch.kv_lengths)))
    plain = count > 1 and bool((batch.kv_lengths[members] == lengths).all()) and not 0 < window < count
    mask = None if plain and batch.trees is None else _mask(batch, rows, first, keys, window, dtype)
    return Rectangle(None if whole else rows, kept, tables, mask, len(members), count)


def _mask(batch: Batch, rows: Tensor, first: Tensor, keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """Returns the mask added to scores of the batch's `rows` `[works, queries]` and keys from `first` `[works, 1]` on.

    Keys after a sequence's end lie in its future.
    """
    key = (first + torch.arange(keys, device=rows.device))[:, None, None, :]
    query = batch.positions[rows][:, None, :, None]
    if batch.trees is None:
        hidden = key > query
    else:
        assert not window or batch.trees.deepest < window, "a tree deeper than a window"
        behind = key - batch.trees.lasts[rows][:, None, :, None] - 1  # a draft token's number, from 0 on
        bit = batch.trees.bits[rows][:, None, :, None] >> behind.clamp(0, MAX_TREE_DRAFTS - 1) & 1
        hidden = (behind >= 0) & ((bit == 0) | (behind >= MAX_TREE_DRAFTS))
    if window:
        hidden |= key <= query - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, -torch.inf)


def _similar(query_lengths: Ints, key_lengths: Ints, most: int) -> Iterator[list[int]]:
    shapes = [(int(q), int(k), work) for work, (q, k) in enumerate(zip(query_lengths, key_lengths, strict=True))]
    members: list[int] = []
    needed = longest = 0
    for queries, keys, work in sorted(shapes):
        needed += queries * keys
        longest = max(longest, keys)
        single = bool(members) and query_lengths[members[0]] == 1
        keys_of_all = longest * (len(members) + 1)
        too_wide = queries * keys_of_all > needed * MAX_WASTE_FACTOR + FREE_WASTED_PAIRS or keys_of_all > most
        if members and (too_wide or single != (queries == 1)):
            yield sorted(members)
            members, needed, longest = [], queries * keys, keys
        members.append(work)
    yield sorted(members)
