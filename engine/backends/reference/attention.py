"""Computes paged attention by PyTorch's operators: it gathers blocks, then calls `scaled_dot_product_attention`.

    softmax(q k^T / sqrt(head_dim) + mask) v

Works of similar shape form a group that is padded to one rectangle, so that a decode step of any batch is a few
operator calls per layer. In a group the query heads that share a KV head lie beside each other: as rows of one matrix
product when each sequence has one query (five times faster than repeating the keys), as heads over the same keys
otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from core.kvspec import blocks_for
from engine.model.batch import Batch

WASTE = 1.25
"""A group may compute this much more than its works need …"""
FREE = 8192
"""… or this many query-key pairs more: about what another group's operator calls cost."""
GATHERED = 256 << 20
"""Bytes of keys and values that one group copies out of the pool, unless a single work has more. The pool is no bound:
what many sequences share is there once, but each of them gathers it."""


@dataclass(frozen=True)
class Group:
    """Holds works that attend together."""

    rows: Tensor | None  # [works, queries] rows of the batch, or None: the whole batch in order, one query each
    kept: Tensor | None  # [tokens] which of those are not padding; None: all
    blocks: Tensor  # [2 x works x kv_heads x blocks] where keys, then values lie in the pool
    masks: dict[int, Tensor]  # window -> [works, 1 or kv_heads, queries, keys], 0 or -inf; none: plainly causal
    works: int
    queries: int


class ReferenceAttention:
    """See `engine.model.attention.Attention`. A pool's layers are `[blocks, kv_heads, 2, block, head_dim]`."""

    def __init__(self, layers: list[Tensor], windows: tuple[int, ...]) -> None:
        self._layers = layers
        self._windows = windows

    def begin(self, batch: Batch) -> "ReferenceAttentionStep":
        return ReferenceAttentionStep(self._layers, self._windows, batch)


