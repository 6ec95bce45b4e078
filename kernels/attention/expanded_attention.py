"""Computes causal attention of many queries to built keys and values of each head: ragged batches in one launch.

    softmax(scale (a_i b_j + r_i k_j) + mask) v_j

of a query's parts a_i and r_i, a head's keys b_j and values v_j, and rotated keys k_j that all heads share: multi-head
latent attention in its expanded form (DeepSeek-V2, 2024, https://arxiv.org/abs/2405.04434, section 2.1). Keys may be
wider than values. The shared part is read where the gathered vectors have it, so no key is ever put together.

Tiles are numbered through the batch, and keys are split, as in prefill_attention.py; the steps of the softmax are those
of attention_tiles.py. Tiles of one head run side by side, because they read the same keys.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_parts import MAX_SPLITS, join_parts, parts_of, split_count, store_part
from kernels.attention.attention_tiles import LOG2_E, LOWEST_SCORE
from kernels.attention.latent_tiles import MIN_TILE_VALUES
from kernels.attention.prefill_attention import work_of
from kernels.device import multiplies_by_groups, processors
from kernels.launching import launched_directly
from kernels.sizes import power_of_two
from kernels.tuning import Config, tuned

GROUP_CONFIG = Config({"ROWS": 128, "TILE": 64}, warps=8, stages=3)
REGISTER_CONFIG = Config({"ROWS": 128, "TILE": 32}, warps=8, stages=2)
FP32_CONFIG = Config({"ROWS": 32, "TILE": 16}, warps=8, stages=2)
"""The default configs: for devices whose products take their operands from shared memory, for others, and for fp32."""
CANDIDATE_CONFIGS = (
    GROUP_CONFIG,
    Config({"ROWS": 128, "TILE": 64}, warps=8, stages=2),
    Config({"ROWS": 64, "TILE": 64}, warps=4, stages=2),
    Config({"ROWS": 64, "TILE": 32}, warps=4, stages=2),
    REGISTER_CONFIG,
    FP32_CONFIG,
)


class ExpandedKV(NamedTuple):
    """Keys and values of a batch, built of the vectors of its works, one work after the other. Rows may be padding."""

    keys: Tensor  # [rows, heads, nope], contiguous
    values: Tensor  # [rows, heads, value], contiguous
    vectors: Tensor  # [rows, latent + rope], contiguous; the last `rope` numbers are the keys' shared part
    starts: Tensor  # [works] int32, the first row of each work
    lengths: Tensor  # [works] int32, rows of each work that are not padding


def expanded_attention(
    queries: Tensor,
    kv: ExpandedKV,
    query_start: Tensor,
    *,
    scale: float,
    longest: int,
    splits: int | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends from each query to the keys of its work up to its position.

    Query i of work w stands at position kv.lengths[w] - queries of w + i.

    Args:
        queries: `[tokens, heads, nope + rope]`, rotated, in the keys' format; rows may be strided.
        kv: keys and values of the works.
        query_start: `[works + 1]` int32, the rows of work w are query_start[w] … query_start[w + 1] - 1.
        scale: of scores.
        longest: a bound of the keys of one work.
        splits: equal parts that the keys of each tile are cut into; by default as many as the device has processors
            for.
        output: memory for the result; by default it is allocated.

    Returns `[tokens, heads, value]`, contiguous; zeros for a work of length 0, undefined from query_start[works] on.

    Example: 5 new tokens behind 32 stored ones, and a prompt of 3; 16 heads: queries `[8, 16, 192]`, keys and values
    `[64, 16, 128]`, vectors `[64, 576]`, starts `[0, 48]`, lengths `[37, 3]`, query_start `[0, 5, 8]`, longest 37.
    """
    tokens, heads, width = queries.shape
    works, nope, value = kv.lengths.shape[0], kv.keys.shape[2], kv.values.shape[2]
    rope = width - nope
    assert query_start.shape == (works + 1,) and kv.starts.shape == (works,)
    assert kv.keys.shape[:2] == kv.values.shape[:2] == (kv.vectors.shape[0], heads) and kv.vectors.shape[1] > rope > 0
    assert all(each.dtype == torch.int32 and each.is_contiguous() for each in (query_start, kv.starts, kv.lengths))
    assert all(each.dtype == queries.dtype and each.is_contiguous() for each in kv[:3])
    assert queries.stride()[1:] == (width, 1)
    if output is None:
        output = queries.new_empty((tokens, heads, value))
    assert output.shape == (tokens, heads, value) and output.dtype == queries.dtype and output.is_contiguous()
    if not tokens:
        return output
    default = GROUP_CONFIG if multiplies_by_groups(queries.device) else REGISTER_CONFIG
    name = f"{str(queries.dtype).removeprefix('torch.')},nope={nope},rope={rope},value={value}"
    config = config or tuned(
        "expanded_attention", name, queries.device, FP32_CONFIG if queries.dtype == torch.float32 else default
    )
    tiles = tokens // config.tiles["ROWS"] + works
    if splits is None:
        splits = split_count(heads * tiles, processors(queries.device), longest)
    assert 1 <= splits <= MAX_SPLITS
    parts, sums = parts_of(output, splits)
    _attend[(tiles, heads, splits)](
        queries,
        kv.keys,
        kv.values,
        kv.vectors,
        query_start,
        kv.starts,
        kv.lengths,
        parts,
        sums,
        tokens,
        queries.stride(0),
        works,
        SCALE=scale * LOG2_E,
        NOPE=nope,
        ROPE=rope,
        VALUE=value,
        LATENT=kv.vectors.shape[1] - rope,
        NOPE_TILE=max(MIN_TILE_VALUES, power_of_two(nope)),
        ROPE_TILE=max(MIN_TILE_VALUES, power_of_two(rope)),
        VALUE_TILE=max(MIN_TILE_VALUES, power_of_two(value)),
        SPLIT=splits > 1,
        STAGES=config.stages,
        **config.options(),
    )
    if splits > 1:
        join_parts(parts, sums, output)
    return output


