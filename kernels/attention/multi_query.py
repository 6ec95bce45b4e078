"""Multi-query decode: query rows of each sequence, and the tree mask between its draft tokens.

A decode step that verifies draft tokens has several queries of each sequence: its last token and its draft tokens. They
read the sequence's keys and values once, as rows of one tile. Draft tokens of a chain see all earlier ones; in a tree
each draft token sees the text and its own ancestors, given by a bit mask over the places after the text.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sizes import power_of_two, tile_count

QUERIES_PER_TILE = 8
"""Queries of a sequence in one tile, up to `MAX_TILE_ROWS` rows; more queries take several tiles."""
MIN_TILE_ROWS, MAX_TILE_ROWS = 16, 64
WIDE_TILE, WIDE_WARPS = 64 * 256, 8
"""Accumulators of a tile, and the warps whose registers hold them."""


@dataclass(frozen=True)
class MultiQuery:
    """Query rows: query i of sequence w is row starts[w] + i; the last query's key is the newest."""

    starts: Tensor  # [works] int32
    counts: Tensor  # [works] int32, 0 for padding
    max_queries: int  # a bound of `counts`
    tree_mask: Tensor | None = None
    """Int64 `[3, rows]` for a tree of draft tokens: each row's position; the place of the last key up to which it sees
    all keys (`seen_until`); and `tree_bits`, of which bit j is set if it sees the j-th key after that. None: a row sees
    all keys up to its own."""

    def first(self, works: int) -> "MultiQuery":
        """Returns the rows of the first works only; all rows before the next work's must be theirs."""
        end = int(self.starts[works]) if works < len(self.starts) else None
        tree_mask = None if self.tree_mask is None else self.tree_mask[:, :end]
        return MultiQuery(self.starts[:works], self.counts[:works], self.max_queries, tree_mask)

    def tiles(self, shared: int) -> tuple[int, int]:
        """Returns the rows of a tile for `shared` heads of each query, and the maximum tiles of a sequence."""
        rows = min(
            max(MIN_TILE_ROWS, power_of_two(QUERIES_PER_TILE * shared)), max(MAX_TILE_ROWS, power_of_two(shared))
        )
        return rows, tile_count(self.max_queries, rows // shared)


@triton.jit
def visible_in_tree(
    positions: tl.tensor,  # [TILE] places of keys
    seen_until: tl.tensor,  # [ROWS] int64
    tree_bits: tl.tensor,  # [ROWS] int64
) -> tl.tensor:
    """Returns which keys rows see under the tree mask: `[ROWS, TILE]`."""
    offset = positions[None, :] - seen_until[:, None] - 1
    visible = (tree_bits[:, None] >> tl.minimum(tl.maximum(offset, 0), 62)) & 1
    return (offset < 0) | ((offset < 63) & (visible == 1))


def hidden_in_tree(keys: Tensor, tree_mask: Tensor) -> Tensor:
    """Returns with torch operators which `keys` `[keys]` are hidden from rows by their `tree_mask`, `[rows, keys]`."""
    offset = keys - tree_mask[1, :, None] - 1
    visible = (tree_mask[2, :, None] >> offset.clamp(0, 62)) & 1
    return (offset >= 0) & ((offset >= 63) | (visible == 0))


def starts_of(multi_query: MultiQuery | None, works: int, queries: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the row ranges of works for prefill's reference, and their tree_mask."""
    if multi_query is None:
        return torch.arange(works + 1, device=queries.device, dtype=torch.int32), None
    ends = multi_query.starts + multi_query.counts
    assert torch.equal(ends[:-1], multi_query.starts[1:]), "rows with gaps"
    return torch.cat((multi_query.starts[:1], ends)), multi_query.tree_mask
