"""Shared by the two decode kernels: the arguments of a launch, and how a program reads them.

A program computes one part of one sequence for a tile of query rows. Without a split plan (split_kv.py) each sequence
is one part; without `MultiQuery` (multi_query.py) it has one query. The kernels differ in their tiles only.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_parts import join_splits, store_part
from kernels.attention.multi_query import MultiQuery
from kernels.attention.split_kv import SplitPlan
from kernels.quantized.kv_bytes import views_of

UNALIGNED_ARGUMENTS = [
    "block_tables",
    "kv_lengths",
    "owners",
    "starts",
    "row_starts",
    "row_counts",
    "tree_mask",
]
"""Kernel arguments that are slices of one copy to the device, so they begin at any byte."""


class DecodeVariant(NamedTuple):
    """Which of the optional arguments a kernel is compiled for."""

    split: bool
    multi_query: bool
    trees: bool


class DecodeLaunch(NamedTuple):
    """Arguments that both decode kernels take, and the memory that parts of split sequences are joined from."""

    programs: int  # sequences, or parts of them
    arguments: tuple[Any, ...]  # in the order of the kernels' first parameters
    parts: Tensor
    sums: Tensor
    output: Tensor
    split: SplitPlan | None
    multi_query: MultiQuery | None
    variant: DecodeVariant

    def finish(self) -> None:
        if self.split is not None:
            join_splits(self.parts, self.sums, self.split.starts, self.output, self.multi_query)


def decode_launch(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    output: Tensor,
    multi_query: MultiQuery | None,
    split: SplitPlan | None,
) -> DecodeLaunch:
    """Checks and collects the arguments, which the wrappers describe.

    Tensors that a kernel does not read are replaced by others of the right type.
    """
    works = kv_lengths.shape[0]
    programs, parts, sums = works, output, output
    owners = starts = row_starts = row_counts = tree_mask = kv_lengths
    if multi_query is not None:
        row_starts, row_counts = multi_query.starts, multi_query.counts
        assert row_starts.shape == row_counts.shape == (works,) and row_starts.dtype == row_counts.dtype == torch.int32
        if multi_query.tree_mask is not None:
            tree_mask = multi_query.tree_mask
            assert tree_mask.shape == (3, queries.shape[0]) and tree_mask.stride(1) == 1
    max_queries = 1 if multi_query is None else multi_query.max_queries
    if split is not None:
        owners, starts = split.owners, split.starts
        assert owners.dtype == starts.dtype == torch.int32 and starts.shape == (works + 1,)
        assert owners.is_contiguous() and starts.is_contiguous()
        programs = owners.shape[0]
        parts = queries.new_empty((programs * max_queries, *output.shape[1:]), dtype=torch.float32)
        sums = parts.new_empty(parts.shape[:-1])
    memory, scales = views_of(pool)
    arguments = (
        *(queries, memory, scales, block_tables, kv_lengths, owners, starts, row_starts, row_counts, tree_mask),
        *(output, parts, sums, pool.stride(0), block_tables.stride(0), tree_mask.stride(0), max_queries),
    )
    variant = DecodeVariant(split is not None, multi_query is not None, tree_mask is not kv_lengths)
    return DecodeLaunch(programs, arguments, parts, sums, output, split, multi_query, variant)


@triton.jit
def part_of_program(
    owners: tl.tensor, starts: tl.tensor, program: tl.tensor, SPLIT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the sequence of a program's part, negative for none; the part's index, and the number of parts."""
    if SPLIT:
        work = tl.load(owners + program).to(tl.int64)
        known = tl.maximum(work, 0)
        begin = tl.load(starts + known)
        return work, program - begin, tl.load(starts + known + 1) - begin
    else:
        return program, 0, 1


@triton.jit
def queries_of_sequence(
    row_starts: tl.tensor, row_counts: tl.tensor, work: tl.tensor, MULTI_QUERY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the first row of a sequence's queries, and how many it has."""
    if MULTI_QUERY:
        return tl.load(row_starts + work).to(tl.int64), tl.load(row_counts + work)
    else:
        return work, 1


@triton.jit
def visible_to_queries(
    tree_mask: tl.tensor,
    mask_stride: tl.tensor,
    token: tl.tensor,  # [ROWS] rows of the batch
    query_positions: tl.tensor,  # [ROWS] positions of the queries, where drafts do not branch
    valid: tl.tensor,  # [ROWS] whether the row is a query
    TREES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the queries' positions, and the two parts of their tree mask, which is not read without trees."""
    if TREES:
        position = tl.load(tree_mask + token, mask=valid, other=0)
        last = tl.load(tree_mask + mask_stride + token, mask=valid, other=0)
        return position, last, tl.load(tree_mask + 2 * mask_stride + token, mask=valid, other=0)
    else:
        return query_positions, query_positions, query_positions


@triton.jit
def store_decoded(
    output: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    output_row: tl.tensor,  # [ROWS] rows of the output
    part_row: tl.tensor,  # [ROWS] rows of the parts
    count: tl.tensor,  # parts of the sequence
    valid: tl.tensor,  # [ROWS] whether the row is a query
    weighted: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    DIM: tl.constexpr,
) -> None:
    """Stores a part of a split sequence, or the result of a whole one. A part without keys has no share."""
    if count > 1:
        store_part(parts, sums, part_row, valid, weighted, highest, total, DIM, True)
    else:
        store_part(output, sums, output_row, valid, weighted, highest, total, DIM, False)
