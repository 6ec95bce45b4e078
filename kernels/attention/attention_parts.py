"""Joins attention over parts of the keys, so that few queries of a long sequence can fill a device.

    o = sum_i w_i o_i / sum_i w_i                                 w_i = 2^(l_i - max_j l_j)

of parts with attention o_i and log-sum-exp l_i, base 2, of their scores (Dao et al., "Flash-Decoding for long-context
inference", 2023, https://pytorch.org/blog/flash-decoding/).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_tiles import LOWEST_SCORE
from kernels.attention.multi_query import MultiQuery
from kernels.launching import Launch, launched_directly, prepared
from kernels.shape_cache import by_shape
from kernels.sizes import power_of_two

MAX_SPLITS, FEW_SPLITS = 64, 8
"""The kernel that joins parts is compiled for these two maximum numbers of parts."""
MIN_PART_TOKENS = 512
"""Minimum tokens of a part: below, starting a program and storing its result cost too much beside its keys."""


def split_count(programs: int, capacity: int, longest: int) -> int:
    """Returns the number of parts that turns `programs` programs into the `capacity` programs that fill the device.

    Sequences have up to `longest` tokens.
    """
    return max(1, min(capacity // programs, longest // MIN_PART_TOKENS, MAX_SPLITS))


def parts_of(output: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Allocates memory for the parts of `output` `[tokens, heads, dim]`.

    Returns their attention `[splits, tokens, heads, dim]` and log-sum-exps `[splits, tokens, heads]`, both fp32.
    """
    if splits == 1:
        return output, output  # the only part is the result, and its log-sum-exp is not kept
    parts = output.new_empty((splits, *output.shape), dtype=torch.float32)
    return parts, output.new_empty(parts.shape[:-1], dtype=torch.float32)


