"""Digests blocks of a KV pool, and copies them into another pool on the way: each word is read once.

    digest = sum over words of mix(word xor place * PLACE_FACTOR),   place = first + index * stride + word's number

modulo 2^64, where `mix` is the last step of SplitMix64 (Steele et al., "Fast splittable pseudorandom number
generators", 2014), a bijection. A word counts at its place, so exchanged words change the sum, and parts of blocks may
be digested apart, by several devices, and added. It guards against mistakes, not against attackers.

Words have eight bytes. The other pool may be in the memory of another GPU that this GPU reaches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 512}, warps=4),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default. `TILE` is in words."""
PLACE_FACTOR = tl.constexpr(-0x61C8864680B583EB)
FIRST_FACTOR = tl.constexpr(-0x40A7B892E31B1A47)
SECOND_FACTOR = tl.constexpr(-0x6B2FB644ECCEEE15)
"""SplitMix64's numbers, as signed ones."""
LOW_34, LOW_37, LOW_33 = tl.constexpr((1 << 34) - 1), tl.constexpr((1 << 37) - 1), tl.constexpr((1 << 33) - 1)
"""The bits of a number that was shifted by 30, 27 or 31, as if it had no sign."""


Span = tuple[int, int, int, int, int]
"""The part of each block that is digested, in words: where it begins in a block that is read, and in a block that is
written; its length; the place of the first block's first word, at least 2^32; and the places from a block to the next.
"""


def digest(source: Tensor, sources: Tensor, span: Span, *, config: Config | None = None) -> Tensor:
    """Digests a part of each of the blocks `sources` `[n]` int64 of `source` `[blocks, words]` int64, contiguous.

    Returns the digest, int64 `[]`. Example: `[1000, 4096]`, `[7, 8]`, the span (0, 0, 4096, 1 << 62, 4096).
    """
    return _launched(source, sources, source, sources, span, config, copies=False)


def copy_and_digest(
    source: Tensor, sources: Tensor, target: Tensor, targets: Tensor, span: Span, *, config: Config | None = None
) -> Tensor:
    """Does the same, and copies the words into the blocks `targets` `[n]` of `target` `[blocks, words]`."""
    _, target_first, length, _, _ = span
    assert target.is_contiguous() and targets.shape == sources.shape and target_first + length <= target.shape[1]
    return _launched(source, sources, target, targets, span, config, copies=True)


def _launched(
    source: Tensor,
    sources: Tensor,
    target: Tensor,
    targets: Tensor,
    span: Span,
    config: Config | None,
    *,
    copies: bool,
) -> Tensor:
    assert source.dtype == target.dtype == torch.int64 and source.is_contiguous()
    assert sources.dtype == targets.dtype == torch.int64 and sources.is_contiguous() and targets.is_contiguous()
    source_first, _, count, first, _ = span
    assert source_first + count <= source.shape[1] and first >> 32
    config = config or tuned("block_digest", f"words={count}", source.device, CANDIDATE_CONFIGS[0])
    tiles = tile_count(count, config.tiles["TILE"])
    sums = torch.empty(len(sources) * tiles, dtype=torch.int64, device=source.device)
    words = source.shape[1], target.shape[1]
    _digest_words[(len(sources), tiles)](
        source, sources, target, targets, sums, *words, *span, COPIES=copies, **config.options()
    )
    return sums.sum()


# Not specialized, since that would compile another kernel during a request: the pools of other workers begin anywhere,
# and blocks are cut as the widths of both workers have it.
@launched_directly
@triton.jit(
    do_not_specialize=["source_words", "target_words", "source_first", "target_first", "count", "first", "stride"],
    do_not_specialize_on_alignment=["source", "sources", "target", "targets", "sums"],
)
def _digest_words(
    source: tl.tensor,
    sources: tl.tensor,
    target: tl.tensor,
    targets: tl.tensor,
    sums: tl.tensor,
    source_words: tl.tensor,
    target_words: tl.tensor,
    source_first: tl.tensor,
    target_first: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    stride: tl.tensor,
    COPIES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    word = tile * TILE + tl.arange(0, TILE)
    inside = word < count
    found = tl.load(source + tl.load(sources + index) * source_words + source_first + word, mask=inside, other=0)
    if COPIES:
        tl.store(target + tl.load(targets + index) * target_words + target_first + word, found, mask=inside)
    place = word.to(tl.int64) + index * stride + first
    mixed = _mixed(found ^ (place * PLACE_FACTOR))
    tl.store(sums + index * tl.num_programs(1) + tile, tl.sum(tl.where(inside, mixed, 0), 0))


@triton.jit
def _mixed(word: tl.tensor) -> tl.tensor:
    word = (word ^ ((word >> 30) & LOW_34)) * FIRST_FACTOR
    word = (word ^ ((word >> 27) & LOW_37)) * SECOND_FACTOR
    return word ^ ((word >> 31) & LOW_33)


def reference(source: Tensor, sources: Tensor, span: Span) -> Tensor:
    source_first, _, count, first, stride = span
    found = source[sources, source_first : source_first + count]
    words = torch.arange(count, device=source.device)
    blocks = torch.arange(len(sources), device=source.device)[:, None]
    word = found ^ ((first + blocks * stride + words) * PLACE_FACTOR.value)
    word = (word ^ ((word >> 30) & LOW_34.value)) * FIRST_FACTOR.value
    word = (word ^ ((word >> 27) & LOW_37.value)) * SECOND_FACTOR.value
    total: Tensor = (word ^ ((word >> 31) & LOW_33.value)).sum()
    return total
