"""KV blocks from the pool into one piece of memory, back, and from block to block; converted on the way, if asked for.

    scale = max(|x|) / largest,   q = round(x / scale),   x' = q scale

for the keys, and for the values, of one block, layer and KV head: `int8` (largest 127, an error of at most scale / 2)
or `fp8` (e4m3, largest 448, an error of at most |x| / 16, or scale / 1024 where that is more; Micikevicius et al.,
"FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433). Rounding is to the nearest, ties to even, and
a zero has no sign. A scale is never below fp32's least normal number, so zeros stay zeros. What is not finite becomes
0: it is what a block held before, behind the tokens stored, and must not spoil their scale.

`copy` takes a batch as `engine/kv/moves.py` makes it: no move reads or writes what one before it has written, but
it may write what one before it reads. So a program takes the same words of all moves, one after the other: reads may
run ahead, which that allows, and writes never do. Programs for different moves would race.

Bytes are moved as words of eight: a block of a layer is a multiple of that. The null block must not be written.
"""

from typing import Literal, overload

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tuning import Config, tuned

CANDIDATES = (
    Config({"TILE": 512}, warps=4),
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 1024}, warps=8),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default. `TILE` is in words; conversions take the tokens of a head at once, and have no tile."""

Form = Literal["same", "fp8", "int8"]
Converted = Literal["fp8", "int8"]
FORMATS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
WORD = torch.int64
MOST = 1 << 14
"""Values of one head that the registers of four warps hold."""
LEAST = tl.constexpr(2.0**-126)
ROUND = tl.constexpr(1.5 * 2.0**23)
"""Added to a number below 2^22 and taken away again, it leaves the nearest integer, and the even one of two."""


def unsupported(block: int, dim: int) -> str:
    """Why blocks of so many tokens and values cannot be converted, in one sentence; empty: they can."""
    if block * dim > MOST:
        return f"block_copy converts heads of up to {MOST} values per block, not {block} tokens of {dim}"
    return ""


def shape_name(form: Form, words: int) -> str:
    """What a copy is tuned by, such as `fp8,words=8192`: of a block of one layer, as it is in the pool."""
    return f"{form},words={words}"


@overload
def gather(pool: Tensor, blocks: Tensor, form: Literal["same"] = "same", *, config: Config | None = None) -> Tensor: ...
@overload
def gather(pool: Tensor, blocks: Tensor, form: Converted, *, config: Config | None = None) -> tuple[Tensor, Tensor]: ...
def gather(
    pool: Tensor, blocks: Tensor, form: Form = "same", *, config: Config | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The `blocks` `[n]` int64 of `pool`, each of all layers in one piece, as `[n, layers, kv_heads, 2, block, dim]`.

    `pool` is `[layers, blocks, kv_heads, 2, block, dim]`, or one layer `[blocks, …]`, for which the result has no axis
    of layers either. With a conversion also the scales, `[n, layers, kv_heads, 2]` fp32.
    """
    layers = _layers(pool, blocks)
    leading = (len(blocks), *pool.shape[:-5])
    if form == "same":
        staging = pool.new_empty((*leading, *pool.shape[-4:]))
        _move_words(layers, blocks, staging, config, into_pool=False)
        return staging
    dtype, largest = FORMATS[form]
    staging = torch.empty((*leading, *pool.shape[-4:]), dtype=dtype, device=pool.device)
    scales = torch.empty((*leading, *pool.shape[-4:-2]), dtype=torch.float32, device=pool.device)
    _convert(layers, blocks, staging, scales, largest, form, config, into_pool=False)
    return staging, scales


