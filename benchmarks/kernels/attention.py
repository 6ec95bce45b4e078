"""Rows of attention: decode reads all KV and is bound by memory, prefill by multiplying."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernels.attention_peers import decode_peers, prefill_peers
from benchmarks.kernels.case import Arguments, Case, Inputs, Kernel, Target, close, grid
from benchmarks.kernels.kv import (
    BLOCK,
    DEEPSEEK,
    DEEPSEEK_LITE,
    GEMMA,
    GEMMA_2,
    GPT_OSS,
    KIMI,
    LLAMA,
    QUANTIZED,
    QWEN,
    Heads,
    KVFormat,
    Vectors,
    paged,
    split_kv,
    vector_bytes,
)
from kernels.attention import (
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
MAX_DECODE_TOKENS = 1 << 20
"""Batch times context: 4 GiB of KV of one layer."""
FORMATS: list[KVFormat] = ["plain", *QUANTIZED]


def decode(
    inputs: Inputs,
    batch: int,
    context: int,
    heads: Heads,
    window: int = 0,
    block: int = BLOCK,
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
    block: int = BLOCK,
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
    inputs: Inputs, batch: int, context: int, vectors: Vectors, block: int = BLOCK, kv: KVFormat = "plain"
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
    inputs: Inputs, tokens: int, context: int, vectors: Vectors, block: int = BLOCK, kv: KVFormat = "plain"
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


def _decode_rows() -> list[Arguments]:
    targets = {(32, 4096): Target(0.85), (1, 32768): Target(0.75)}
    rows: list[Arguments] = []
    for each in grid(batch=[1, 8, 32, 128, 256], context=[2048, 4096, 32768], heads=[LLAMA, QWEN]):
        target = targets.get((each["batch"], each["context"])) if each["heads"] == LLAMA else None
        if each["batch"] * each["context"] <= MAX_DECODE_TOKENS:
            rows.append({**each, "target": target, "flex": True} if target else each)
    return rows


TINY, TINY_WINDOWED = Heads(4, 2, 16), Heads(4, 1, 32)
SMALL_VECTORS, TINY_VECTORS = Vectors(9, 64, 16), Vectors(3, 32, 16)
HEAD_SIZES = [Heads(8, 2, dim) for dim in (16, 32, 64, 80, 96, 128, 192, 256)]
QUANTIZED_HEADS = [Heads(8, 2, dim) for dim in (64, 80, 128, 256)]
ODD_HEADS = [Heads(8, 8, 128), Heads(16, 1, 128)]
CHUNK_TOKENS, SHORT_PROMPT_TOKENS = 2048, 64
"""Tokens of a chunk of a long prompt, and of a prompt whose beginning was in the cache."""

KERNELS = {
    "paged_decode_attention": Kernel(
        "copy",
        paged_decode_attention.CANDIDATE_CONFIGS,
        decode,
        full=[
            *_decode_rows(),
            *grid(batch=[8, 128], context=4096, heads=GEMMA_2, softcap=50.0),
            *grid(batch=[8, 128], context=4096, heads=GEMMA, window=1024),
            *grid(batch=[8, 128], context=4096, heads=GPT_OSS, sinks=True, window=[0, 128]),
            *grid(batch=1, context=32768, heads=LLAMA, kv=QUANTIZED),
            *grid(batch=32, context=4096, heads=[LLAMA, GPT_OSS, GEMMA], kv=QUANTIZED),
            *grid(batch=[1, 8, 32], context=4096, heads=LLAMA, queries=[4, 8]),
            *grid(batch=[1, 8, 32], context=4096, heads=LLAMA, queries=8, branching=True),
        ],
        tiny=[
            *grid(batch=3, context=40, heads=TINY, queries=4, branching=[False, True]),
            *grid(batch=3, context=40, heads=TINY, kv=FORMATS),
            *grid(batch=1, context=33, heads=TINY_WINDOWED, window=9, block=8, softcap=9.0, sinks=True),
        ],
        compiled=[
            *grid(
                batch=8,
                context=2048,
                heads=[LLAMA, Heads(8, 8, 64), Heads(8, 2, 256), Heads(16, 1, 128)],
                queries=8,
                branching=[False, True],
                kv=FORMATS,
            ),
            *grid(batch=8, context=2048, heads=HEAD_SIZES),
            *grid(batch=1, context=32768, heads=[LLAMA, QWEN, *ODD_HEADS]),
            *grid(batch=256, context=2048, heads=LLAMA),
            *grid(batch=8, context=2048, heads=LLAMA, window=1024),
            *grid(batch=8, context=2048, heads=LLAMA, block=[8, 32, 64]),
            *grid(batch=256, context=2048, heads=Heads(16, 8, 256), softcap=50.0, sinks=True, kv=FORMATS),
            *grid(batch=8, context=2048, heads=[*QUANTIZED_HEADS, *ODD_HEADS], kv=QUANTIZED),
            *grid(batch=8, context=2048, heads=GPT_OSS, window=128, sinks=True, kv=QUANTIZED),
        ],
    ),
    "prefill_attention": Kernel(
        "multiply",
        prefill_attention.CANDIDATE_CONFIGS,
        prefill,
        full=[
            *grid(tokens=8192, context=8192, heads=LLAMA, flex=True, target=Target()),
            *(
                {"tokens": tokens, "context": tokens, "heads": heads}
                for heads in (LLAMA, QWEN)
                for tokens in (512, 2048, 8192, 32768)
                if (tokens, heads) != (8192, LLAMA)
            ),
            *grid(tokens=CHUNK_TOKENS, context=[8192, 32768], heads=LLAMA),
            *grid(tokens=8192, context=8192, heads=GEMMA_2, softcap=50.0),
            *grid(tokens=8192, context=8192, heads=GEMMA, window=1024),
            *grid(tokens=8192, context=8192, heads=GPT_OSS, sinks=True, window=[0, 128]),
            *grid(tokens=8192, context=8192, heads=[LLAMA, GEMMA], kv=QUANTIZED),
            *grid(tokens=SHORT_PROMPT_TOKENS, context=32768, heads=LLAMA, kv=FORMATS),
        ],
        tiny=[
            *grid(tokens=20, context=20, heads=TINY),
            *grid(tokens=6, context=15, heads=TINY, kv=FORMATS),
            *grid(tokens=9, context=33, heads=TINY_WINDOWED, sequences=2, window=7, block=8, softcap=9.0, sinks=True),
        ],
        compiled=[
            *grid(tokens=512, context=512, heads=[*HEAD_SIZES, LLAMA, QWEN, *ODD_HEADS]),
            *grid(tokens=4, context=512, heads=[Heads(8, 2, dim) for dim in (16, 128, 256)]),  # the smaller tile
            *grid(tokens=512, context=2048, heads=LLAMA, window=1024),
            *grid(tokens=512, context=512, heads=LLAMA, block=[8, 32, 64]),
            *grid(tokens=512, context=512, heads=Heads(16, 8, 256), softcap=50.0, sinks=True, window=128, kv=FORMATS),
            *grid(tokens=512, context=512, heads=QUANTIZED_HEADS, kv=QUANTIZED),
            *grid(tokens=4, context=512, heads=[Heads(8, 2, 128), Heads(8, 2, 256)], kv=QUANTIZED),
            *grid(tokens=512, context=512, heads=GPT_OSS, window=128, sinks=True, kv=QUANTIZED),
        ],
    ),
    "latent_decode_attention": Kernel(
        "copy",
        latent_decode_attention.CANDIDATE_CONFIGS,
        latent_decode,
        full=[
            *grid(batch=[1, 8, 32, 128], context=2048, vectors=[DEEPSEEK, DEEPSEEK_LITE]),
            *grid(batch=[1, 8, 32], context=32768, vectors=[DEEPSEEK, DEEPSEEK_LITE]),
            *grid(batch=1, context=32768, vectors=[DEEPSEEK, DEEPSEEK_LITE], kv=QUANTIZED),
            *grid(batch=32, context=2048, vectors=[DEEPSEEK, DEEPSEEK_LITE], kv=QUANTIZED),
        ],
        tiny=[
            *grid(batch=2, context=40, vectors=TINY_VECTORS, kv=FORMATS),
            *grid(batch=1, context=9, vectors=Vectors(2, 24, 8), block=8),
        ],
        compiled=[
            *grid(batch=8, context=2048, vectors=[KIMI, SMALL_VECTORS, Vectors(40, 256, 32)]),
            *grid(batch=8, context=512, vectors=DEEPSEEK),
            *grid(batch=8, context=2048, vectors=DEEPSEEK, block=64),
            *grid(batch=8, context=2048, vectors=[DEEPSEEK, DEEPSEEK_LITE, SMALL_VECTORS], kv=QUANTIZED),
        ],
    ),
    "latent_prefill_attention": Kernel(
        "multiply",
        latent_prefill_attention.CANDIDATE_CONFIGS,
        latent_prefill,
        full=[
            *(
                {"tokens": tokens, "context": context, "vectors": vectors}
                for vectors in (DEEPSEEK, DEEPSEEK_LITE)
                for tokens, context in ((512, 512), (2048, 2048), (64, 32768))
            ),
            *grid(tokens=64, context=32768, vectors=[DEEPSEEK, DEEPSEEK_LITE], kv=QUANTIZED),
        ],
        tiny=[
            *grid(tokens=9, context=20, vectors=TINY_VECTORS, kv=FORMATS),
            *grid(tokens=3, context=3, vectors=Vectors(2, 24, 8), block=8),
        ],
        compiled=[
            *grid(tokens=512, context=512, vectors=[KIMI, SMALL_VECTORS, Vectors(40, 256, 32)]),
            *grid(tokens=512, context=512, vectors=[DEEPSEEK, DEEPSEEK_LITE], kv=QUANTIZED),
        ],
    ),
}
