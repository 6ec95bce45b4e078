"""Attends with chunks of prompts to latent vectors in the expanded form: keys and values are built temporarily.

For a chunk this takes fewer operations than the absorbed form, unless few queries follow many keys
(`engine.model.layers.latent`). Chunks whose keys and values fit into memory together take one gathering of vectors, two
products and one launch. The host knows all sizes: it plans a step once for all layers, and never waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from engine.backends.reference.attention.kv_rows import rows_of
from engine.device import to_device
from engine.model.config import LatentAttention
from engine.model.layers.latent import expands
from engine.model.layers.linear import LatentProducts
from kernels.attention.attention_parts import FEW_SPLITS, MAX_SPLITS
from kernels.attention.expanded_attention import ExpandedKV, expanded_attention
from kernels.sizes import tile_count

MIN_EXPANDED_QUERIES = 64
"""Minimum queries of an expanded chunk: below, the extra operators cost more than the form saves."""
MAX_EXPANDED_BYTES = 256 << 20
"""Maximum bytes of keys and values that are expanded at once, unless a single head of one chunk has more."""

ChunkSizes = tuple[int, int]
"""Queries and keys of a sequence; the keys include the queries' own keys."""


@dataclass(frozen=True)
class ExpandedChunks:
    """Chunks that attend in one launch."""

    rows: slice  # of the step's chunks
    blocks: Tensor  # [n] int32, of one sequence after the other
    query_start: Tensor  # [chunks + 1] int32, from the first of the rows
    key_start: Tensor  # [chunks] int32, where a sequence begins in its blocks
    kv_lengths: Tensor  # [chunks] int32
    longest: int  # keys of one chunk


def runs_by_form(attention: LatentAttention, works: Sequence[ChunkSizes]) -> tuple[list[slice], list[slice]]:
    """Cuts the chunks of a step into runs for which one form is better: expanded ones, and absorbed ones."""
    forms = [queries >= MIN_EXPANDED_QUERIES and expands(attention, queries, keys) for queries, keys in works]
    runs: tuple[list[slice], list[slice]] = [], []
    begin = 0
    for form, same in groupby(forms):
        end = begin + len(list(same))
        runs[not form].append(slice(begin, end))
        begin = end
    return runs


def plan_expanded(
    attention: LatentAttention,
    works: Sequence[ChunkSizes],
    runs: Sequence[slice],
    block_tables: Tensor,
    block: int,
    dtype: torch.dtype,
) -> list[ExpandedChunks]:
    """Divides `runs` of a step's chunks into launches whose keys and values fit into memory.

    `block_tables` are those of all chunks, `[chunks, width]`.
    """
    blocks = [tile_count(keys, block) for _, keys in works]
    of_block = block * _key_bytes(attention, dtype) * attention.heads
    spans = [span for run in runs for span in _spans(blocks, run, MAX_EXPANDED_BYTES // of_block)]
    columns = []
    for own in spans:
        queries, keys = zip(*works[own], strict=True)
        starts = np.cumsum([0, *blocks[own][:-1]]) * block
        columns += [np.cumsum([0, *queries]), starts, np.array(keys)]
    on_device = to_device(np.concatenate(columns).astype(np.int32), block_tables.device)
    parts = iter(on_device.split([len(each) for each in columns]))
    rows = list(accumulate((queries for queries, _ in works), initial=0))
    return [
        ExpandedChunks(
            slice(rows[own.start], rows[own.stop]),
            torch.cat([block_tables[work, : blocks[work]] for work in range(own.start, own.stop)]),
            *(next(parts), next(parts), next(parts)),
            max(keys for _, keys in works[own]),
        )
        for own in spans
    ]


def attend_expanded(
    pool: Tensor,
    queries: Tensor,
    plan: Sequence[ExpandedChunks],
    attention: LatentAttention,
    products: LatentProducts,
    output: Tensor,
) -> None:
    """Writes `output` `[tokens, heads, value]`, contiguous, of rotated `queries` `[tokens, heads, nope + rope]`.

    `pool` is a layer, `[blocks, 1, block, latent + rope]` or `[blocks, 1, bytes]`.
    """
    stored = rows_of(pool, attention, queries.dtype)
    for chunks in plan:
        vectors = stored.take(chunks.blocks).view(-1, stored.width)
        latents, own, found = vectors[:, : attention.latent_rank], queries[chunks.rows], output[chunks.rows]
        heads_at_once = max(1, MAX_EXPANDED_BYTES // (vectors.shape[0] * _key_bytes(attention, queries.dtype)))
        for head in range(0, attention.heads, heads_at_once):
            heads = slice(head, min(head + heads_at_once, attention.heads))
            kv = ExpandedKV(*products.expanded(latents, heads), vectors, chunks.key_start, chunks.kv_lengths)
            has_all_heads = heads_at_once >= attention.heads
            attended = expanded_attention(
                own[:, heads],
                kv,
                chunks.query_start,
                scale=attention.scale,
                longest=chunks.longest,
                output=found if has_all_heads else None,
            )
            if not has_all_heads:
                found[:, heads] = attended


def warm_up_expanded(attention: LatentAttention, block: int, dtype: torch.dtype, device: torch.device) -> None:
    """Launches each kernel variant once, with one query of one block."""
    nope, rope, value = attention.nope_dim, attention.rope_dim, attention.value_dim
    widths = (nope + rope, nope, value)
    queries, keys, values = (
        torch.zeros((block, attention.heads, width), dtype=dtype, device=device) for width in widths
    )
    vectors = torch.zeros((block, attention.latent_rank + rope), dtype=dtype, device=device)
    starts = torch.arange(2, dtype=torch.int32, device=device)
    kv = ExpandedKV(keys, values, vectors, starts[:1], starts[1:])
    for splits in (1, FEW_SPLITS, MAX_SPLITS):
        expanded_attention(queries[:1], kv, starts, scale=attention.scale, longest=1, splits=splits)


def _key_bytes(attention: LatentAttention, dtype: torch.dtype) -> int:
    """Returns the bytes of one key and its value, of one head."""
    return dtype.itemsize * (attention.nope_dim + attention.value_dim)


def _spans(blocks: Sequence[int], run: slice, most: int) -> Iterator[slice]:
    """Cuts a run of sequences, given all numbers of blocks, into spans of up to `most` blocks, or of one sequence."""
    begin, taken = run.start, 0
    for work, count in enumerate(blocks[run], run.start):
        if work > begin and taken + count > most:
            yield slice(begin, work)
            begin, taken = work, 0
        taken += count
    yield slice(begin, run.stop)
