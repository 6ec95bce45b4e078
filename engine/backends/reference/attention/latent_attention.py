"""Attends to latent vectors with PyTorch operators, in both forms, for the layers of one KV group.

A rectangle of works attends in the form that takes fewer operations for its sizes
(`engine.model.layers.latent.expands`). Expanded keys and values are built for some heads at a time: for all heads they
may be a hundred times the pool's data.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.reference.attention.kv_rows import KVRows
from engine.backends.reference.attention.rectangles import Rectangle, rectangles
from engine.model.batch import Batch
from engine.model.config import LatentAttention
from engine.model.layers.latent import expands
from engine.model.layers.linear import LatentProducts

MAX_GATHERED_BYTES = 256 << 20
"""Bytes of vectors that one rectangle copies out of the pool, unless a single work has more."""
MAX_EXPANDED_BYTES = 256 << 20
"""Maximum bytes of keys and values that are expanded at once, unless a single head has more."""


class LatentAttentionStep:
    """Stores and attends in one step, in layers of one KV group, with a vector of latent + rope for each token."""

    def __init__(self, layer: KVRows, batch: Batch, group: int) -> None:
        self._tables = batch.groups[group]
        self._width = layer.width
        most = MAX_GATHERED_BYTES // (self._width * layer.dtype.itemsize)
        self.rectangles = list(rectangles(batch, group, layer.block, 0, most, layer.dtype))

    def store(self, pool: KVRows, vectors: Tensor) -> None:
        if self._tables.fresh_blocks.numel():
            pool.clear(self._tables.fresh_blocks)
        pool.put(self._tables.slots, vectors.squeeze(1))

    def attend(self, pool: KVRows, queries: Tensor, attention: LatentAttention) -> Tensor:
        """See `engine.model.attention.AttentionStep.attend`: all works in the absorbed form."""
        output = queries.new_empty((*queries.shape[:2], attention.latent_rank))
        for rectangle in self.rectangles:
            vectors = self._gathered(pool, rectangle)
            rectangle.put(_absorbed(rectangle, rectangle.taken(queries), vectors, attention), output)
        return output

    def attend_latent(
        self, pool: KVRows, queries: Tensor, attention: LatentAttention, products: LatentProducts
    ) -> Tensor:
        output = queries.new_empty((*queries.shape[:2], attention.value_dim))
        for rectangle in self.rectangles:
            vectors, own = self._gathered(pool, rectangle), rectangle.taken(queries)
            if expands(attention, own.shape[1], vectors.shape[1]):
                found = _expanded(rectangle, own, vectors, attention, products)
            else:
                absorbed = products.absorbed(own.flatten(0, 1)).unflatten(0, own.shape[:2])
                found = _absorbed(rectangle, absorbed, vectors, attention)
                found = products.values(found.flatten(0, 1)).unflatten(0, own.shape[:2])
            rectangle.put(found, output)
        return output

    def _gathered(self, pool: KVRows, rectangle: Rectangle) -> Tensor:
        vectors = pool.take(rectangle.tables.flatten())
        vectors = vectors.view(rectangle.works, -1, self._width)
        return vectors[:, : rectangle.queries] if rectangle.mask is None else vectors


def _absorbed(rectangle: Rectangle, queries: Tensor, vectors: Tensor, attention: LatentAttention) -> Tensor:
    """Returns `[works, queries, heads, latent]` for queries `[works, queries, heads, latent + rope]`."""
    count, keys = queries.shape[1], vectors.unsqueeze(1)
    if count == 1:  # heads are rows of one product
        return _attended(rectangle, queries, keys, keys[..., : attention.latent_rank], attention)
    keys = keys.expand(-1, attention.heads, -1, -1)
    values = keys[..., : attention.latent_rank]
    return _attended(rectangle, queries.transpose(1, 2), keys, values, attention).transpose(1, 2)


def _expanded(
    rectangle: Rectangle, queries: Tensor, vectors: Tensor, attention: LatentAttention, products: LatentProducts
) -> Tensor:
    """Returns `[works, queries, heads, value]` for queries `[works, queries, heads, nope + rope]`."""
    works, keys, _ = vectors.shape
    of_head = vectors.element_size() * works * keys * (queries.shape[3] + attention.value_dim)
    together = max(1, MAX_EXPANDED_BYTES // of_head)
    latents, shared = vectors.flatten(0, 1).split((attention.latent_rank, attention.rope_dim), 1)
    found = []
    for head in range(0, attention.heads, together):
        heads = slice(head, min(head + together, attention.heads))
        own, values = products.expanded(latents, heads)
        built = torch.cat((own, shared[:, None].expand(-1, own.shape[1], -1)), -1), values
        own_keys, own_values = (each.unflatten(0, (works, keys)).transpose(1, 2) for each in built)
        found.append(_attended(rectangle, queries[:, :, heads].transpose(1, 2), own_keys, own_values, attention))
    return torch.cat(found, 1).transpose(1, 2)


def _attended(
    rectangle: Rectangle, queries: Tensor, keys: Tensor, values: Tensor, attention: LatentAttention
) -> Tensor:
    """Attends by the fused operator: all are `[works, heads, tokens, width]`."""
    mask = rectangle.mask
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=attention.scale
    )
