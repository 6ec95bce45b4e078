"""Turns a plan into flat tensors: one row per token, sequences one after the other, chunks beside decodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import to_device
from engine.model.layers.adapted import StepAdapters
from engine.model.trees import TreeMasks, host_tree_masks
from engine.plan import NULL_BLOCK, PENDING_DRAFT, StepPlan, Work

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GroupTables:
    """Slots and block tables of a step in one KV group, int64 on the device."""

    slots: Tensor  # [tokens] block x block_size + offset of where each token's KV goes
    block_tables: Tensor  # [works, blocks] null blocks pad a work's table, and stand in positions outside a window
    fresh_blocks: Tensor  # [blocks] whose first token is written in this step


@dataclass(frozen=True)
class Batch:
    """Inputs of a step, int64 on the device; arrays on the host serve to choose shapes without a synchronization."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]; of a draft token that branches it is its depth's, of all others the place of their KV
    groups: tuple[GroupTables, ...]  # of each KV group
    query_start: Tensor  # [works] first row of each work
    logit_rows: Tensor  # [rows] ascending: rows that reach the head; each sampled work's last row, and
    # one row before it for each draft token
    query_lengths: Ints  # [works], on the host
    kv_lengths: Ints  # [works], on the host
    split: "RowSplit | None" = None  # of `logit_rows`; None: all are sampled
    adapters: StepAdapters | None = None  # None: no row has one
    trees: TreeMasks | None = None  # None: a row sees all KV of its sequence up to its own


@dataclass(frozen=True)
class RowSplit:
    """Separates rows to sample from and rows that are only scored, by their places among `logit_rows`."""

    sampled: Tensor  # [sampled rows] int64
    scored: Tensor  # [other rows] int64


@dataclass(frozen=True)
class Sampled:
    """Tokens of the previous step and draft tokens, still on the device, and the works that they belong to."""

    tokens: Tensor  # [samples]
    works: Sequence[Work]  # the sampled works, in order
    drafted: Mapping[int, Sequence[int]] = field(default_factory=dict)  # by sequence, places of draft tokens there