class ReferenceAttentionStep:
    """See `engine.model.attention.AttentionStep`."""

    def __init__(self, layers: list[Tensor], windows: tuple[int, ...], batch: Batch) -> None:
        self._layers = layers
        self._windows = windows
        self._batch = batch
        _, self._kv_heads, _, self._block, self._dim = layers[0].shape
        self._products_win = layers[0].device.type == "cpu" and layers[0].dtype == torch.bfloat16
        self._store_rows = self._slot_rows(batch.slots)
        token_bytes = 2 * self._kv_heads * self._dim * layers[0].element_size()
        most = GATHERED // token_bytes
        self._groups = [self._group(members) for members in _similar(batch, self._block, most)]

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Clears a block that a sequence enters first.

        Masked scores must not meet what its last owner left, which may be NaN, and NaN survives a mask.
        """
        pool = self._layers[layer]
        if self._batch.fresh_blocks.numel():
            pool.index_fill_(0, self._batch.fresh_blocks, 0)
        pool.view(-1, self._dim).index_copy_(0, self._store_rows, keys_values.reshape(-1, self._dim))

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        pool = self._layers[layer].view(-1, self._block * self._dim)  # [blocks x kv_heads x 2, block x dim]
        window = self._windows[layer]
        if len(self._groups) == 1 and self._groups[0].rows is None:
            return self._one(self._groups[0], pool, queries.unsqueeze(1), window).squeeze(1)
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in self._groups:
            assert group.rows is not None
            found = self._one(group, pool, queries[group.rows], window).flatten(0, 1)
            rows = group.rows.flatten()
            if group.kept is None:
                output[rows] = found
            else:
                output[rows[group.kept]] = found[group.kept]
        return output

    def _one(self, group: Group, pool: Tensor, queries: Tensor, window: int) -> Tensor:
        """Attends from `queries` `[works, queries, heads, dim]`; returns the same shape."""
        works, count, heads, dim = queries.shape
        shared = heads // self._kv_heads
        gathered = pool.index_select(0, group.blocks).view(2, works, self._kv_heads, -1, dim)
        keys, values = gathered[0], gathered[1]  # [works, kv_heads, keys, dim]
        mask = group.masks.get(window)
        if count == 1:
            split = queries.view(works, self._kv_heads, shared, dim)
            if works > 1 and self._products_win:
                return _by_products(split, keys, values, group.masks[window]).view(works, 1, heads, dim)
            found = functional.scaled_dot_product_attention(split, keys, values, attn_mask=mask)
            return found.reshape(works, 1, heads, dim)
        split = queries.view(works, count, self._kv_heads, shared, dim).permute(0, 2, 3, 1, 4).flatten(0, 1)
        keys, values = (side.flatten(0, 1).unsqueeze(1) for side in (keys, values))  # [works x kv_heads, 1, keys, dim]
        if mask is None:
            keys, values = keys[:, :, :count], values[:, :, :count]
        keys, values = (side.expand(-1, shared, -1, -1) for side in (keys, values))
        found = functional.scaled_dot_product_attention(split, keys, values, attn_mask=mask, is_causal=mask is None)
        return found.view(works, self._kv_heads, shared, count, dim).permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _slot_rows(self, slots: Tensor) -> Tensor:
        """Finds where the pool, as rows of one token's head each, takes keys and values: `[tokens x 2 x kv_heads]`."""
        per_head = 2 * self._block
        first = slots // self._block * (self._kv_heads * per_head) + slots % self._block
        heads = torch.arange(self._kv_heads, device=slots.device) * per_head
        sides = torch.arange(2, device=slots.device) * self._block
        return (first[:, None, None] + sides[:, None] + heads).flatten()

    def _group(self, members: list[int]) -> Group:
        batch, device = self._batch, self._batch.slots.device
        lengths = batch.query_lengths[members]
        count = int(lengths.max())
        blocks = blocks_for(int(batch.kv_lengths[members].max()), self._block)
        works = torch.tensor(members, device=device)
        tables = batch.block_tables[works, :blocks]  # [works, blocks]
        steps = torch.minimum(torch.arange(count, device=device), torch.from_numpy(lengths).to(device)[:, None] - 1)
        rows = batch.query_start[works][:, None] + steps  # padding repeats a work's last query
        ragged = bool((lengths != count).any())
        kept = torch.from_numpy(np.flatnonzero(np.arange(count) < lengths[:, None])).to(device) if ragged else None
        whole = count == 1 and members == list(range(len(batch.kv_lengths)))
        plain = count > 1 and bool((batch.kv_lengths[members] == lengths).all())
        masks: dict[int, Tensor] = {}
        for window in set(self._windows):
            if not (plain and (window == 0 or window >= count)):
                masks[window] = self._mask(batch.positions[rows], blocks * self._block, window)
        return Group(None if whole else rows, kept, self._gather_rows(tables), masks, len(members), count)

    def _gather_rows(self, tables: Tensor) -> Tensor:
        """Finds where keys, then values of each work's heads lie in the pool, as rows of one block's head and side."""
        heads = torch.arange(self._kv_heads, device=tables.device) * 2
        sides = torch.arange(2, device=tables.device)
        first = tables * (2 * self._kv_heads)
        return (sides[:, None, None, None] + first[:, None, :] + heads[:, None]).flatten()

    def _mask(self, positions: Tensor, keys: int, window: int) -> Tensor:
        """Makes what is added to scores, for query `positions` `[works, queries]`.

        Keys behind a sequence's end lie in its future.
        """
        key = torch.arange(keys, device=positions.device)
        query = positions[:, None, :, None]
        hidden = key > query if window == 0 else (key > query) | (key <= query - window)
        mask = torch.zeros(hidden.shape, dtype=self._layers[0].dtype, device=hidden.device)
        mask.masked_fill_(hidden, -torch.inf)  # [works, 1, queries, keys]
        return mask if positions.shape[1] == 1 else self._per_head(mask)

    def _per_head(self, mask: Tensor) -> Tensor:
        """Makes `[works x kv_heads, 1, queries, keys]`, for queries whose KV heads are part of the batch axis."""
        if mask.shape[0] == 1:
            return mask
        return mask.expand(-1, self._kv_heads, -1, -1).flatten(0, 1).unsqueeze(1)


def _by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attends by two batched products: for decodes in bf16 on a CPU, they take a third of the fused operator's time.

    Its tiles are made for many queries. Scores are rounded to bf16 before the softmax, as transformers' attention does.
    `queries` `[works, kv_heads, shared, dim]`, `keys` and `values` `[works, kv_heads, keys, dim]`.
    """
    scores = torch.bmm(queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).view(*queries.shape[:3], -1)
    weights = torch.softmax(torch.add(mask, scores, alpha=queries.shape[-1] ** -0.5), -1)
    return torch.bmm(weights.flatten(0, 1), values.flatten(0, 1)).view(queries.shape)


def _similar(batch: Batch, block: int, most: int) -> Iterator[list[int]]:
    """Groups works that are neighbours in (queries, keys), as large as `WASTE` and `FREE` allow.

    All keys of a group, padding included, are at most `most`, unless it is a single work.
    """
    shapes = [
        (int(q), blocks_for(int(k), block) * block, w)
        for w, (q, k) in enumerate(zip(batch.query_lengths, batch.kv_lengths, strict=True))
    ]
    members: list[int] = []
    needed = longest = 0
    for queries, keys, work in sorted(shapes):
        needed += queries * keys
        longest = max(longest, keys)
        single = bool(members) and batch.query_lengths[members[0]] == 1
        keys_of_all = longest * (len(members) + 1)
        too_wide = queries * keys_of_all > needed * WASTE + FREE or keys_of_all > most
        if members and (too_wide or single != (queries == 1)):
            yield sorted(members)
            members, needed, longest = [], queries * keys, keys
        members.append(work)
    yield sorted(members)
