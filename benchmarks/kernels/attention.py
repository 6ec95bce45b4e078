"""Rows of attention: decode reads all KV and is bound by memory, prefill by multiplying."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernels.attention_peers import decode_peers, prefill_peers
from benchmarks.kernels.case import Case, Inputs, close
from benchmarks.kernels.kv import BLOCK_TOKENS, Heads, KVFormat, PartHeads, Vectors, paged, split_kv, vector_bytes
from kernels.attention import (
    expanded_attention,
    latent_decode_attention,
    latent_prefill_attention,
    paged_decode_attention,
    prefill_attention,
)
from kernels.attention.attention_tiles import PLAIN_SCORES, ScoreParams
from kernels.attention.latent_tiles import programs_of
from kernels.attention.multi_query import MultiQuery
from kernels.tuning import Config

CHECKED_DECODES, CHECKED_LATENT_DECODES = 4, 2
"""Sequences compared with the fp64 reference, which would not fit into memory with a large batch."""
CHECKED_QUERIES, CHECKED_LATENT_QUERIES = 64, 16


def decode(
    inputs: Inputs,
    batch: int,
    context: int,
    heads: Heads,
    window: int = 0,
    block: int = BLOCK_TOKENS,
    softcap: float = 0.0,
    sinks: bool = False,
    kv: KVFormat = "plain",
    queries: int = 1,
    branching: bool = False,
    flex: bool = False,
) -> Case:
    """Attends with one query of each sequence, or with several draft tokens, which may branch.

    `flex`: FlexAttention is a peer, which compiles for seconds.
    """
    stored = paged(inputs, batch, context, block, (heads.keys, 2), kv, heads.dim)
    rows = inputs.normal(batch * queries, heads.queries, heads.dim)
    scoring = ScoreParams(window=window, softcap=softcap)
    sink_scores = inputs.normal(heads.queries, dtype=torch.float32) if sinks else None
    few = draft_rows(inputs.device, batch, context, queries, branching) if queries > 1 else None
    pieces = split_kv(inputs, batch, context, heads.keys, window)

    def run(config: Config | None) -> Tensor:
        return paged_decode_attention.paged_decode_attention(
            rows, *stored, multi_query=few, split=pieces, scoring=scoring, sinks=sink_scores, config=config
        )

    def check(config: Config | None) -> None:
        some = min(CHECKED_DECODES, batch)
        expected = paged_decode_attention.reference(
            rows[: some * queries].double(),
            *stored.exact(some, heads.dim),
            multi_query=few and few.first(some),
            scoring=scoring,
            sinks=sink_scores,
        )
        close(run(config)[: len(expected)], expected)

    comparable = scoring == PLAIN_SCORES and queries == 1 and kv == "plain" and not sinks and inputs.real
    seen = min(context, window or context)
    stored_bytes = batch * seen * heads.keys * vector_bytes(kv, inputs.dtype, heads.dim)
    return Case(
        run,
        check,
        bytes=2 * (stored_bytes + rows.numel() * inputs.dtype.itemsize),
        operations=4 * rows.numel() * seen,
        peers=decode_peers(rows, *stored.contiguous(), flex) if comparable else {},
    )


def draft_rows(device: torch.device, batch: int, context: int, queries: int, branching: bool) -> MultiQuery:
    first = context - queries
    starts = torch.arange(batch, dtype=torch.int32) * queries
    masks = None
    if branching:
        rows = [(first, first, 0)]
        for draft in range(queries - 1):
            chain = sum(1 << other for other in range(draft % 2, draft + 1, 2))
            rows.append((first + 1 + draft // 2, first, chain))
        masks = torch.tensor(rows * batch).T.contiguous().to(device)
    return MultiQuery(starts.to(device), torch.full_like(starts, queries).to(device), queries, masks)


def prefill(
    inputs: Inputs,
    tokens: int,
    context: int,
    heads: Heads,
    sequences: int = 1,
    window: int = 0,
    block: int = BLOCK_TOKENS,
    softcap: float = 0.0,
    sinks: bool = False,
    kv: KVFormat = "plain",
    flex: bool = False,
) -> Case:
    stored = paged(inputs, sequences, context, block, (heads.keys, 2), kv, heads.dim)
    rows = sequences * tokens
    # A slice of the fused projection: a row's queries stand before its keys and values.
    queries = inputs.normal(rows, heads.queries + 2 * heads.keys, heads.dim)[:, : heads.queries]
    starts = torch.arange(0, rows + 1, tokens, dtype=torch.int32, device=inputs.device)
    scoring = ScoreParams(window=window, softcap=softcap)
    sink_scores = inputs.normal(heads.queries, dtype=torch.float32) if sinks else None

    def run(config: Config | None) -> Tensor:
        return prefill_attention.prefill_attention(
            queries,
            stored.pool,
            stored.tables,
            starts,
            stored.lengths,
            longest=tokens,
            scoring=scoring,
            sinks=sink_scores,
            config=config,
        )

    def check(config: Config | None) -> None:
        found, few = run(config), min(CHECKED_QUERIES, tokens)
        pool, tables, lengths = stored.exact(1, heads.dim)
        for begin in {0, (tokens - few) // 2, tokens - few}:
            shorter = lengths - (tokens - begin - few)  # queries in the middle are the last of a shorter prompt
            own, counted = slice(begin, begin + few), starts[:2].clamp(max=few)
            doubled = queries[own].double()
            expected = prefill_attention.reference(
                doubled, pool, tables, counted, shorter, scoring=scoring, sinks=sink_scores
            )
            close(found[own], expected)

    comparable = sequences == 1 and scoring == PLAIN_SCORES and kv == "plain" and not sinks and inputs.real
    pairs = sum(min(seen, window or seen) for seen in range(context - tokens + 1, context + 1))
    vectors = 2 * sequences * context * heads.keys
    return Case(
        run,
        check,
        bytes=2 * queries.numel() * inputs.dtype.itemsize + vectors * vector_bytes(kv, inputs.dtype, heads.dim),
        operations=4 * sequences * heads.queries * heads.dim * pairs,
        peers=prefill_peers(queries, *stored.contiguous(), flex) if comparable else {},
    )


def latent_decode(
    inputs: Inputs, batch: int, context: int, vectors: Vectors, block: int = BLOCK_TOKENS, kv: KVFormat = "plain"
) -> Case:
    stored = paged(inputs, batch, context, block, (1,), kv, *vectors.parts)
    queries = inputs.normal(batch, vectors.heads, sum(vectors.parts))
    pieces = split_kv(inputs, batch, context, programs_of(vectors.heads))

    def run(config: Config | None) -> Tensor:
        return latent_decode_attention.latent_decode_attention(
            queries, *stored, latent=vectors.latent, scale=vectors.scale, split=pieces, config=config
        )

    def check(config: Config | None) -> None:
        own, kept = queries[:CHECKED_LATENT_DECODES].double(), stored.exact(CHECKED_LATENT_DECODES, *vectors.parts)
        expected = latent_decode_attention.reference(own, *kept, latent=vectors.latent, scale=vectors.scale)
        close(run(config)[: len(expected)], expected)

    seen = batch * context
    return latent_case(run, check, vectors, kv, seen, seen, queries)


def latent_prefill(
    inputs: Inputs, tokens: int, context: int, vectors: Vectors, block: int = BLOCK_TOKENS, kv: KVFormat = "plain"
) -> Case:
    stored = paged(inputs, 1, context, block, (1,), kv, *vectors.parts)
    queries = inputs.normal(tokens, vectors.heads, sum(vectors.parts))
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=inputs.device)

    def run(config: Config | None) -> Tensor:
        pool, tables, lengths = stored
        return latent_prefill_attention.latent_prefill_attention(
            queries, pool, tables, starts, lengths, latent=vectors.latent, scale=vectors.scale, config=config
        )

    def check(config: Config | None) -> None:
        own = queries[-CHECKED_LATENT_QUERIES:].double()
        pool, tables, lengths = stored.exact(1, *vectors.parts)
        expected = latent_prefill_attention.reference(
            own, pool, tables, starts.clamp(max=len(own)), lengths, latent=vectors.latent, scale=vectors.scale
        )
        close(run(config)[-CHECKED_LATENT_QUERIES:], expected)

    pairs = (2 * context - tokens + 1) * tokens // 2
    return latent_case(run, check, vectors, kv, context, pairs, queries)


def expanded(inputs: Inputs, tokens: int, part_heads: PartHeads, prefix: int = 0, sequences: int = 1) -> Case:
    heads, nope, rope, value, latent = part_heads
    context = prefix + tokens
    width = -(-context // BLOCK_TOKENS) * BLOCK_TOKENS
    queries = inputs.normal(sequences * tokens, heads, nope + rope)
    starts, firsts = (
        torch.arange(0, (sequences + 1) * each, each, dtype=torch.int32, device=inputs.device)
        for each in (tokens, width)
    )
    keys, values = (inputs.normal(sequences * width, heads, each) for each in (nope, value))
    vectors = inputs.normal(sequences * width, latent + rope)
    kv = expanded_attention.ExpandedKV(keys, values, vectors, firsts[:-1], torch.full_like(firsts[1:], context))
    scale = part_heads.scale

    def run(config: Config | None) -> Tensor:
        return expanded_attention.expanded_attention(queries, kv, starts, scale=scale, longest=context, config=config)

    def check(config: Config | None) -> None:
        found, few = run(config), min(CHECKED_QUERIES, tokens)
        first_keys, first_values, first_vectors = (each[:width].double() for each in (keys, values, vectors))
        for begin in {0, (tokens - few) // 2, tokens - few}:
            # Queries in the middle are the last of a shorter prompt.
            length = kv.lengths[:1] - (tokens - begin - few)
            shorter = expanded_attention.ExpandedKV(first_keys, first_values, first_vectors, firsts[:1], length)
            own, counted = slice(begin, begin + few), starts[:2].clamp(max=few)
            close(found[own], expanded_attention.reference(queries[own].double(), shorter, counted, scale=scale))

    pairs = (2 * context - tokens + 1) * tokens // 2
    read = queries.numel() + sequences * context * (heads * (nope + value) + rope)
    return Case(
        run,
        check,
        bytes=(read + sequences * tokens * heads * value) * inputs.dtype.itemsize,
        operations=2 * sequences * pairs * heads * (nope + rope + value),
    )


def latent_case(
    run: Callable[[Config | None], Tensor],
    check: Callable[[Config | None], None],
    vectors: Vectors,
    kv: KVFormat,
    stored: int,
    pairs: int,
    queries: Tensor,
) -> Case:
    size = vector_bytes(kv, queries.dtype, *vectors.parts)
    return Case(
        run,
        check,
        bytes=stored * size + 2 * queries.numel() * queries.dtype.itemsize,
        operations=2 * pairs * vectors.heads * (2 * vectors.latent + vectors.rope),
    )
