"""Moves KV blocks from the pool into contiguous memory, back, and from block to block; encodes blocks of a layer.

    scale = max(|x|) / largest,   q = round(x / scale)

for each part of each vector of one block of a layer, such as a KV head's keys; a latent vector and the rotated key
after it differ in magnitude and have a scale each. The codec is `int8` (largest 127, an error of at most scale / 2) or
`fp8` (e4m3, largest 448, an error of at most |x| / 16, or scale / 1024 if that is more; Micikevicius et al., "FP8
Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433). Rounding is to nearest, ties to even, and a zero
has no sign. A scale is never below fp32's least normal number, so zeros stay zeros. Non-finite values become 0: they
are left-over contents after the stored tokens, and must not spoil the scale.

`copy` takes a batch made by `engine/kv/moves.py`: no move reads or writes the target of an earlier move, but it may
write the source of an earlier move. A program therefore takes the same words of all moves, one after the other: reads
may run ahead of writes, but not the other way round. Programs for different moves would race.

Bytes are moved as words of eight: block sizes in a layer are multiples of a word. The null block must not be written.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import converts_fp8
from kernels.launching import launched_directly
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 512}, warps=4),
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 1024}, warps=8),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default. `TILE` is in words; `encode` takes a vector's tokens at once, and has no tile."""

CodecName = Literal["fp8", "int8"]
CODEC_FORMATS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
WORD_DTYPE = torch.int64
MAX_VECTOR_VALUES = 1 << 14
"""Maximum values of a vector in a block, held in the registers of four warps."""
MIN_SCALE = tl.constexpr(2.0**-126)
ROUND_TO_INTEGER = tl.constexpr(1.5 * 2.0**23)
"""Adding and subtracting it rounds a value below 2^22 to the nearest integer, ties to even."""


def unsupported(block: int, dim: int, code: CodecName, device: torch.device) -> str:
    """Returns one sentence that says why such blocks cannot be encoded on the device; empty if supported."""
    if code == "fp8" and not converts_fp8(device):
        return "block_copy converts to fp8 on GPUs that have instructions for it, from sm_89 on"
    if block * dim > MAX_VECTOR_VALUES:
        return f"block_copy converts vectors of up to {MAX_VECTOR_VALUES} values per block, not {block} tokens of {dim}"
    return ""


def gather(pool: Tensor, blocks: Tensor, *, config: Config | None = None) -> Tensor:
    """Reads blocks out of a pool, each contiguous over all layers.

    Args:
        pool: `[layers, blocks, vectors, block, dim]`, contiguous.
        blocks: `[n]` int64, contiguous.

    Returns `[n, layers, vectors, block, dim]` in the pool's format, contiguous.

    Example: pool `[32, 1000, 16, 16, 128]`, blocks `[7, 8, 3]` give `[3, 32, 16, 16, 128]`.
    """
    staging = pool.new_empty((len(blocks), len(pool), *pool.shape[2:]))
    _move_words(pool, blocks, staging, config, into_pool=False)
    return staging


def scatter(staging: Tensor, pool: Tensor, blocks: Tensor, *, config: Config | None = None) -> None:
    """Writes the result of `gather` into `blocks` `[n]` int64 of a `pool` of the same shape.

    Example: staging `[3, 32, 16, 16, 128]`, pool `[32, 1000, 16, 16, 128]`, blocks `[7, 8, 3]`.
    """
    assert staging.shape == (len(blocks), len(pool), *pool.shape[2:]) and staging.is_contiguous()
    assert staging.dtype == pool.dtype
    _move_words(pool, blocks, staging, config, into_pool=True)


def copy(pool: Tensor, sources: Tensor, targets: Tensor, *, config: Config | None = None) -> None:
    """Copies block sources[i] to targets[i], both `[n]` int64, in all layers of a `pool` as `gather` takes it.

    Example: pool `[32, 1000, 16, 16, 128]`, sources `[7, 8]`, targets `[40, 7]`: 7 is read before it is written.
    """
    words = _words(pool, sources)
    assert targets.shape == sources.shape and targets.dtype == torch.int64 and targets.is_contiguous()
    options = (config or _measured("same", pool)).options()
    _copy_words[(len(words), tile_count(words.shape[2], options["TILE"]))](
        words, sources, targets, len(sources), words.shape[1], WORDS=words.shape[2], **options
    )