class BlockTables:
    """Keeps the block tables of a KV group as rows of an array: most works keep their row from step to step."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._rows: list[list[int]] = []  # contents of the array
        self._array: Ints = np.zeros((1, 1), dtype=np.int64)

    def of(self, works: Sequence[Work], counts: Sequence[int]) -> Ints:
        """Returns `[works, blocks]`, valid until the next call: each work's first `counts` blocks, then null blocks.

        Reserved blocks after the last token are arbitrary.
        """
        self._reserve(len(works), max(counts))
        rows = self._rows
        for row, (work, count) in enumerate(zip(works, counts, strict=True)):
            blocks = work.blocks[self._group]
            if len(blocks) != count:
                assert len(blocks) > count, "a block table shorter than its sequence"
                blocks = blocks[:count]
            row_blocks = rows[row]
            if blocks != row_blocks:
                first = first_difference(row_blocks, blocks)
                self._array[row, first:count] = blocks[first:]
                self._array[row, count : len(row_blocks)] = NULL_BLOCK
                rows[row] = blocks.copy()  # a sequence's own list grows
        return self._array[: len(works), : max(counts)]

    def _reserve(self, works: int, blocks: int) -> None:
        height, width = self._array.shape
        if works > height or blocks > width:
            larger: Ints = np.zeros((_capacity(works, height), _capacity(blocks, width)), dtype=np.int64)
            larger[:height, :width] = self._array
            self._array = larger
        self._rows += [[] for _ in range(len(self._array) - len(self._rows))]


def first_difference(left: list[int], right: list[int]) -> int:
    """Returns the length of the common prefix, by bisection, since Python compares lists quickly."""
    first, end = 0, min(len(left), len(right))
    while first < end:
        half = (first + end + 1) // 2
        if left[first:half] == right[first:half]:
            first = half
        else:
            end = half - 1
    return first


def block_tables(groups: int) -> tuple[BlockTables, ...]:
    return tuple(map(BlockTables, range(groups)))


def build_batch(
    plan: StepPlan,
    block_size: int,
    device: torch.device,
    before: Sampled | None,
    tables: Sequence[BlockTables] = (),
    adapters: Sequence[int] | None = None,
) -> Batch:
    """Copies a plan to `device` in one transfer; `PENDING_TOKEN`s are replaced by the tokens sampled in `before`.

    Successive batches share the same `tables`, one for each KV group. `adapters` are the works' slots, if any work has
    an adapter.
    """
    works = plan.works
    assert works, "a plan without work"
    lengths: Ints = np.array([len(work.token_ids) for work in works], dtype=np.int64)
    starts: Ints = np.array([work.start for work in works], dtype=np.int64)
    assert lengths.all(), "a work without tokens"
    kv_lengths = starts + lengths
    query_start = np.cumsum(lengths) - lengths
    token_ids: Ints = np.fromiter(chain.from_iterable([work.token_ids for work in works]), np.int64)
    if len(token_ids) == len(works):
        owners, kv_positions = query_start, starts
    else:
        owners = np.repeat(np.arange(len(works)), lengths)
        kv_positions = np.arange(len(token_ids)) + (starts - query_start)[owners]
    trees = host_tree_masks(works, kv_positions)
    counts = (-(-kv_lengths // block_size)).tolist()
    block, offset = np.divmod(kv_positions, block_size)
    pending, rows = pending_tokens(works, token_ids, owners, before)
    positions = kv_positions if trees is None else trees.positions
    shared = (token_ids, positions, query_start, *rows_of_logits(works, query_start, lengths), pending, rows)
    tree_arrays = () if trees is None else (trees.lasts, trees.bits)
    group_arrays: list[Ints] = []
    for tables_of_group in tables or block_tables(len(works[0].blocks)):
        rows_of_blocks = tables_of_group.of(works, counts)
        blocks = rows_of_blocks[owners, block]
        group_arrays += [blocks * block_size + offset, rows_of_blocks.reshape(-1), blocks[offset == 0]]
    on_device = _transfer([*shared, *group_arrays, *tree_arrays], device)
    ids, device_positions, first_rows, logit_rows, sampled, scored, to_replace, sources = on_device[: len(shared)]
    group_tensors = on_device[len(shared) : len(shared) + len(group_arrays)]
    if before is not None and len(pending):
        ids[to_replace] = before.tokens[sources]
    return Batch(
        token_ids=ids,
        positions=device_positions,
        groups=tuple(
            GroupTables(slots, table.view(len(works), -1), fresh)
            for slots, table, fresh in zip(group_tensors[::3], group_tensors[1::3], group_tensors[2::3], strict=True)
        ),
        query_start=first_rows,
        logit_rows=logit_rows,
        query_lengths=lengths,
        kv_lengths=kv_lengths,
        split=RowSplit(sampled, scored) if len(scored) else None,
        adapters=None if adapters is None else StepAdapters.of(np.array(adapters)[owners], shared[3]),
        trees=None if trees is None else TreeMasks(on_device[-2], on_device[-1], trees.deepest, trees.works),
    )


def rows_of_logits(works: Sequence[Work], query_start: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the rows that reach the head, in ascending order, and the indices there of sampled and of scored rows."""
    last = query_start + lengths - 1
    sampled: Ints = last[np.flatnonzero([work.sampling is not None for work in works])]
    drafts = [len(work.proposed) for work in works if work.sampling is not None]
    if any(drafts):
        ends = np.cumsum(drafts) + np.arange(len(drafts))  # of each work's rows, the index of the last
        sampled = np.repeat(sampled - ends, np.array(drafts) + 1) + np.arange(ends[-1] + 1)
    scored_prompts = [
        (first, work.prompt_rows) for first, work in zip(query_start, works, strict=True) if work.prompt_rows
    ]
    if not scored_prompts:
        return sampled, sampled[:0], sampled[:0]
    begins = [(first + each.first, len(each.targets)) for first, each in scored_prompts]
    scored = np.concatenate([np.arange(begin, begin + count) for begin, count in begins])
    rows = np.concatenate((sampled, scored))
    order = np.argsort(rows)
    indices = np.argsort(order)  # of each row in the ascending order
    return rows[order], indices[: len(sampled)], indices[len(sampled) :]


def pending_tokens(works: Sequence[Work], token_ids: Ints, owners: Ints, before: Sampled | None) -> tuple[Ints, Ints]:
    """Returns the indices of pending tokens, which become 0, and their indices among the tokens sampled `before`.

    `owners` are the works of `token_ids`.
    """
    pending: Ints = np.flatnonzero(token_ids < 0)
    if not len(pending):
        return pending, pending
    assert before is not None, "a pending token, but no step before it"
    index_by_sequence = sample_indices(before.works)
    rows: list[int] = []
    for owner in dict.fromkeys(owners[pending].tolist()):
        work = works[owner]
        if work.proposed and work.proposed[0] == PENDING_DRAFT:
            rows += before.drafted[work.sequence][: len(work.proposed)]
        else:
            assert work.sequence in index_by_sequence, "a pending token that no single sample of the step before is"
            rows.append(index_by_sequence[work.sequence])
    assert len(rows) == len(pending), "a pending token beside draft tokens"
    token_ids[pending] = 0
    return pending, np.array(rows, dtype=np.int64)


def sample_indices(works: Sequence[Work]) -> dict[int, int]:
    """Returns for each sequence with one sample its index among the step's tokens.

    The index of a sequence with drafts does not matter: it is planned once its tokens are known.
    """
    indices = {}
    index = 0
    for work in works:
        assert work.samples, "a work that is to be sampled, but no sample"
        if len(work.samples) == 1:
            indices[work.sequence] = index
        index += len(work.samples)
    return indices


def _capacity(needed: int, current: int) -> int:
    return current if needed <= current else 1 << (needed - 1).bit_length()


def _transfer(parts: Sequence[Ints], device: torch.device) -> list[Tensor]:
    packed: Any = to_device(np.concatenate(parts), device)
    return list(packed.split([len(part) for part in parts]))
