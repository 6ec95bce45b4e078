"""Shared by the two kernels of latent attention: online softmax over tiles of latent vectors, and checks.

    s_j = scale (q c_j + r k_j)                    o = sum_j softmax(s)_j c_j

of a query's part q for latent vectors c_j and its part r for rotated keys k_j. It is attention of many heads to one
vector of each token, `[c | k]`, whose first part is its value as well: multi-head latent attention in its absorbed form
(DeepSeek-V2, 2024, https://arxiv.org/abs/2405.04434, section 2.1). A tile of vectors is read once, for both products of
all rows of a tile of queries. The steps of the softmax are those of attention_tiles.py.

One layer of the pool is `[blocks, 1, block, latent + rope]`, or bytes with two scales for each token
(quantized/kv_bytes.py): the scale of c multiplies its part of the score, and the share that its product takes; that of
k multiplies the other part.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_tiles import LOG2_E
from kernels.attention.multi_query import visible_in_tree
from kernels.device import is_hopper
from kernels.quantized.kv_bytes import KV_FORMATS, block_of, dequantized, scales_at
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

MIN_TILE_VALUES, MAX_LATENT, MAX_ROPE = 16, 512, 128
"""Sizes of the two parts of a tile: the minimum of the tensor cores, and maxima that fit the registers."""
WARP_GROUP_CONFIG = Config({"ROWS": 64, "TILE": 32}, warps=8, stages=2)
REGISTER_CONFIG = Config({"ROWS": 16, "TILE": 32}, warps=4, stages=2)
QUANTIZED_CONFIG = Config({"ROWS": 16, "TILE": 32}, warps=8, stages=2)
FP32_CONFIG = Config({"ROWS": 16, "TILE": 16}, warps=8, stages=1)
"""The default configs: on Hopper, on other devices or for few heads, for quantized pools, and for fp32. On Blackwell
larger tiles spill registers."""
CANDIDATE_CONFIGS = (
    WARP_GROUP_CONFIG,
    Config({"ROWS": 64, "TILE": 64}, warps=8, stages=2),
    Config({"ROWS": 32, "TILE": 32}, warps=8, stages=2),
    Config({"ROWS": 16, "TILE": 64}, warps=4, stages=2),
    REGISTER_CONFIG,
    QUANTIZED_CONFIG,
    FP32_CONFIG,
)


def unsupported(dtype: torch.dtype, latent: int, rope: int, block: int) -> str:
    """Returns one sentence that says why vectors of these sizes cannot be attended to; empty if supported."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"latent attention supports fp32, fp16 and bf16, not {str(dtype).removeprefix('torch.')}"
    if latent > MAX_LATENT or rope > MAX_ROPE:
        return f"latent attention supports up to {MAX_LATENT} + {MAX_ROPE} numbers, not {latent} + {rope}"
    if block < 8 or block % 8:
        return f"attention supports block sizes that are multiples of 8, not {block}"
    return ""


def programs_of(heads: int) -> int:
    """Returns the weight of one part of a sequence in programs: a program fills at least half of a processor."""
    return 2 * tile_count(heads, WARP_GROUP_CONFIG.tiles["ROWS"])


class LatentShape(NamedTuple):
    """Launch parameters that follow from a layer of the pool and its queries."""

    dtype: torch.dtype  # of queries, and of vectors as they are multiplied
    heads: int
    latent: int
    rope: int
    block: int
    kv_format: int = 0  # of the pool's bytes; 0: it has numbers in `dtype`

    def config(self, kernel: str, device: torch.device) -> Config:
        """Returns the tuned config for this shape and device, or a default."""
        default = (
            WARP_GROUP_CONFIG if is_hopper(device) and self.heads > REGISTER_CONFIG.tiles["ROWS"] else REGISTER_CONFIG
        )
        default = QUANTIZED_CONFIG if self.kv_format else default
        name = f"{str(self.dtype).removeprefix('torch.')},heads={self.heads},latent={self.latent}"
        return tuned(kernel, name, device, FP32_CONFIG if self.dtype == torch.float32 else default)

    def options(self, config: Config, scale: float, *, split: bool) -> dict[str, float]:
        """Returns the compile-time arguments of both kernels."""
        return {
            "SCALE": scale * LOG2_E,
            "HEADS": self.heads,
            "LATENT": self.latent,
            "ROPE": self.rope,
            "LATENT_TILE": max(MIN_TILE_VALUES, power_of_two(self.latent)),
            "ROPE_TILE": max(MIN_TILE_VALUES, power_of_two(self.rope)),
            "BLOCK": self.block,
            "FORMAT": self.kv_format,
            "SPLIT": split,
            "STAGES": config.stages,
            **config.options(),
        }


def checked(queries: Tensor, pool: Tensor, block_tables: Tensor, kv_lengths: Tensor, latent: int) -> LatentShape:
    """Checks the arguments that both kernels take, as their wrappers describe them, and returns their shape."""
    _, heads, width = queries.shape
    kv_format = KV_FORMATS.get(pool.dtype, 0)
    block = block_of(pool.shape, latent, width - latent) if kv_format else pool.shape[2]
    assert pool.shape[1] == 1 and pool.is_contiguous()
    assert kv_format or (pool.shape[3] == width and pool.dtype == queries.dtype)
    assert not unsupported(queries.dtype, latent, width - latent, block)
    assert queries.is_contiguous()
    assert block_tables.stride(1) == 1 and len(block_tables) == len(kv_lengths) and kv_lengths.is_contiguous()
    assert block_tables.dtype == kv_lengths.dtype == torch.int32
    return LatentShape(queries.dtype, heads, latent, width - latent, block, kv_format)


