"""Rows of norms, rotation, gates, adapters and copies, all bound by memory."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Inputs, close, compared, equal
from benchmarks.kernels.kv import BLOCK_TOKENS, Heads, KVFormat, close_in_format, in_format, vector_bytes
from kernels import block_copy, block_digest, gate, lora, rms_norm, rope_and_store, rotate_queries, store_latents
from kernels.block_copy import CodecName
from kernels.gate import Activation
from kernels.tuning import Config

NORM_EPS = 1e-6
POSITIONS_ROTATED = 4096
BlockWork = Literal["gather", "scatter", "copy", "int8", "fp8"]


def norm(inputs: Inputs, rows: int, width: int, added: bool = True) -> Case:
    hidden, change, weight = inputs.normal(rows, width), inputs.normal(rows, width), inputs.normal(width)
    moved = hidden.numel() * inputs.dtype.itemsize
    if not added:
        return compared(
            rms_norm.rms_norm,
            rms_norm.reference,
            *(hidden, weight, NORM_EPS),
            bytes=2 * moved,
            peers={"operators": lambda: functional.rms_norm(hidden, (width,), weight, NORM_EPS)},
        )
    return compared(
        rms_norm.add_rms_norm,
        lambda hidden, change, weight, eps: rms_norm.reference(hidden, weight, eps, change),
        *(hidden, change, weight, NORM_EPS),
        changed=1,
        bytes=4 * moved,
        peers={"operators": lambda: functional.rms_norm(hidden.add_(change), (width,), weight, NORM_EPS)},
    )


def gated(inputs: Inputs, rows: int, width: int, activation: Activation = "silu") -> Case:
    gate_up = inputs.normal(rows, 2 * width)

    def peer() -> Tensor:
        first, second = gate_up.chunk(2, -1)
        if activation == "silu":
            return functional.silu(first).mul_(second)
        return functional.gelu(first, approximate="tanh").mul_(second)

    return compared(
        gate.gate,
        gate.reference,
        *(gate_up, activation),
        bytes=3 * rows * width * inputs.dtype.itemsize,
        peers={"operators": peer} if activation != "clamped_swiglu" else {},
    )


def cos_sin(inputs: Inputs, rotated: int) -> Tensor:
    angles = torch.rand((POSITIONS_ROTATED, rotated // 2), device=inputs.device) * 6.28
    return torch.cat((angles.cos(), angles.sin()), 1)


def slots_of(inputs: Inputs, tokens: int, block: int) -> tuple[int, Tensor]:
    blocks = 1 + -(-tokens // block)
    return blocks, torch.randperm((blocks - 1) * block, device=inputs.device)[:tokens] + block


def rotation(
    inputs: Inputs,
    tokens: int,
    heads: Heads,
    normed: bool = False,
    as_one: bool = False,
    rotated: int | None = None,
    block: int = BLOCK_TOKENS,
    kv: KVFormat = "plain",
) -> Case:
    """Rotates queries and keys and stores keys and values.

    `normed`: queries and keys have norms of their own (Qwen3); `as_one`: one norm for all heads (OLMo 2); `rotated`:
    values of a head that are rotated, None for all.
    """
    queries, keys, dim = heads
    rotated = dim if rotated is None else rotated
    states = inputs.normal(tokens, queries + 2 * keys, dim)
    blocks, slots = slots_of(inputs, tokens, block)
    plain = inputs.normal(blocks, keys, 2, block, dim)
    pool, positions = in_format(plain, kv, dim), inputs.up_to(POSITIONS_ROTATED, tokens)
    table = cos_sin(inputs, rotated) if rotated else None
    weight = inputs.normal(queries + keys, dim, dtype=torch.float32) if normed else None
    settings: dict[str, Any] = {"query_heads": queries, "norm_weight": weight, "as_one": as_one, "eps": NORM_EPS}

    def rotate(own: Tensor, into: Tensor, config: Config | None) -> None:
        rope_and_store.rope_and_store(own, positions, slots, table, into, config=config, **settings)

    def expect(own: Tensor, into: Tensor) -> None:
        rope_and_store.reference(own, positions, slots, table, into, **settings)

    def check(config: Config | None) -> None:
        (own, into), (theirs, expected) = (states.clone(), pool.clone()), (states.clone(), plain.clone())
        rotate(own, into, config)
        expect(theirs, expected)
        close(own[:, :queries], theirs[:, :queries])
        close_in_format(into, in_format(expected, kv, dim), dim)

    size = inputs.dtype.itemsize
    return Case(
        lambda config: rotate(states, pool, config),
        check,
        bytes=(states.numel() + tokens * queries * dim) * size
        + tokens * (2 * keys * vector_bytes(kv, inputs.dtype, dim) + rotated * 4 + 16),
        peers={"operators": lambda: expect(states, plain)} if kv == "plain" else {},
    )


def query_rotation(inputs: Inputs, tokens: int, heads: int, dim: int, rope: int) -> Case:
    queries, table = inputs.normal(tokens, heads, dim), cos_sin(inputs, rope)
    positions = inputs.up_to(POSITIONS_ROTATED, tokens)
    return compared(
        rotate_queries.rotate_queries,
        rotate_queries.reference,
        *(queries, positions, table),
        changed=1,
        bytes=2 * tokens * heads * rope * inputs.dtype.itemsize + tokens * (rope * 4 + 8),
        peers={"operators": lambda: rotate_queries.reference(queries, positions, table)},
    )


def latent_store(
    inputs: Inputs,
    tokens: int,
    query_rank: int,
    latent: int,
    rope: int,
    block: int = BLOCK_TOKENS,
    kv: KVFormat = "plain",
) -> Case:
    parts, size = (latent, rope), inputs.dtype.itemsize
    down = inputs.normal(tokens, query_rank + latent + rope)
    blocks, slots = slots_of(inputs, tokens, block)
    plain = inputs.normal(blocks, 1, block, latent + rope)
    pool, positions, table = (
        in_format(plain, kv, *parts),
        inputs.up_to(POSITIONS_ROTATED, tokens),
        cos_sin(inputs, rope),
    )
    weight = inputs.normal(latent, dtype=torch.float32)
    query_weight = inputs.normal(query_rank, dtype=torch.float32) if query_rank else None

    def store(into: Tensor, config: Config | None) -> Tensor:
        return store_latents.store_latents(
            down, positions, slots, table, weight, query_weight, into, NORM_EPS, config=config
        )

    def check(config: Config | None) -> None:
        ours, theirs = pool.clone(), plain.clone()
        found = store(ours, config)
        expected = store_latents.reference(down, positions, slots, table, weight, query_weight, theirs, NORM_EPS)
        close_in_format(ours, in_format(theirs, kv, *parts), *parts)
        if query_rank:
            close(found, expected)

    moved = tokens * (vector_bytes(kv, inputs.dtype, *parts) + rope * 4 + 16)
    return Case(lambda config: store(pool, config), check, bytes=(down.numel() + tokens * query_rank) * size + moved)


def adapted(inputs: Inputs, rows: int, adapters: int, rank: int, inputs_width: int, parts: tuple[int, ...]) -> Case:
    ranks, outputs = rank * len(parts), sum(parts)
    x, y = inputs.normal(rows, inputs_width), inputs.normal(rows, outputs)
    slots = torch.arange(rows, device=inputs.device) % adapters + 1
    words = torch.zeros((adapters + 1, 1 + len(parts), lora.WORDS_PER_MATRIX), dtype=torch.int64)
    weights: dict[int, tuple[Tensor, list[tuple[int, int, Tensor]]]] = {}
    for slot in range(1, adapters + 1):
        a = inputs.normal(ranks, inputs_width) * inputs_width**-0.5
        own = [
            (sum(parts[:number]), number * rank, inputs.normal(rank, size) * rank**-0.5)
            for number, size in enumerate(parts)
        ]
        weights[slot] = (a, own)
        if inputs.real:  # tensors without memory have no addresses
            words[slot] = torch.tensor(
                [(a.data_ptr(), 0, ranks, 0, 0), *((b.data_ptr(), at, rank, first, b.shape[1]) for first, at, b in own)]
            )
    table = words.to(inputs.device)
    sorted_rows = lora.sorted_rows(slots, adapters, ranks)
    read = min(adapters, rows) * (ranks * inputs_width + rank * outputs)

    def adapt(config: Config | None) -> Tensor:
        found = y.clone()
        lora.adapt(x, found, sorted_rows, table, parts, config=config)
        return found

    return compared(
        adapt,
        lambda: lora.reference(x, y, slots, weights),
        bytes=(read + x.numel() + 4 * y.numel()) * inputs.dtype.itemsize,
    )


def block_work(
    inputs: Inputs,
    what: BlockWork,
    blocks: int,
    layers: int,
    heads: Heads,
    block: int = BLOCK_TOKENS,
    parts: tuple[int, ...] = (),
) -> Case:
    """Moves blocks of all layers as a handoff, an eviction or a copy on write do, or encodes the blocks of one layer.

    `parts`: values of a head that share a scale; empty: all of them.
    """
    pool = inputs.normal(layers, 1 + 2 * blocks, 2 * heads.keys, block, heads.dim)
    sources, targets = torch.randperm(2 * blocks, device=inputs.device).add_(1).chunk(2)
    moved = 2 * blocks * pool[:, 0].nbytes
    if what == "gather":
        return compared(
            block_copy.gather,
            block_copy.reference,
            *(pool, sources),
            same=equal,
            bytes=moved,
            peers={"operators": lambda: block_copy.reference(pool, sources)},
        )
    if what == "copy":

        def copied(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
            pool.index_copy_(1, targets, pool.index_select(1, sources))

        return compared(
            block_copy.copy,
            copied,
            *(pool, sources, targets),
            changed=1,
            same=equal,
            bytes=moved,
            peers={"operators": lambda: copied(pool, sources, targets)},
        )
    if what == "scatter":
        staging = block_copy.gather(pool, sources)

        def put(pool: Tensor) -> None:
            pool[:, targets] = staging.transpose(0, 1)

        return compared(
            lambda pool, config: block_copy.scatter(staging, pool, targets, config=config),
            put,
            pool,
            changed=1,
            same=equal,
            bytes=moved,
            peers={"operators": lambda: put(pool)},
        )
    return encoding(inputs, what, pool[0], sources, parts)


def encoding(inputs: Inputs, code: CodecName, layer: Tensor, blocks: Tensor, parts: tuple[int, ...]) -> Case:
    def same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
        equal(found[0], wanted[0])
        close(found[1], wanted[1])

    values = len(blocks) * layer[0].numel()
    scales = values // layer.shape[-1] * max(1, len(parts))
    return compared(
        block_copy.encode,
        block_copy.reference_encode,
        *(layer, blocks, code, parts),
        same=same,
        bytes=values * (inputs.dtype.itemsize + 1) + 4 * scales,
        peers={"operators": lambda: block_copy.reference_encode(layer, blocks, code, parts)},
    )


def digesting(inputs: Inputs, copies: bool, blocks: int, heads: Heads, block: int = BLOCK_TOKENS) -> Case:
    """Digests the blocks of a layer, or copies them into another pool on the way."""
    layer = inputs.normal(1 + blocks, 2 * heads.keys, block, heads.dim).flatten(1).view(torch.int64)
    sources = torch.randperm(blocks, device=inputs.device).add_(1)
    span = (0, 0, layer.shape[1], 1 << 62, layer.shape[1])
    read = blocks * layer[0].nbytes

    def same(found: Tensor, wanted: Tensor) -> None:
        assert torch.equal(found, wanted), "other values"

    if not copies:
        return compared(block_digest.digest, block_digest.reference, layer, sources, span, same=same, bytes=read)

    def copied(target: Tensor, config: Config | None = None) -> Tensor:
        return block_digest.copy_and_digest(layer, sources, target, sources, span, config=config)

    def put(target: Tensor) -> Tensor:
        target.index_copy_(0, sources, layer.index_select(0, sources))
        return block_digest.reference(layer, sources, span)

    return compared(copied, put, torch.zeros_like(layer), changed=1, same=same, bytes=2 * read)


def encodable(what: BlockWork, heads: Heads, block: int = BLOCK_TOKENS, **_: object) -> bool:
    if what == "gather" or what == "scatter" or what == "copy":
        return True
    return not block_copy.unsupported(block, heads.dim, what, torch.device("meta"))