# Arguments that change from batch to batch are not specialized: a new kernel would be compiled during a request.
@launched_directly
@triton.jit(
    do_not_specialize=["tokens", "works"],
    do_not_specialize_on_alignment=["query_start", "key_start", "kv_lengths"],
)
def _attend(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    vectors: tl.tensor,
    query_start: tl.tensor,
    key_start: tl.tensor,
    kv_lengths: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    tokens: tl.tensor,
    query_stride: tl.tensor,
    works: tl.tensor,
    SCALE: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    VALUE: tl.constexpr,
    LATENT: tl.constexpr,
    NOPE_TILE: tl.constexpr,
    ROPE_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the last see most
    head, heads = tl.program_id(1), tl.num_programs(1)
    work = work_of(tile, query_start, works, 1, ROWS)
    begin = tl.load(query_start + work)
    count = tl.load(query_start + work + 1) - begin
    first = (tile - begin // ROWS - work) * ROWS
    if first >= count:
        return

    length = tl.load(kv_lengths + work)
    row = first + tl.arange(0, ROWS)
    valid = row < count
    token = (begin + row).to(tl.int64)
    query_rows = queries + (token * query_stride + head * (NOPE + ROPE))[:, None]
    nope, rope = tl.arange(0, NOPE_TILE)[None, :], tl.arange(0, ROPE_TILE)[None, :]
    head_queries = _load_rows(query_rows, valid, nope, NOPE, True)
    shared_queries = _load_rows(query_rows + NOPE, valid, rope, ROPE, True)

    # Keys before `common` are visible to the tile's first and all later queries, keys from `end` on to none.
    low = length - count + first
    common = tl.maximum(low + 1, 0) // TILE * TILE
    lowest_key, end = 0, tl.minimum(low + ROWS, length)
    if SPLIT:
        each = tl.cdiv(tl.cdiv(end, TILE), tl.num_programs(2)) * TILE
        lowest_key += tl.program_id(2) * each
        end = tl.minimum(lowest_key + each, end)

    query_positions = length - count + row
    base = tl.load(key_start + work).to(tl.int64)
    weighted = tl.zeros([ROWS, VALUE_TILE], tl.float32)
    highest = tl.full([ROWS], LOWEST_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    lanes = tl.arange(0, TILE)
    value = tl.arange(0, VALUE_TILE)[None, :]
    for span in tl.static_range(2):  # visible to all queries, crossed by the diagonal
        if span == 0:
            begin_span, end_span = lowest_key, tl.minimum(common, end)
        else:
            begin_span, end_span = tl.maximum(lowest_key, common), end
        for start in tl.range(begin_span, end_span, TILE, num_stages=STAGES):
            positions = start + lanes
            # 64 bits for the tile, 32 for what is inside of it.
            key_row = base + start
            is_key = positions < end_span
            head_key_rows = keys + (key_row * heads + head) * NOPE + (lanes * heads * NOPE)[:, None]
            shared_key_rows = vectors + key_row * (LATENT + ROPE) + LATENT + (lanes * (LATENT + ROPE))[:, None]
            value_rows = values + (key_row * heads + head) * VALUE + (lanes * heads * VALUE)[:, None]
            head_keys = _load_rows(head_key_rows, is_key, nope, NOPE, span == 1)
            shared_keys = _load_rows(shared_key_rows, is_key, rope, ROPE, span == 1)
            head_values = _load_rows(value_rows, is_key, value, VALUE, span == 1)
            scores = tl.dot(head_queries, tl.trans(head_keys), input_precision="ieee")
            scores = tl.dot(shared_queries, tl.trans(shared_keys), scores, input_precision="ieee")
            if span == 1:
                scores = tl.where(positions[None, :] <= query_positions[:, None], scores, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(scores, 1) * SCALE)
            rescale = tl.exp2(highest - new_highest)
            weights = tl.exp2(scores * SCALE - new_highest[:, None])
            highest = new_highest
            total = total * rescale + tl.sum(weights, 1)
            weighted = weighted * rescale[:, None]
            weighted = tl.dot(weights.to(head_values.dtype), head_values, weighted, input_precision="ieee")
    index = (tl.program_id(2) * tokens + token) * heads + head
    store_part(parts, sums, index, valid, weighted, highest, total, VALUE, SPLIT)


@triton.jit
def _load_rows(
    rows: tl.tensor,  # [rows, 1] addresses of their first numbers
    valid: tl.tensor,  # [rows] which of them are read
    lanes: tl.tensor,  # [1, padded width]
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,  # whether `valid` may be False
) -> tl.tensor:
    """Loads rows `[rows, padded width]`, zero where they are not read."""
    PADDED: tl.constexpr = lanes.shape[1]
    if MASKED or WIDTH < PADDED:
        return tl.load(rows + lanes, mask=valid[:, None] & (lanes < WIDTH), other=0.0)
    else:
        return tl.load(rows + lanes)


def reference(queries: Tensor, kv: ExpandedKV, query_start: Tensor, *, scale: float) -> Tensor:
    """Computes the same with torch operators, one work after the other, in the queries' precision."""
    output = queries.new_zeros((*queries.shape[:2], kv.values.shape[2]))
    heads, width = queries.shape[1:]
    starts = query_start.tolist()
    for work, (begin, length) in enumerate(zip(kv.starts.tolist(), kv.lengths.tolist(), strict=True)):
        query_rows, key_rows = slice(starts[work], starts[work + 1]), slice(begin, begin + length)
        count = query_rows.stop - query_rows.start
        if not length or not count:
            continue
        shared = kv.vectors[key_rows, None, kv.keys.shape[2] - width :].expand(-1, heads, -1)
        scores = torch.einsum("qhd,khd->hqk", queries[query_rows], torch.cat((kv.keys[key_rows], shared), -1)) * scale
        key = torch.arange(length, device=queries.device)
        hidden = key > torch.arange(length - count, length, device=queries.device)[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output[query_rows] = torch.einsum("hqk,khd->qhd", weights, kv.values[key_rows])
    return output
