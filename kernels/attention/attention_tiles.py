"""Shared by attention's two kernels: online softmax over tiles of paged keys and values, and launch options.

    highest'  = max(highest, max_j s_j)                           s_j = scale q k_j * log2(e)
    p_j       = 2^(s_j - highest')
    total'    = total * 2^(highest - highest') + sum_j p_j
    weighted' = weighted * 2^(highest - highest') + sum_j p_j v_j

weighted / total is softmax(scale q k^T) v once every key was seen (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018, https://arxiv.org/abs/1805.02867; Dao, "FlashAttention-2", 2023,
https://arxiv.org/abs/2307.08691). A power of two is one instruction of the device, so log2(e) is folded into the scale.

With a soft cap, a score s is cap tanh(s / cap) = cap - 2 cap / (1 + exp(2 s / cap)) (Gemma 2,
https://arxiv.org/abs/2408.00118). A sink is an additional score of each head, of a virtual key whose value is 0
(gpt-oss, https://arxiv.org/abs/2508.10925; Xiao et al., "Efficient Streaming Language Models with Attention Sinks",
2023, https://arxiv.org/abs/2309.17453).

One layer of the pool is `[blocks, kv_heads, 2, block, dim]`, keys before values, or bytes with scales
(quantized/kv_bytes.py): keys' scales then multiply scores, and values' the shares that their products take
(quantized/kv_halves.py). A tile is as many positions as suit the device, whatever blocks they are in.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.multi_query import visible_in_tree
from kernels.quantized.kv_bytes import KV_FORMATS, block_of
from kernels.quantized.kv_halves import halves, halves_of_words, scale_copies, scales_of_tile, unit_of
from kernels.shape_cache import by_shape
from kernels.sizes import power_of_two
from kernels.tuning import Config, tuned

LOG2_E = 1.4426950408889634
TO_BASE_2 = tl.constexpr(LOG2_E)
LOWEST_SCORE = tl.constexpr(-1e30)
"""Initial value of `highest`: finite, so that a row that sees no key of a tile never computes inf - inf."""
MAX_DIM, MAX_HEADS_PER_KV_HEAD = 256, 16


def unsupported(dtype: torch.dtype, dim: int, block: int, shared: int) -> str:
    """Returns one sentence that says why such a pool cannot be attended to; empty if supported.

    `dtype` is the pool's format, `dim` the values of a head, `block` the tokens of a block, `shared` the query heads to
    one KV head.
    """
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"attention supports fp32, fp16 and bf16, not {str(dtype).removeprefix('torch.')}"
    if dim % 16 or not 16 <= dim <= MAX_DIM:
        return f"attention supports head sizes that are multiples of 16 up to {MAX_DIM}, not {dim}"
    if block < 8 or block % 8:
        return f"attention supports block sizes that are multiples of 8, not {block}"
    if not 1 <= shared <= MAX_HEADS_PER_KV_HEAD:
        return f"attention supports 1 to {MAX_HEADS_PER_KV_HEAD} query heads to one KV head, not {shared}"
    return ""


class ScoreParams(NamedTuple):
    """Attention parameters of a layer."""

    scale: float | None = None  # of products; None: 1 / sqrt(dim)
    window: int = 0  # positions that a query sees, up to its own; 0: all
    softcap: float = 0.0  # 0: scores are not capped


PLAIN_SCORES = ScoreParams()


class DefaultConfigs(NamedTuple):
    """Launch configs for shapes without a tuned config."""

    usual: Config  # for heads of up to 128 values in 16 bits
    wide: Config  # for heads of more than 128 values
    single: Config  # for fp32, which tensor cores do not multiply in full: larger tiles would not fit into registers

    def of(self, dtype: torch.dtype, dim: int) -> Config:
        if dtype == torch.float32:
            return self.single
        return self.wide if dim > 128 else self.usual


class HeadShape(NamedTuple):
    """Launch parameters that follow from a layer of the pool and its queries."""

    dtype: torch.dtype  # of queries, and of keys and values as they are multiplied
    kv_heads: int
    shared: int  # query heads to one KV head
    dim: int  # values of a head
    block: int  # tokens of a block
    kv_format: int = 0  # of the pool's bytes; 0: it has numbers in `dtype`

    def config(self, kernel: str, device: torch.device, defaults: DefaultConfigs) -> Config:
        name = f"{str(self.dtype).removeprefix('torch.')},dim={self.dim},shared={self.shared}"
        return tuned(kernel, name, device, defaults.of(self.dtype, self.dim))

    def options(self, config: Config, scoring: ScoreParams, *, sinks: bool, split: bool) -> dict[str, float]:
        """Returns the compile-time arguments of every attention kernel."""
        scale = self.dim**-0.5 if scoring.scale is None else scoring.scale
        return {
            "SCALE": scale * LOG2_E,
            "SOFTCAP": scoring.softcap * LOG2_E,
            "SINKS": sinks,
            "SHARED": self.shared,
            "DIM": self.dim,
            "PADDED": power_of_two(self.dim),
            "BLOCK": self.block,
            "FORMAT": self.kv_format,
            "WINDOWED": scoring.window > 0,
            "SPLIT": split,
            "STAGES": config.stages,
            "COPIES": scale_copies(config),
            **config.options(),
        }


def checked(queries: Tensor, pool: Tensor, block_tables: Tensor, kv_lengths: Tensor, sinks: Tensor | None) -> HeadShape:
    """Checks the arguments that both kernels take, as their wrappers describe them, and returns their shape."""
    _, heads, dim = queries.shape
    if sinks is not None:
        assert sinks.shape == (heads,) and sinks.dtype == torch.float32 and sinks.is_contiguous()
    assert pool.is_contiguous() and queries.stride()[1:] == (dim, 1)
    assert block_tables.stride(1) == 1 and block_tables.shape[0] == kv_lengths.shape[0] and kv_lengths.is_contiguous()
    assert block_tables.dtype == kv_lengths.dtype == torch.int32
    return _head_shape(queries.dtype, heads, dim, pool.dtype, pool.shape)


@by_shape
def _head_shape(dtype: torch.dtype, heads: int, dim: int, pool_dtype: torch.dtype, pool: torch.Size) -> HeadShape:
    kv_heads, sides = pool[1:3]
    shared, rest = divmod(heads, kv_heads)
    kv_format = KV_FORMATS.get(pool_dtype, 0)
    block = block_of(pool, dim) if kv_format else pool[3]
    assert sides == 2 and not rest
    assert kv_format or (pool[4] == dim and pool_dtype == dtype)
    assert not unsupported(dtype, dim, block, shared)
    return HeadShape(dtype, kv_heads, shared, dim, block, kv_format)


def output_for(queries: Tensor, output: Tensor | None) -> Tensor:
    """Checks the `output` that a caller has given for `queries` `[tokens, heads, dim]`, or allocates one."""
    if output is None:
        return queries.new_empty(queries.shape)
    assert output.shape == queries.shape and output.dtype == queries.dtype and output.is_contiguous()
    return output


@triton.jit
def begin_rows(ROWS: tl.constexpr, WIDTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns (weighted, highest, total) before any key was seen."""
    highest = tl.full([ROWS], LOWEST_SCORE, tl.float32)
    return tl.zeros([ROWS, WIDTH], tl.float32), highest, tl.zeros([ROWS], tl.float32)


