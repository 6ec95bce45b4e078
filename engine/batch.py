"""A plan as flat tensors: one row per token, sequences one after the other, chunks and decode steps side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kvspec import blocks_for
from engine.plan import PENDING, Plan, Work

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """The device's tensors are int64; what the host keeps is for choosing shapes without asking the device."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens] block x block_size + offset of where each token's KV goes
    query_start: Tensor  # [works] first row of each work
    block_tables: Tensor  # [works, blocks] the null block behind a work's own
    fresh_blocks: Tensor  # [blocks] whose first token is written in this step
    logit_rows: Tensor  # [sampled works] rows that reach the head
    sampled_works: tuple[int, ...]  # the works that those rows belong to
    query_lengths: Ints  # [works], on the host
    kv_lengths: Ints  # [works], on the host


@dataclass(frozen=True)
class Sampled:
    """The tokens of the step before, still on the device, and which of them a sequence goes on with."""

    tokens: Tensor  # [samples]
    rows: Mapping[int, int]  # sequence -> index into tokens; none for a sequence that had several samples


def build_batch(plan: Plan, block_size: int, device: torch.device, before: Sampled | None) -> Batch:
    """Copies a plan to `device` in one transfer; `PENDING` ids become what `before` sampled for the same sequence."""
    works = plan.works
    assert works, "a plan without work"
    lengths: Ints = np.array([len(work.token_ids) for work in works], dtype=np.int64)
    starts: Ints = np.array([work.start for work in works], dtype=np.int64)
    assert lengths.all(), "a work without tokens"
    kv_lengths = starts + lengths
    query_start = np.cumsum(lengths) - lengths
    tables = _block_tables(works, kv_lengths, block_size)
    owners = np.repeat(np.arange(len(works)), lengths)
    positions = np.arange(int(lengths.sum())) - query_start[owners] + starts[owners]
    blocks = tables[owners, positions // block_size]
    sampled = [index for index, work in enumerate(works) if work.sampling is not None]
    token_ids: Ints = np.fromiter((token for work in works for token in work.token_ids), np.int64, len(positions))
    pending, rows = _pending(works, token_ids, owners, before)
    parts = (
        token_ids,
        positions,
        blocks * block_size + positions % block_size,
        query_start,
        tables.reshape(-1),
        blocks[positions % block_size == 0],
        (query_start + lengths - 1)[sampled],
        pending,
        rows,
    )
    on_device = _transfer(parts, device)
    if before is not None and len(pending):
        on_device[0][on_device[7]] = before.tokens[on_device[8]]
    return Batch(
        token_ids=on_device[0],
        positions=on_device[1],
        slots=on_device[2],
        query_start=on_device[3],
        block_tables=on_device[4].view(tables.shape),
        fresh_blocks=on_device[5],
        logit_rows=on_device[6],
        sampled_works=tuple(sampled),
        query_lengths=lengths,
        kv_lengths=kv_lengths,
    )


def single_rows(plan: Plan, sampled_works: tuple[int, ...]) -> dict[int, int]:
    """Where each sequence that drew one sample finds it among the step's tokens."""
    rows: dict[int, int] = {}
    place = 0
    for work in (plan.works[index] for index in sampled_works):
        assert work.samples, "a work that is to be sampled, but no sample"
        if len(work.samples) == 1:
            rows[work.sequence] = place
        place += len(work.samples)
    return rows


def _block_tables(works: list[Work], kv_lengths: Ints, block_size: int) -> Ints:
    """`[works, blocks]`, only the blocks that hold tokens: what a sequence has reserved beyond may hold anything."""
    counts = [blocks_for(int(length), block_size) for length in kv_lengths]
    tables: Ints = np.zeros((len(works), max(counts)), dtype=np.int64)
    for row, (work, count) in enumerate(zip(works, counts, strict=True)):
        own = work.blocks[0]
        assert len(own) >= count, "a block table shorter than its sequence"
        tables[row, :count] = own[:count]
    return tables


def _pending(works: list[Work], token_ids: Ints, owners: Ints, before: Sampled | None) -> tuple[Ints, Ints]:
    """Indices of the pending tokens, and the rows of the step before that they stand for."""
    pending: Ints = np.flatnonzero(token_ids == PENDING)
    if not len(pending):
        return pending, pending
    assert before is not None, "a pending token, but no step before it"
    sequences = [works[owner].sequence for owner in owners[pending]]
    assert before.rows.keys() >= set(sequences), "a pending token that no single sample of the step before is"
    rows = [before.rows[sequence] for sequence in sequences]
    token_ids[pending] = 0
    return pending, np.array(rows, dtype=np.int64)


def _transfer(parts: tuple[Ints, ...], device: torch.device) -> list[Tensor]:
    """All parts in one copy; on CUDA from pinned memory, so that the host does not wait for the device."""
    packed: Any = torch.from_numpy(np.concatenate(parts))
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return list(packed.split([len(part) for part in parts]))
