"""Attends with chunks of prompts to latent vectors in the expanded form: keys and values are built temporarily.

For a chunk this takes fewer operations than the absorbed form, unless few queries follow many keys
(`engine.model.latent`). Each chunk is a few PyTorch operators, whose fused attention allows keys and values of
different sizes. The host knows all sizes, so it never waits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.reference.kv_rows import rows_of
from engine.model.config import LatentAttention
from engine.model.latent import expands
from engine.model.linear import LatentProducts

MIN_EXPANDED_QUERIES = 64
"""Minimum queries of an expanded chunk: below, the extra operators cost more than the form saves."""
MAX_EXPANDED_BYTES = 256 << 20
"""Maximum bytes of keys and values that are expanded at once, unless a single head has more."""

ChunkSizes = tuple[int, int]
"""Queries and keys of a sequence; the keys include the queries' own keys."""


def all_expand(attention: LatentAttention, works: Sequence[ChunkSizes]) -> bool:
    """Returns whether the expanded form is better for all chunks of a step."""
    return all(queries >= MIN_EXPANDED_QUERIES and expands(attention, queries, keys) for queries, keys in works)


def attend_expanded(
    pool: Tensor,
    queries: Tensor,
    block_tables: Tensor,
    works: Sequence[ChunkSizes],
    attention: LatentAttention,
    products: LatentProducts,
    output: Tensor,
) -> None:
    """Writes `output` `[tokens, heads, value]` of rotated `queries` `[tokens, heads, nope + rope]`, work after work.

    `pool` is a layer, `[blocks, 1, block, latent + rope]` or `[blocks, 1, bytes]`, and `block_tables` are int32
    `[works, width]`.
    """
    stored, begin = rows_of(pool, attention, queries.dtype), 0
    for table, (count, keys) in zip(block_tables, works, strict=True):
        vectors = stored.take(table[: -(-keys // stored.block)]).view(-1, stored.width)[:keys]
        rows = slice(begin, begin + count)
        begin += count
        mask = None
        if keys > count:
            at = torch.arange(keys - count, keys, device=pool.device)
            mask = torch.arange(keys, device=pool.device) <= at[:, None]
        together = max(
            1, MAX_EXPANDED_BYTES // (keys * queries.element_size() * (queries.shape[2] + attention.value_dim))
        )
        for head in range(0, attention.heads, together):
            heads = slice(head, min(head + together, attention.heads))
            own, values = products.expanded(vectors, heads)  # [heads, keys, …]
            found = functional.scaled_dot_product_attention(
                queries[rows, heads].transpose(0, 1)[None],
                own[None],
                values[None],
                attn_mask=mask,
                is_causal=mask is None,
                scale=attention.scale,
            )
            output[rows, heads] = found[0].transpose(0, 1)
