"""Rows of norms, rotation, gates, adapters and copies, all bound by memory."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Inputs, Kernel, changing, close, equal, grid, returning
from benchmarks.kernels.kv import (
    BLOCK,
    GEMMA,
    GPT_OSS,
    LLAMA,
    OLMO,
    PHI,
    QUANTIZED,
    QWEN,
    Heads,
    KVFormat,
    close_in_format,
    in_format,
    vector_bytes,
)
from kernels import block_copy, gate, lora, rms_norm, rope_and_store, rotate_queries, store_latents
from kernels.block_copy import CodecName
from kernels.gate import Activation
from kernels.tuning import Config

NORM_EPS = 1e-6
POSITIONS_ROTATED = 4096
BlockWork = Literal["gather", "scatter", "copy", "int8", "fp8"]
ROW_COUNTS = [1, 32, 256, 8192]


def norm(inputs: Inputs, rows: int, width: int, added: bool = True) -> Case:
    hidden, change, weight = inputs.normal(rows, width), inputs.normal(rows, width), inputs.normal(width)
    moved = hidden.numel() * inputs.dtype.itemsize
    if not added:
        return returning(
            lambda config: rms_norm.rms_norm(hidden, weight, NORM_EPS, config=config),
            lambda: rms_norm.reference(hidden, weight, NORM_EPS),
            bytes=2 * moved,
            peers={"operators": lambda: functional.rms_norm(hidden, (width,), weight, NORM_EPS)},
        )
    return changing(
        lambda hidden, config: rms_norm.add_rms_norm(hidden, change, weight, NORM_EPS, config=config),
        lambda hidden: rms_norm.reference(hidden, weight, NORM_EPS, change),
        hidden,
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

    return returning(
        lambda config: gate.gate(gate_up, activation, config=config),
        lambda: gate.reference(gate_up, activation),
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
    block: int = BLOCK,
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
    return changing(
        lambda own, config: rotate_queries.rotate_queries(own, positions, table, config=config),
        lambda own: rotate_queries.reference(own, positions, table),
        queries,
        bytes=2 * tokens * heads * rope * inputs.dtype.itemsize + tokens * (rope * 4 + 8),
    )


def latent_store(
    inputs: Inputs, tokens: int, query_rank: int, latent: int, rope: int, block: int = BLOCK, kv: KVFormat = "plain"
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
    read = min(adapters, rows) * (ranks * inputs_width + rank * outputs)

    def run(config: Config | None) -> Tensor:
        found = y.clone()
        lora.adapt(x, found, slots, table, ranks, config=config)
        return found

    return returning(
        run,
        lambda: lora.reference(x, y, slots, weights),
        bytes=(read + x.numel() + 4 * y.numel()) * inputs.dtype.itemsize,
    )


def block_work(
    inputs: Inputs,
    what: BlockWork,
    blocks: int,
    layers: int,
    heads: Heads,
    block: int = BLOCK,
    parts: tuple[int, ...] = (),
) -> Case:
    """Moves blocks of all layers as a handoff, an eviction or a copy on write do, or encodes the blocks of one layer.

    `parts`: values of a head that share a scale; empty: all of them.
    """
    pool = inputs.normal(layers, 1 + 2 * blocks, 2 * heads.keys, block, heads.dim)
    sources, targets = torch.randperm(2 * blocks, device=inputs.device).add_(1).chunk(2)
    moved = 2 * blocks * pool[:, 0].nbytes
    if what == "gather":
        return returning(
            lambda config: block_copy.gather(pool, sources, config=config),
            lambda: block_copy.reference(pool, sources),
            equal,
            bytes=moved,
            peers={"operators": lambda: block_copy.reference(pool, sources)},
        )
    if what == "copy":
        return changing(
            lambda pool, config: block_copy.copy(pool, sources, targets, config=config),
            lambda pool: pool.index_copy_(1, targets, pool.index_select(1, sources)),
            pool,
            same=equal,
            bytes=moved,
        )
    if what == "scatter":
        staging = block_copy.gather(pool, sources)

        def put(pool: Tensor) -> None:
            pool[:, targets] = staging.transpose(0, 1)

        return changing(
            lambda pool, config: block_copy.scatter(staging, pool, targets, config=config),
            put,
            pool,
            same=equal,
            bytes=moved,
        )
    return encoding(inputs, what, pool[0], sources, parts)


def encoding(inputs: Inputs, code: CodecName, layer: Tensor, blocks: Tensor, parts: tuple[int, ...]) -> Case:
    def expected() -> tuple[Tensor, Tensor]:
        return block_copy.reference_encode(layer, blocks, code, parts)

    def same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
        equal(found[0], wanted[0])
        close(found[1], wanted[1])

    values = len(blocks) * layer[0].numel()
    scales = values // layer.shape[-1] * max(1, len(parts))
    return returning(
        lambda config: block_copy.encode(layer, blocks, code, parts, config=config),
        expected,
        same,
        bytes=values * (inputs.dtype.itemsize + 1) + 4 * scales,
        peers={"operators": expected},
    )


def encodable(what: BlockWork, heads: Heads, block: int = BLOCK, **_: object) -> bool:
    if what == "gather" or what == "scatter" or what == "copy":
        return True
    return not block_copy.unsupported(block, heads.dim, what, torch.device("meta"))


QKV, GATE_UP = (4096, 1024, 1024), (14336, 14336)
KERNELS = {
    "store_latents": Kernel(
        "copy",
        store_latents.CANDIDATE_CONFIGS,
        latent_store,
        full=[
            *grid(tokens=ROW_COUNTS, query_rank=[1536, 0], latent=512, rope=64),
            *grid(tokens=[32, 8192], query_rank=1536, latent=512, rope=64, kv=QUANTIZED),
        ],
        tiny=[
            *grid(tokens=5, query_rank=48, latent=32, rope=16, kv=["plain", *QUANTIZED]),
            *grid(tokens=3, query_rank=0, latent=24, rope=6, block=8),
        ],
        compiled=[
            *grid(tokens=2, query_rank=1536, latent=512, rope=64, block=64),
            *grid(tokens=2, query_rank=768, latent=256, rope=32),
            *grid(tokens=2, query_rank=1536, latent=512, rope=64, kv=QUANTIZED),
        ],
    ),
    "rotate_queries": Kernel(
        "copy",
        rotate_queries.CANDIDATE_CONFIGS,
        query_rotation,
        full=grid(tokens=ROW_COUNTS, heads=[128, 16], dim=192, rope=64),
        tiny=grid(tokens=5, heads=3, dim=24, rope=8),
        compiled=grid(tokens=2, heads=9, dim=48, rope=16),
    ),
    "rms_norm": Kernel(
        "copy",
        rms_norm.CANDIDATE_CONFIGS,
        norm,
        full=[*grid(rows=ROW_COUNTS, width=[4096, 1024]), *grid(rows=8192, width=4096, added=False)],
        tiny=[*grid(rows=3, width=40), *grid(rows=2, width=24, added=False)],
        compiled=[*grid(rows=2, width=[576, 896, 8192]), *grid(rows=2, width=4096, added=False)],
    ),
    "rope_and_store": Kernel(
        "copy",
        rope_and_store.CANDIDATE_CONFIGS,
        rotation,
        full=[
            *grid(tokens=ROW_COUNTS, heads=LLAMA),
            *grid(tokens=ROW_COUNTS, heads=QWEN, normed=True),
            *grid(tokens=[32, 8192], heads=OLMO, normed=True, as_one=True),
            *grid(tokens=[32, 8192], heads=PHI, rotated=96),
            *grid(tokens=[32, 8192], heads=GEMMA, normed=True),
            *grid(tokens=[32, 8192], heads=LLAMA, kv=QUANTIZED),
        ],
        tiny=[
            *grid(tokens=5, heads=Heads(4, 2, 16), kv=["plain", *QUANTIZED]),
            *grid(tokens=3, heads=Heads(2, 1, 24), normed=True, block=8),
            *grid(tokens=3, heads=Heads(3, 2, 24), normed=True, as_one=True, rotated=10),
            *grid(tokens=3, heads=Heads(2, 1, 16), rotated=0),
        ],
        compiled=[
            *grid(tokens=2, heads=[Heads(8, 2, dim) for dim in (16, 32, 64, 80, 96, 256)]),
            *grid(tokens=2, heads=LLAMA, block=[8, 32, 64]),
            *grid(tokens=2, heads=LLAMA, rotated=0),
            *grid(tokens=2, heads=GPT_OSS, rotated=32, normed=True),
            *grid(tokens=2, heads=[Heads(8, 2, dim) for dim in (64, 80, 128, 256)], kv=QUANTIZED),
            *grid(tokens=2, heads=Heads(40, 40, 128), normed=True, as_one=True, kv=["plain", *QUANTIZED]),
        ],
    ),
    "gate": Kernel(
        "copy",
        gate.CANDIDATE_CONFIGS,
        gated,
        full=[
            *grid(rows=ROW_COUNTS, width=[14336, 3072]),  # Llama-3.1-8B, Qwen3-0.6B
            *grid(rows=[32, 8192], width=6912, activation="gelu_tanh"),  # Gemma-3-1B
        ],
        tiny=[*grid(rows=3, width=40), *grid(rows=2, width=24, activation=["gelu_tanh", "clamped_swiglu"])],
        compiled=[*grid(rows=2, width=[1536, 4864]), *grid(rows=2, width=2880, activation="clamped_swiglu")],
    ),
    "lora": Kernel(
        "copy",
        lora.CANDIDATE_CONFIGS,
        adapted,
        full=[
            *grid(rows=1, adapters=1, rank=16, inputs_width=4096, parts=[QKV, GATE_UP]),
            *grid(rows=32, adapters=[1, 8], rank=16, inputs_width=4096, parts=QKV),
            *grid(rows=32, adapters=8, rank=16, inputs_width=4096, parts=GATE_UP),
            *grid(rows=32, adapters=8, rank=64, inputs_width=4096, parts=QKV),
        ],
        tiny=grid(rows=3, adapters=2, rank=4, inputs_width=40, parts=(20, 12)),
        compiled=grid(rows=7, adapters=3, rank=5, inputs_width=2000, parts=(130,)),
    ),
    "block_copy": Kernel(
        "copy",
        block_copy.CANDIDATE_CONFIGS,
        block_work,
        full=[
            *grid(what=["gather", "scatter"], blocks=256, layers=32, heads=LLAMA),
            *grid(what=["int8", "fp8"], blocks=8192, layers=1, heads=LLAMA),
            *grid(what="copy", blocks=64, layers=32, heads=LLAMA),
            *grid(what="gather", blocks=16, layers=28, heads=QWEN),
        ],
        tiny=[
            *grid(what=["gather", "scatter"], blocks=3, layers=2, heads=Heads(4, 2, 16), block=8),
            *grid(what=["int8", "fp8"], blocks=3, layers=1, heads=Heads(4, 2, 16), block=8),
            *grid(what="int8", blocks=3, layers=1, heads=Heads(4, 2, 24), block=8, parts=(20, 4)),
            *grid(what="copy", blocks=3, layers=2, heads=Heads(4, 2, 16)),
        ],
        compiled=[
            *grid(what=["gather", "scatter", "int8", "fp8"], blocks=4, layers=2, heads=Heads(4, 2, 80), block=16),
            *grid(what=["gather", "scatter", "int8", "fp8"], blocks=4, layers=2, heads=Heads(4, 2, 128), block=64),
            # latent vectors and their keys
            *grid(what=["int8", "fp8"], blocks=4, layers=1, heads=Heads(16, 1, 576), parts=(512, 64)),
        ],
        launched=encodable,
    ),
}