@triton.jit
def store_part(
    parts: tl.tensor,
    sums: tl.tensor,
    part_row: tl.tensor,  # [ROWS] rows of `parts`
    valid: tl.tensor,  # [ROWS] whether the row is a query: other rows pad the tile
    weighted: tl.tensor,  # [ROWS, PADDED], as attend_tiles returns it
    highest: tl.tensor,  # [ROWS]
    total: tl.tensor,  # [ROWS]
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """Finishes the softmax of a tile's rows. A row that saw no key is zero, and has no share when parts are joined."""
    PADDED: tl.constexpr = weighted.shape[1]
    dims = tl.arange(0, PADDED)[None, :]
    divisor = tl.where(total == 0.0, 1.0, total)
    attended = (weighted / divisor[:, None]).to(parts.dtype.element_ty)
    tl.store(parts + part_row[:, None] * DIM + dims, attended, mask=valid[:, None] & (dims < DIM))
    if SPLIT:
        tl.store(sums + part_row, tl.where(total == 0.0, float("-inf"), highest + tl.log2(divisor)), mask=valid)


def join_parts(parts: Tensor, sums: Tensor, output: Tensor) -> None:
    """Joins the parts in `parts_of`'s memory into `output`. Parts without keys are not read.

    Args:
        parts: `[splits, tokens, heads, dim]` fp32, each part's attention.
        sums: `[splits, tokens, heads]` fp32, log-sum-exps of their scores, base 2; -infinity: the part has no share.
        output: `[tokens, heads, dim]`, contiguous; it is written.

    Example: parts `[8, 2, 32, 128]`, sums `[8, 2, 32]`, output `[2, 32, 128]`.
    """
    splits, tokens, heads, dim = parts.shape
    _join[(tokens * heads,)](
        parts,
        sums,
        output,
        splits,
        # Two kernels, not one for each number of splits: the next would be compiled while a request waits.
        SPLITS=FEW_SPLITS if splits <= FEW_SPLITS else MAX_SPLITS,
        DIM=dim,
        PADDED=power_of_two(dim),
        num_warps=_warps(dim),
    )


def _warps(dim: int) -> int:
    return 4 if dim <= 256 else 16


@launched_directly
@triton.jit(do_not_specialize=["splits"])
def _join(
    parts: tl.tensor,
    sums: tl.tensor,
    output: tl.tensor,
    splits: tl.tensor,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SPLITS)
    part_row = part * tl.num_programs(0).to(tl.int64) + row
    _store_joined(parts, sums, part_row, part < splits, output + row * DIM, DIM, PADDED)


@triton.jit
def _store_joined(
    parts: tl.tensor,
    sums: tl.tensor,
    part_row: tl.tensor,  # [SPLITS] rows of `parts` to join
    valid: tl.tensor,  # [SPLITS] whether there is such a part
    target: tl.tensor,  # where the result's first value goes
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    dims = tl.arange(0, PADDED)
    summed = tl.load(sums + part_row, mask=valid, other=float("-inf"))
    weights = tl.exp2(summed - tl.maximum(tl.max(summed, 0), LOWEST_SCORE))
    inside = (weights > 0.0)[:, None] & (dims < DIM)[None, :]
    attended = tl.load(parts + part_row[:, None] * DIM + dims[None, :], mask=inside, other=0.0)
    joined = tl.sum(attended * weights[:, None], 0) / tl.maximum(tl.sum(weights, 0), 1.0)
    tl.store(target + dims, joined.to(target.dtype.element_ty), mask=dims < DIM)


def join_splits(
    parts: Tensor, sums: Tensor, starts: Tensor, output: Tensor, multi_query: MultiQuery | None = None
) -> None:
    """Joins the parts of split sequences; results of the others are in `output` already.

    Args:
        parts: `[parts, heads, dim]` fp32, each part's attention; with `multi_query`,
            `[parts x max_queries, heads, dim]`.
        sums: `[parts, heads]` fp32, log-sum-exps of their scores, base 2; -infinity for a part without keys.
        starts: `[works + 1]` int32, the first part of each sequence; at most `MAX_SPLITS` each.
        output: `[works, heads, dim]`, or `[rows, heads, dim]`, contiguous; rows of split sequences are written.
        multi_query: the rows of each sequence; by default it has one.

    Example: parts `[9, 32, 128]`, sums `[9, 32]`, starts `[0, 1, 9]`, output `[2, 32, 128]`: the second is joined.
    """
    _, heads, dim = output.shape
    max_queries = 1 if multi_query is None else multi_query.max_queries
    launch = _joining(dim, multi_query is not None)
    launch(
        (heads, starts.shape[0] - 1, max_queries),
        parts,
        sums,
        starts,
        starts if multi_query is None else multi_query.starts,
        starts if multi_query is None else multi_query.counts,
        output,
    )


@by_shape
def _joining(dim: int, multi_query: bool) -> Launch:
    return prepared(
        _join_splits,
        MULTI_QUERY=multi_query,
        MAX_PARTS=MAX_SPLITS,
        DIM=dim,
        PADDED=power_of_two(dim),
        num_warps=_warps(dim),
    )


@launched_directly
@triton.jit(do_not_specialize_on_alignment=["starts", "row_starts", "row_counts"])
def _join_splits(
    parts: tl.tensor,
    sums: tl.tensor,
    starts: tl.tensor,
    row_starts: tl.tensor,
    row_counts: tl.tensor,
    output: tl.tensor,
    MULTI_QUERY: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    head, heads = tl.program_id(0), tl.num_programs(0)
    work = tl.program_id(1).to(tl.int64)
    begin, end = tl.load(starts + work), tl.load(starts + work + 1)
    if end - begin == 1:
        return
    row, query = work, tl.program_id(2)
    if MULTI_QUERY:
        if query >= tl.load(row_counts + work):
            return
        row = tl.load(row_starts + work).to(tl.int64) + query
    part = begin + tl.arange(0, MAX_PARTS)
    part_row = (part.to(tl.int64) * tl.num_programs(2) + query) * heads + head
    _store_joined(parts, sums, part_row, part < end, output + (row * heads + head) * DIM, DIM, PADDED)
