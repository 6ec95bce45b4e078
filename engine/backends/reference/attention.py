"""Computes paged attention by PyTorch's operators: it gathers blocks, then calls `scaled_dot_product_attention`.

    softmax(scale q k^T + mask) v

Works of similar shape form a group that is padded to one rectangle, so that a decode step of any batch is a few
operator calls per layer. In a group the query heads that share a KV head lie beside each other: as rows of one matrix
product when each sequence has one query (five times faster than repeating the keys), as heads over the same keys
otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from core.kvspec import blocks_for
from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.config import HeadAttention

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

    def __init__(self, layers: list[Tensor], attentions: Sequence[HeadAttention]) -> None:
        self._layers = layers
        self._attentions = attentions

    def begin(self, batch: Batch) -> "ReferenceAttentionStep":
        return ReferenceAttentionStep(self._layers, self._attentions, batch)


class ReferenceAttentionStep(AttentionStep):
    """See `engine.model.attention.AttentionStep`."""

    def __init__(self, layers: list[Tensor], attentions: Sequence[HeadAttention], batch: Batch) -> None:
        self._layers = layers
        self._attentions = attentions
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

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        pool = self._layers[layer].view(-1, self._block * self._dim)  # [blocks x kv_heads x 2, block x dim]
        attention = self._attentions[layer]
        if len(self._groups) == 1 and self._groups[0].rows is None:
            return self._one(self._groups[0], pool, queries.unsqueeze(1), attention, sinks).squeeze(1)
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in self._groups:
            assert group.rows is not None
            found = self._one(group, pool, queries[group.rows], attention, sinks).flatten(0, 1)
            rows = group.rows.flatten()
            if group.kept is None:
                output[rows] = found
            else:
                output[rows[group.kept]] = found[group.kept]
        return output

    def _one(
        self, group: Group, pool: Tensor, queries: Tensor, attention: HeadAttention, sinks: Tensor | None
    ) -> Tensor:
        """Attends from `queries` `[works, queries, heads, dim]`; returns the same shape."""
        works, count, heads, dim = queries.shape
        shared = heads // self._kv_heads
        gathered = pool.index_select(0, group.blocks).view(2, works, self._kv_heads, -1, dim)
        keys, values = gathered[0], gathered[1]  # [works, kv_heads, keys, dim]
        mask, scale = group.masks.get(attention.window), attention.scale
        if attention.softcap or sinks is not None:
            if mask is None:
                keys, values = keys[:, :, :count], values[:, :, :count]
            split = queries.view(works, count, self._kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
            found = _written_out(split, keys, values, self._by_work(mask, works, count), attention, sinks)
            return found.permute(0, 3, 1, 2, 4).flatten(2, 3)
        if count == 1:
            split = queries.view(works, self._kv_heads, shared, dim)
            if works > 1 and self._products_win:
                assert mask is not None
                return _by_products(split, keys, values, mask, scale).view(works, 1, heads, dim)
            found = functional.scaled_dot_product_attention(split, keys, values, attn_mask=mask, scale=scale)
            return found.reshape(works, 1, heads, dim)
        split = queries.view(works, count, self._kv_heads, shared, dim).permute(0, 2, 3, 1, 4).flatten(0, 1)
        keys, values = (side.flatten(0, 1).unsqueeze(1) for side in (keys, values))  # [works x kv_heads, 1, keys, dim]
        if mask is None:
            keys, values = keys[:, :, :count], values[:, :, :count]
        keys, values = (side.expand(-1, shared, -1, -1) for side in (keys, values))
        found = functional.scaled_dot_product_attention(
            split, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
        )
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
        for window in {attention.window for attention in self._attentions}:
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

    def _by_work(self, mask: Tensor | None, works: int, count: int) -> Tensor:
        """Returns a group's mask as `[works, 1, 1, queries, keys]`; without one it is the plain causal one."""
        if mask is None:
            layer = self._layers[0]
            whole = torch.full((count, count), -torch.inf, dtype=layer.dtype, device=layer.device).triu(1)
            return whole[None, None, None]
        if mask.shape[0] == works:
            return mask.unsqueeze(1)
        return mask.view(works, self._kv_heads, 1, *mask.shape[2:])


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, attention: HeadAttention, sinks: Tensor | None
) -> Tensor:
    """Attends step by step, in fp32, where the fused operator lacks something: soft caps, sinks.

    `queries` `[works, kv_heads, shared, queries, dim]`, `keys` and `values` `[works, kv_heads, keys, dim]`, `mask`
    `[works, 1 or kv_heads, 1, queries, keys]`, `sinks` `[heads]`. Returns the queries' shape.
    """
    keys, values = keys.unsqueeze(2).float(), values.unsqueeze(2).float()
    scores = (queries.float() @ keys.transpose(-1, -2)) * attention.scale
    if attention.softcap:
        scores = (scores / attention.softcap).tanh_().mul_(attention.softcap)
    scores = scores + mask
    if sinks is not None:
        works, kv_heads, shared, count, _ = queries.shape
        more = sinks.float().view(1, kv_heads, shared, 1, 1).expand(works, -1, -1, count, 1)
        scores = torch.cat((scores, more), -1)
    weights = torch.softmax(scores, -1)[..., : keys.shape[-2]]
    return (weights @ values).to(queries.dtype)


def _by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attends by two batched products: for decodes in bf16 on a CPU, they take a third of the fused operator's time.

    Its tiles are made for many queries. Scores are rounded to bf16 before the softmax, as transformers' attention does.
    `queries` `[works, kv_heads, shared, dim]`, `keys` and `values` `[works, kv_heads, keys, dim]`.
    """
    scores = torch.bmm(queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).view(*queries.shape[:3], -1)
    weights = torch.softmax(torch.add(mask, scores, alpha=scale), -1)
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
