"""Attends to keys and values of heads with PyTorch operators, for the layers of one KV group.

    softmax(scale q k^T + mask) v

In a rectangle the query heads that share a KV head lie beside each other: as rows of one matrix product when each
sequence has one query (five times faster than repeating the keys), as heads over the same keys otherwise.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.reference.attention.kv_rows import KVRows
from engine.backends.reference.attention.rectangles import Rectangle, rectangles
from engine.model.batch import Batch
from engine.model.config import HeadAttention

MAX_GATHERED_BYTES = 256 << 20
"""Maximum bytes of keys and values that one rectangle copies out of the pool, unless a single work has more. The
pool's size is no bound: sequences may share blocks, and each gathers its own copy."""


class HeadAttentionStep:
    """Stores and attends in one step, in layers of one KV group, whose vectors are `[kv_heads, 2]` for each token."""

    def __init__(self, layer: KVRows, batch: Batch, group: int, window: int) -> None:
        self._tables = batch.groups[group]
        self._kv_heads, self._block, self._dim = layer.vectors // 2, layer.block, layer.width
        self._dtype = layer.dtype
        self._products_win = self._tables.slots.device.type == "cpu" and layer.dtype == torch.bfloat16
        self._store_rows = self._slot_rows(self._tables.slots)
        most = MAX_GATHERED_BYTES // (2 * self._kv_heads * self._dim * layer.dtype.itemsize)
        self.rectangles = list(rectangles(batch, group, self._block, window, most, layer.dtype))
        self._gathered = [self._gather_rows(each.tables) for each in self.rectangles]
        self._spread = [self._per_head(each) for each in self.rectangles]

    def store(self, pool: KVRows, keys_values: Tensor) -> None:
        """Clears new blocks first.

        They may contain NaN of an earlier sequence, which would survive the mask.
        """
        if self._tables.fresh_blocks.numel():
            pool.clear(self._tables.fresh_blocks)
        pool.put(self._store_rows, keys_values.reshape(-1, self._dim))

    def attend(self, pool: KVRows, queries: Tensor, attention: HeadAttention, sinks: Tensor | None) -> Tensor:
        if len(self.rectangles) == 1 and self.rectangles[0].rows is None:
            return self._one(0, pool, queries.unsqueeze(1), attention, sinks).squeeze(1)
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for number, rectangle in enumerate(self.rectangles):
            rectangle.put(self._one(number, pool, rectangle.taken(queries), attention, sinks), output)
        return output

    def _one(
        self, number: int, pool: KVRows, queries: Tensor, attention: HeadAttention, sinks: Tensor | None
    ) -> Tensor:
        """Attends from `queries` `[works, queries, heads, dim]` of a rectangle; returns the same shape."""
        works, count, heads, dim = queries.shape
        shared = heads // self._kv_heads
        gathered = pool.take(self._gathered[number]).view(2, works, self._kv_heads, -1, dim)
        keys, values = gathered[0], gathered[1]  # [works, kv_heads, keys, dim]
        mask, scale = self.rectangles[number].mask, attention.scale
        if mask is None:
            keys, values = keys[:, :, :count], values[:, :, :count]
        if attention.softcap or sinks is not None:
            split = queries.view(works, count, self._kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
            written = self._causal(count, queries.device) if mask is None else mask
            found = _written_out(split, keys, values, written, attention, sinks)
            return found.permute(0, 3, 1, 2, 4).flatten(2, 3)
        if count == 1:
            assert mask is not None
            split = queries.view(works, self._kv_heads, shared, dim)
            if works > 1 and self._products_win:
                return _by_products(split, keys, values, mask, scale).view(works, 1, heads, dim)
            found = functional.scaled_dot_product_attention(split, keys, values, attn_mask=mask, scale=scale)
            return found.reshape(works, 1, heads, dim)
        split = queries.view(works, count, self._kv_heads, shared, dim).permute(0, 2, 3, 1, 4).flatten(0, 1)
        keys, values = (side.flatten(0, 1).unsqueeze(1) for side in (keys, values))  # [works x kv_heads, 1, keys, dim]
        keys, values = (side.expand(-1, shared, -1, -1) for side in (keys, values))
        found = functional.scaled_dot_product_attention(
            split, keys, values, attn_mask=self._spread[number], is_causal=mask is None, scale=scale
        )
        return found.view(works, self._kv_heads, shared, count, dim).permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _slot_rows(self, slots: Tensor) -> Tensor:
        per_head = 2 * self._block
        first = slots // self._block * (self._kv_heads * per_head) + slots % self._block
        heads = torch.arange(self._kv_heads, device=slots.device) * per_head
        sides = torch.arange(2, device=slots.device) * self._block
        return (first[:, None, None] + sides[:, None] + heads).flatten()

    def _gather_rows(self, tables: Tensor) -> Tensor:
        heads = torch.arange(self._kv_heads, device=tables.device) * 2
        sides = torch.arange(2, device=tables.device)
        first = tables * (2 * self._kv_heads)
        return (sides[:, None, None, None] + first[:, None, :] + heads[:, None]).flatten()

    def _per_head(self, rectangle: Rectangle) -> Tensor | None:
        """Makes `[works x kv_heads, 1, queries, keys]`, for queries whose KV heads are part of the batch axis."""
        mask = rectangle.mask
        if mask is None or rectangle.queries == 1 or rectangle.works == 1:
            return mask
        return mask.expand(-1, self._kv_heads, -1, -1).flatten(0, 1).unsqueeze(1)

    def _causal(self, count: int, device: torch.device) -> Tensor:
        return torch.full((count, count), -torch.inf, dtype=self._dtype, device=device).triu(1)[None, None]


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, attention: HeadAttention, sinks: Tensor | None
) -> Tensor:
    """Attends step by step, in fp32, where the fused operator lacks something: soft caps, sinks.

    `queries` `[works, kv_heads, shared, queries, dim]`, `keys` and `values` `[works, kv_heads, keys, dim]`, `mask`
    `[works or 1, 1, queries, keys]`, `sinks` `[heads]`. Returns the queries' shape.
    """
    keys, values = keys.unsqueeze(2).float(), values.unsqueeze(2).float()
    scores = (queries.float() @ keys.transpose(-1, -2)) * attention.scale
    if attention.softcap:
        scores = (scores / attention.softcap).tanh_().mul_(attention.softcap)
    scores = scores + mask.unsqueeze(1)
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