@triton.jit
def load_queries(
    queries: tl.tensor,
    row: tl.tensor,  # [ROWS] rows of `queries`, one for each query and head
    valid: tl.tensor,  # [ROWS] whether the row is a query: other rows pad the tile
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT_TILE: tl.constexpr,
    ROPE_TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns both parts of queries, `[ROWS, LATENT_TILE]` and `[ROWS, ROPE_TILE]`, zero where there are none."""
    addresses = queries + (row * (LATENT + ROPE))[:, None]
    latent = tl.arange(0, LATENT_TILE)[None, :]
    rope = tl.arange(0, ROPE_TILE)[None, :]
    first = tl.load(addresses + latent, mask=valid[:, None] & (latent < LATENT), other=0.0)
    second = tl.load(addresses + LATENT + rope, mask=valid[:, None] & (rope < ROPE), other=0.0)
    return first, second


@triton.jit
def attend_latents(
    first_part: tl.tensor,  # [ROWS, LATENT_TILE]
    second_part: tl.tensor,  # [ROWS, ROPE_TILE]
    weighted: tl.tensor,  # [ROWS, LATENT_TILE] fp32
    highest: tl.tensor,  # [ROWS] fp32
    total: tl.tensor,  # [ROWS] fp32
    first: tl.tensor,  # the first position, a multiple of TILE
    end: tl.tensor,  # one past the last
    query_positions: tl.tensor,  # [ROWS] positions of the queries, the last that each of them sees
    seen_until: tl.tensor,  # [ROWS] see multi_query.py; read where draft tokens branch
    tree_bits: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    block_stride: tl.tensor,
    table: tl.tensor,  # the sequence's blocks
    SCALE: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    TREES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the positions first … end - 1 to (weighted, highest, total) and returns them."""
    LATENT_TILE: tl.constexpr = first_part.shape[1]
    ROPE_TILE: tl.constexpr = second_part.shape[1]
    latent = tl.arange(0, LATENT_TILE)[None, :]
    rope = tl.arange(0, ROPE_TILE)[None, :]
    lanes = tl.arange(0, TILE)
    # Triton has each warp group compute all scores if another product follows from them without a branch between. Two
    # groups share 64 rows: scores are scaled before they are added up, and masked behind a branch.
    TWO_GROUPS: tl.constexpr = first_part.shape[0] >= 64
    FACTOR: tl.constexpr = 1.0 if TWO_GROUPS and FORMAT == 0 else SCALE
    common = tl.min(seen_until if TREES else query_positions) + 1  # all rows see the positions before
    # Looked up one tile ahead, as in attention_tiles.py.
    blocks = tl.load(table + (first + lanes).to(tl.uint32) // BLOCK, mask=first + lanes < end, other=0)
    for start in tl.range(first, end, TILE, num_stages=STAGES):
        positions = start + lanes
        # 64 bits: a pool can have more than 2^31 elements.
        rows = blocks.to(tl.int64) * block_stride + positions.to(tl.uint32) % BLOCK * (LATENT + ROPE)
        addresses = pool + rows[:, None]
        in_range = (positions < end)[:, None]
        vectors = tl.load(addresses + latent, mask=in_range & (latent < LATENT), other=0.0)
        keys = tl.load(addresses + LATENT + rope, mask=in_range & (rope < ROPE), other=0.0)
        if FORMAT > 0:
            token_scales = scales + blocks.to(tl.int64) * (block_stride // 2) + positions.to(tl.uint32) % BLOCK
            vector_scales = scales_at(token_scales + BLOCK * (LATENT + ROPE) // 2, positions < end, FORMAT)
            key_scales = scales_at(token_scales + BLOCK * (LATENT + ROPE) // 2 + BLOCK, positions < end, FORMAT)
            vectors, keys = dequantized(vectors, first_part, FORMAT), dequantized(keys, first_part, FORMAT)
        next_positions = positions + TILE
        blocks = tl.load(table + next_positions.to(tl.uint32) // BLOCK, mask=next_positions < end, other=0)

        scores = tl.dot(first_part, tl.trans(vectors), input_precision="ieee")
        if FORMAT > 0:
            scores *= vector_scales[None, :]
            scores += tl.dot(second_part, tl.trans(keys), input_precision="ieee") * key_scales[None, :]
        elif TWO_GROUPS:
            scores = scores * SCALE + tl.dot(second_part, tl.trans(keys), input_precision="ieee") * SCALE
        else:
            scores = tl.dot(second_part, tl.trans(keys), scores, input_precision="ieee")
        if not TWO_GROUPS or start + TILE > common:
            visible = (
                visible_in_tree(positions, seen_until, tree_bits)
                if TREES
                else positions[None, :] <= query_positions[:, None]
            )
            scores = tl.where(visible, scores, float("-inf"))

        new_highest = tl.maximum(highest, tl.max(scores, 1) * FACTOR)
        rescale = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores * FACTOR - new_highest[:, None])
        highest = new_highest
        total = total * rescale + tl.sum(weights, 1)
        weighted = weighted * rescale[:, None]
        if FORMAT > 0:
            if vectors.dtype == tl.float16:  # which has no room for small shares of small scales
                vectors = (vectors.to(tl.float32) * vector_scales[:, None]).to(vectors.dtype)
            else:
                weights *= vector_scales[None, :]
        weighted = tl.dot(weights.to(vectors.dtype), vectors, weighted, input_precision="ieee")
    return weighted, highest, total