def scatter(
    staging: Tensor,
    pool: Tensor,
    blocks: Tensor,
    form: Form = "same",
    scales: Tensor | None = None,
    *,
    config: Config | None = None,
) -> None:
    """Writes what `gather` gave into `blocks` of a pool of the same shape; `scales` belong to a conversion."""
    layers = _layers(pool, blocks)
    leading = (len(blocks), *pool.shape[:-5])
    assert staging.shape == (*leading, *pool.shape[-4:]) and staging.is_contiguous()
    if form == "same":
        assert staging.dtype == pool.dtype and scales is None
        _move_words(layers, blocks, staging, config, into_pool=True)
        return
    dtype, largest = FORMATS[form]
    assert staging.dtype == dtype and scales is not None and scales.dtype == torch.float32
    assert scales.shape == (*leading, *pool.shape[-4:-2]) and scales.is_contiguous()
    _convert(layers, blocks, staging, scales, largest, form, config, into_pool=True)


def copy(pool: Tensor, sources: Tensor, targets: Tensor, *, config: Config | None = None) -> None:
    """Copies block sources[i] to targets[i], both `[n]` int64, in all layers of a pool as `gather` takes it."""
    layers = _layers(pool, sources)
    assert targets.shape == sources.shape and targets.dtype == torch.int64 and targets.is_contiguous()
    words = _words(layers)
    options = (config or _default("same", layers)).options()
    _copy_words[(len(layers), triton.cdiv(words.shape[2], options["TILE"]))](
        words, sources, targets, len(sources), words.shape[1], WORDS=words.shape[2], **options
    )


def _layers(pool: Tensor, blocks: Tensor) -> Tensor:
    assert pool.dim() in (5, 6) and pool.shape[-3] == 2 and pool.is_contiguous()
    assert blocks.dim() == 1 and blocks.dtype == torch.int64 and blocks.is_contiguous()
    return pool if pool.dim() == 6 else pool[None]


def _words(layers: Tensor) -> Tensor:
    return layers.flatten(2).view(WORD)  # [layers, blocks, words]


def _default(form: Form, layers: Tensor) -> Config:
    words = layers[0, 0].numel() * layers.element_size() // WORD.itemsize
    return tuned("block_copy", shape_name(form, words), layers.device, CANDIDATES[0])


def _move_words(layers: Tensor, blocks: Tensor, staging: Tensor, config: Config | None, *, into_pool: bool) -> None:
    words = _words(layers)
    options = (config or _default("same", layers)).options()
    _move[(len(blocks), len(layers), triton.cdiv(words.shape[2], options["TILE"]))](
        words,
        blocks,
        staging.flatten().view(WORD),
        words.shape[1],
        WORDS=words.shape[2],
        INTO_POOL=into_pool,
        **options,
    )


def _convert(
    layers: Tensor,
    blocks: Tensor,
    staging: Tensor,
    scales: Tensor,
    largest: float,
    form: Form,
    config: Config | None,
    *,
    into_pool: bool,
) -> None:
    count, pool_blocks, kv_heads, sides, block, dim = layers.shape
    assert not unsupported(block, dim)
    config = config or _default(form, layers)
    options = {"num_warps": config.warps, "num_stages": config.stages}
    # A fused multiply-add would round once where the reference rounds twice.
    (_decode if into_pool else _encode)[(len(blocks), count, kv_heads * sides)](
        layers,
        blocks,
        staging,
        scales,
        pool_blocks,
        LARGEST=largest,
        SIZE=block * dim,
        TILE=triton.next_power_of_2(block * dim),
        enable_fp_fusion=False,
        **options,
    )