@triton.jit
def add_sinks(
    weighted: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    sinks: tl.tensor,
    query_head: tl.tensor,  # [ROWS] query heads
    valid: tl.tensor,  # [ROWS] whether the row is a query
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the virtual keys whose value is 0 to (weighted, highest, total) and returns them."""
    sink = tl.load(sinks + query_head, mask=valid, other=LOWEST_SCORE) * TO_BASE_2
    new_highest = tl.maximum(highest, sink)
    rescale = tl.exp2(highest - new_highest)
    return weighted * rescale[:, None], new_highest, total * rescale + tl.exp2(sink - new_highest)


@triton.jit
def attend_tiles(
    queries: tl.tensor,  # [ROWS, PADDED], zero beyond DIM; or with pairs [ROWS, PADDED / 2], the even dims
    odd_queries: tl.tensor,  # the same of odd dims; with pairs only
    unit: tl.tensor,  # factor of products of quantized keys; see `scaled_queries`
    weighted: tl.tensor,  # [ROWS, PADDED] fp32, or with pairs [ROWS, PADDED / 2] of even dims
    odd: tl.tensor,  # the same of odd dims; with pairs only
    highest: tl.tensor,  # [ROWS] fp32
    total: tl.tensor,  # [ROWS] fp32
    first: tl.tensor,  # the first position, a multiple of TILE
    end: tl.tensor,  # one past the last; a multiple of TILE too, unless MASKED
    query_positions: tl.tensor,  # [ROWS] positions of the queries, the last that each of them sees
    seen_until: tl.tensor,  # [ROWS] see multi_query.py; read where draft tokens branch
    tree_bits: tl.tensor,
    window: tl.tensor,
    pool: tl.tensor,  # address of the KV head's keys in block 0
    scales: tl.tensor,  # address of their scales
    block_stride: tl.tensor,
    table: tl.tensor,  # the sequence's blocks
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,  # whether some query does not see some position
    WINDOWED: tl.constexpr,
    TREES: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    PAIRS: tl.constexpr,
    COPIES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Adds the positions first … end - 1 to (weighted, odd, highest, total) and returns them."""
    PADDED: tl.constexpr = queries.shape[1] * (2 if PAIRS else 1)
    SIDE: tl.constexpr = BLOCK * DIM if FORMAT == 0 else BLOCK * (DIM + 2)  # from a key to its value
    # The remaining factor of scores: with a soft cap the scale is inside of the cap, and the scales of keys have it.
    FACTOR: tl.constexpr = 1.0 if SOFTCAP > 0.0 or FORMAT > 0 else SCALE
    KEY_UNIT: tl.constexpr = unit_of(FORMAT) * (1.0 if SOFTCAP > 0.0 else SCALE)
    VALUE: tl.constexpr = tl.float32 if queries.dtype == tl.float32 else tl.float16
    EACH: tl.constexpr = 2 if PAIRS else 1  # values of a loaded element
    WIDTH: tl.constexpr = DIM // EACH
    elements = tl.arange(0, PADDED // EACH)
    lanes = tl.arange(0, TILE)
    # A block has whole groups of 16 words.
    words_stride = tl.multiple_of(block_stride // 2, 16)
    memory, stride = pool, block_stride
    if PAIRS:
        memory, stride = scales - BLOCK * DIM // 2, words_stride
    # Looked up one tile ahead: a load whose address another load of the same round gives is pipelined less deeply.
    # Divided as unsigned numbers: that is a shift where the block size is a power of two.
    blocks = tl.load(table + (first + lanes).to(tl.uint32) // BLOCK, mask=first + lanes < end, other=0)
    for start in tl.range(first, end, TILE, num_stages=STAGES):
        positions = start + lanes
        # 64 bits: a pool can have more than 2^31 elements.
        block_offset = positions.to(tl.uint32) % BLOCK
        in_range = positions < end
        addresses = memory + (blocks.to(tl.int64) * stride + block_offset * WIDTH)[:, None] + elements[None, :]
        if MASKED or DIM < PADDED:
            is_element = in_range[:, None] & (elements < WIDTH)[None, :]
            keys = tl.load(addresses, mask=is_element, other=0.0)
            values = tl.load(addresses + SIDE // EACH, mask=is_element, other=0.0)
        else:
            keys = tl.load(addresses)
            values = tl.load(addresses + SIDE // EACH)
        if FORMAT > 0:
            key_scale_addresses = scales + blocks.to(tl.int64) * words_stride + block_offset
            key_scales, value_logs, inverses = scales_of_tile(
                key_scale_addresses, in_range, unit * KEY_UNIT, FORMAT, SIDE // 2, COPIES
            )
            if PAIRS:
                keys, odd_keys = halves_of_words(keys, FORMAT)
                values, odd_values = halves_of_words(values, FORMAT)
            else:
                keys, values = halves(keys, FORMAT).to(queries.dtype), halves(values, FORMAT).to(VALUE)
        next_positions = positions + TILE
        blocks = tl.load(table + next_positions.to(tl.uint32) // BLOCK, mask=next_positions < end, other=0)

        if TENSOR_CORES:
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            if PAIRS:
                scores = tl.dot(odd_queries, tl.trans(odd_keys), scores, input_precision="ieee")
        else:
            scores = tl.sum(queries[:, None, :].to(tl.float32) * keys[None, :, :].to(tl.float32), 2)
        if FORMAT > 0:
            scores *= key_scales[None, :]
        if SOFTCAP > 0.0:
            scores = SOFTCAP - 2.0 * SOFTCAP / (1.0 + tl.exp2(scores * (2.0 * SCALE / SOFTCAP * TO_BASE_2)))
        if FORMAT > 0:
            scores += value_logs[None, :]
        if MASKED:
            visible = (
                visible_in_tree(positions, seen_until, tree_bits)
                if TREES
                else positions[None, :] <= query_positions[:, None]
            )
            if WINDOWED:
                visible &= positions[None, :] > query_positions[:, None] - window
            scores = tl.where(visible, scores, float("-inf"))

        new_highest = tl.maximum(highest, tl.max(scores, 1) * FACTOR)
        rescale = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores * FACTOR - new_highest[:, None])
        highest = new_highest
        if FORMAT > 0:
            total = total * rescale + tl.sum(weights * inverses[None, :], 1)
        else:
            total = total * rescale + tl.sum(weights, 1)
        weighted = weighted * rescale[:, None]
        if TENSOR_CORES:
            rounded = weights.to(values.dtype)
            weighted = tl.dot(rounded, values, weighted, input_precision="ieee")
            if PAIRS:
                odd = tl.dot(rounded, odd_values, odd * rescale[:, None], input_precision="ieee")
        else:
            weighted += tl.sum(weights[:, :, None] * values[None, :, :].to(tl.float32), 1)
    return weighted, odd, highest, total