def encode(
    layer: Tensor, blocks: Tensor, code: CodecName, parts: Sequence[int] = (), *, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """Encodes blocks of one layer of a pool with a scale for each block, vector and part of it.

    Args:
        layer: `[blocks, vectors, block, dim]` fp32, bf16 or fp16, contiguous.
        blocks: `[n]` int64, contiguous.
        code: `fp8` or `int8`.
        parts: lengths of the parts of a vector that share a scale, `dim` in all; empty: one scale for all.

    Returns values `[n, vectors, block, dim]` in fp8 (e4m3) or int8, and scales `[n, vectors, parts]` fp32.

    Example: layer `[1000, 16, 16, 128]`, blocks `[7, 8, 3]`, code `int8` give `[3, 16, 16, 128]` and `[3, 16, 1]`.
    """
    _, vectors, block, dim = layer.shape
    _check(layer, blocks)
    widths = tuple(parts) or (dim,)
    assert sum(widths) == dim and not unsupported(block, max(widths), code, layer.device)
    dtype, largest = CODEC_FORMATS[code]
    values = torch.empty((len(blocks), *layer.shape[1:]), dtype=dtype, device=layer.device)
    scales = torch.empty((*values.shape[:-2], len(widths)), dtype=torch.float32, device=layer.device)
    config = config or _measured(code, layer[None])
    for part, width in enumerate(widths):
        _encode[(len(blocks), vectors)](
            layer,
            blocks,
            values,
            scales,
            LARGEST=largest,
            BLOCK=block,
            DIM=dim,
            FIRST=sum(widths[:part]),
            WIDTH=width,
            PART=part,
            PARTS=len(widths),
            TILE=power_of_two(block * width),
            enable_fp_fusion=False,  # a fused multiply-add would round once where the reference rounds twice
            num_warps=config.warps,
            num_stages=config.stages,
        )
    return values, scales


def _check(layers: Tensor, blocks: Tensor) -> None:
    assert layers.is_contiguous()
    assert blocks.dim() == 1 and blocks.dtype == torch.int64 and blocks.is_contiguous()


def _words(pool: Tensor, blocks: Tensor) -> Tensor:
    assert pool.dim() in (4, 5)  # a quantized pool's vectors are bytes
    _check(pool, blocks)
    return pool.flatten(2).view(WORD_DTYPE)


def _measured(form: str, pool: Tensor) -> Config:
    words = pool[0, 0].numel() * pool.element_size() // WORD_DTYPE.itemsize  # of a block of one layer
    return tuned("block_copy", f"{form},words={words}", pool.device, CANDIDATE_CONFIGS[0])


def _move_words(pool: Tensor, blocks: Tensor, staging: Tensor, config: Config | None, *, into_pool: bool) -> None:
    words = _words(pool, blocks)
    options = (config or _measured("same", pool)).options()
    _move[(len(blocks), len(words), tile_count(words.shape[2], options["TILE"]))](
        words,
        blocks,
        staging.flatten().view(WORD_DTYPE),
        words.shape[1],
        WORDS=words.shape[2],
        INTO_POOL=into_pool,
        **options,
    )


# Not specialized, since that would compile another kernel during a request: addresses of blocks, which may be
# slices of one copy to the device, numbers of moves, and pool sizes, which differ between warm-up and service,
# change their alignment or divisibility by 16.
@launched_directly
@triton.jit(do_not_specialize=["pool_blocks"], do_not_specialize_on_alignment=["blocks"])
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
    valid = word < WORDS
    pool_words = pool + (layer * pool_blocks + tl.load(blocks + index)) * WORDS + word
    staging_words = staging + (index * tl.num_programs(1) + layer) * WORDS + word
    if INTO_POOL:
        tl.store(pool_words, tl.load(staging_words, mask=valid), mask=valid)
    else:
        tl.store(staging_words, tl.load(pool_words, mask=valid), mask=valid)


@launched_directly
@triton.jit(do_not_specialize=["moves", "pool_blocks"], do_not_specialize_on_alignment=["sources", "targets"])
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
    valid = word < WORDS
    layer_words = pool + tl.program_id(0).to(tl.int64) * pool_blocks * WORDS + word
    for move in range(moves):
        moved = tl.load(layer_words + tl.load(sources + move) * WORDS, mask=valid)
        tl.store(layer_words + tl.load(targets + move) * WORDS, moved, mask=valid)


@launched_directly
@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _encode(
    layer: tl.tensor,
    blocks: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    index, vector, vectors = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    source = tl.load(blocks + index) * vectors + vector
    target = index * vectors + vector
    element = tl.arange(0, TILE)
    valid = element < BLOCK * WIDTH
    if WIDTH != DIM:
        element = element // WIDTH * DIM + FIRST + element % WIDTH
    x = tl.load(layer + source * (BLOCK * DIM) + element, mask=valid, other=0.0).to(tl.float32)
    x = tl.where(tl.abs(x) < float("inf"), x, 0.0)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(x), 0), LARGEST), MIN_SCALE)
    rounded = _rounded(x * tl.div_rn(1.0, scale), LARGEST)
    tl.store(values + target * (BLOCK * DIM) + element, rounded.to(values.dtype.element_ty), mask=valid)
    tl.store(scales + target * PARTS + PART, scale)


@triton.jit
def _rounded(scaled: tl.tensor, LARGEST: tl.constexpr) -> tl.tensor:
    """Rounds to the nearest value of the format, ties to even, so that the conversion itself is exact.

    A GPU's conversion would round by itself, but the interpreter's does not. e4m3 has three bits after the first, down
    to multiples of 2^-9. The number added and subtracted is therefore 1.5 x 2^20 times the power of two of the value's
    first bit, which is at least 2^-6.
    """
    if LARGEST == 127.0:
        return (scaled + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
    power = tl.maximum(scaled.to(tl.int32, bitcast=True) & 0x7F800000, 0x3C800000).to(tl.float32, bitcast=True)
    raised = power * (ROUND_TO_INTEGER / 8)
    return (scaled + raised) - raised


def reference(pool: Tensor, blocks: Tensor) -> Tensor:
    return pool[:, blocks].transpose(0, 1).contiguous()


def reference_encode(
    layer: Tensor, blocks: Tensor, code: CodecName, parts: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    split = layer[blocks].split(list(parts) or layer.shape[-1], -1)
    values, scales = zip(*(_reference_part(part, code) for part in split), strict=True)
    return torch.cat(values, -1), torch.stack(scales, -1)


def _reference_part(part: Tensor, code: CodecName) -> tuple[Tensor, Tensor]:
    dtype, largest = CODEC_FORMATS[code]
    x = part.float()
    x = torch.where(x.isfinite(), x, 0.0)
    highest = x.abs().amax((-1, -2))
    # By a tensor: on a GPU torch divides by a number by multiplying with its inverse.
    scales = (highest / torch.full_like(highest, largest)).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = x * (1 / scales)[..., None, None]
    converted = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return torch.where(converted.float() == 0, 0.0, converted.float()).to(dtype), scales  # zeros have no sign