# Blocks may be slices of what is copied to the device at once: another kernel for each alignment, or number of moves,
# would be compiled while a request waits.
@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _move(
    pool: tl.tensor,
    blocks: tl.tensor,
    staging: tl.tensor,
    pool_blocks: tl.tensor,
    WORDS: tl.constexpr,
    INTO_POOL: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    index, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = word < WORDS
    there = pool + (layer * pool_blocks + tl.load(blocks + index)) * WORDS + word
    here = staging + (index * tl.num_programs(1) + layer) * WORDS + word
    if INTO_POOL:
        tl.store(there, tl.load(here, mask=inside), mask=inside)
    else:
        tl.store(here, tl.load(there, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["moves"], do_not_specialize_on_alignment=["sources", "targets"])
def _copy_words(
    pool: tl.tensor,
    sources: tl.tensor,
    targets: tl.tensor,
    moves: tl.tensor,
    pool_blocks: tl.tensor,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    word = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = word < WORDS
    here = pool + tl.program_id(0).to(tl.int64) * pool_blocks * WORDS + word
    for move in range(moves):
        found = tl.load(here + tl.load(sources + move) * WORDS, mask=inside)
        tl.store(here + tl.load(targets + move) * WORDS, found, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _encode(
    pool: tl.tensor,
    blocks: tl.tensor,
    staging: tl.tensor,
    scales: tl.tensor,
    pool_blocks: tl.tensor,
    LARGEST: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    place, head = _places(blocks, pool_blocks)
    element = tl.arange(0, TILE)
    inside = element < SIZE
    found = tl.load(pool + place * SIZE + element, mask=inside, other=0.0).to(tl.float32)
    found = tl.where(tl.abs(found) < float("inf"), found, 0.0)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(found), 0), LARGEST), LEAST)
    rounded = _rounded(found * tl.div_rn(1.0, scale), LARGEST)
    tl.store(staging + head * SIZE + element, rounded.to(staging.dtype.element_ty), mask=inside)
    tl.store(scales + head, scale)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _decode(
    pool: tl.tensor,
    blocks: tl.tensor,
    staging: tl.tensor,
    scales: tl.tensor,
    pool_blocks: tl.tensor,
    LARGEST: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    place, head = _places(blocks, pool_blocks)
    element = tl.arange(0, TILE)
    inside = element < SIZE
    found = tl.load(staging + head * SIZE + element, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + head)
    tl.store(pool + place * SIZE + element, found.to(pool.dtype.element_ty), mask=inside)


@triton.jit
def _places(blocks: tl.tensor, pool_blocks: tl.tensor) -> tl.tensor:
    """Which head's keys or values this program takes, of those in the pool and of those in the staging memory."""
    index, layer, side = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    sides = tl.num_programs(2)
    place = (layer * pool_blocks + tl.load(blocks + index)) * sides + side
    return place, (index * tl.num_programs(1) + layer) * sides + side


@triton.jit
def _rounded(scaled: tl.tensor, LARGEST: tl.constexpr) -> tl.tensor:
    """To the nearest number of the format, ties to even, so that the conversion itself is exact.

    A GPU's conversion would round by itself, the interpreter's does not. e4m3 keeps three bits behind the first, down
    to multiples of 2^-9; so what is added and taken away is 1.5 x 2^20 times the power of two of the number's first
    bit, which is taken to be 2^-6 at least.
    """
    if LARGEST == 127.0:
        return (scaled + ROUND) - ROUND
    power = tl.maximum(scaled.to(tl.int32, bitcast=True) & 0x7F800000, 0x3C800000).to(tl.float32, bitcast=True)
    raised = power * (ROUND / 8)
    return (scaled + raised) - raised


def reference(pool: Tensor, blocks: Tensor, form: Form = "same") -> tuple[Tensor, Tensor | None]:
    """What `gather` gives, by torch's operators; for `same` without scales."""
    staging = pool[blocks] if pool.dim() == 5 else pool[:, blocks].transpose(0, 1).contiguous()
    if form == "same":
        return staging, None
    dtype, largest = FORMATS[form]
    found = staging.float()
    found = torch.where(found.isfinite(), found, 0.0)
    highest = found.abs().amax((-1, -2))
    # By a tensor: on a GPU torch divides by a number by multiplying with its inverse.
    scales = (highest / torch.full_like(highest, largest)).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = found * (1 / scales)[..., None, None]
    converted = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return torch.where(converted.float() == 0, 0.0, converted.float()).to(dtype), scales  # zeros have no sign


def reference_scatter(staging: Tensor, pool: Tensor, blocks: Tensor, scales: Tensor | None = None) -> None:
    """What `scatter` does, by torch's operators."""
    found = staging if scales is None else (staging.float() * scales[..., None, None]).to(pool.dtype)
    if pool.dim() == 5:
        pool[blocks] = found
    else:
        pool[:, blocks] = found.transpose(0, 1)
