"""Keeps the inputs of a decode step at fixed addresses on the device, where a recorded step reads them.

A step has one row for each sequence, or one more than the maximum of draft tokens; unused rows of a sequence are
padding. Tokens, positions, slots, lengths and the split-KV plan, which depends on the lengths, are copied at once from
pinned memory. A sequence keeps its row, and thus its block table on the device, from step to step. Rows are therefore
not in the order of a step's works; that order is copied too. Rows after the last sequence are *null sequences*: their
KV is not stored, and they attend to nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import to_device
from engine.model.batch import Ints, Sampled, first_difference, pending_tokens
from engine.model.trees import host_tree_masks
from engine.plan import Work

TOKEN, POSITION, LAST, BITS, KV_LENGTH, COUNT, SOURCE, ORDER, ADAPTER, SLOT = range(10)
NOT_PENDING = -1
"""Source of a token that the host knows, instead of an index into the previous step's tokens."""
PADDING_SLOT = -1
PLAN_WORDS_PER_INT64 = 2
"""Plan words (int32) in one int64 of the shared buffer."""
IDLE_PLAN_WORD = -1
"""Word of an empty plan."""
Words = NDArray[np.int32]


class DecodeInputs:
    """Inputs of up to `rows` sequences of up to `width` blocks and up to `each` tokens in a step.

    Per-token fields have `each` neighbouring entries for a sequence, per-sequence fields (length, count) one.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        block_size: int,
        device: torch.device,
        in_flight: int,
        groups: int,
        plan: Callable[[Ints], Words] = lambda lengths: np.empty(0, np.int32),
        each: int = 1,
    ) -> None:
        """At most `in_flight` steps are launched and not collected; each has its own buffer on the host.

        In each of the KV `groups` a sequence has a slot and a block table. `plan` makes the split-KV plan from the
        rows' lengths: as many words for each call with as many rows.
        """
        self._block_size = block_size
        self._each = each
        self._plan = plan
        self._rows = DecodeRows()
        self._tables = DeviceTables(groups, rows, width, device)
        self._null_sequence = np.array([*[[0]] * SOURCE, [NOT_PENDING], [0], [0], *[[PADDING_SLOT]] * groups])
        self._previous = torch.zeros(rows * each, dtype=torch.int64, device=device)  # tokens of the previous step
        fields = self._null_sequence.size * rows * each
        size = fields + -(-len(plan(np.zeros(rows, np.int64))) // PLAN_WORDS_PER_INT64)
        first = torch.full((size,), IDLE_PLAN_WORD, dtype=torch.int64)
        first[:fields] = torch.from_numpy(self._null_sequence).repeat(1, rows * each).flatten()
        self._sent = first.to(device)
        self._fields = self._sent[:fields].view(-1, rows * each)
        self._planned = self._sent[fields:].view(torch.int32)
        pinned = device.type == "cuda"
        self._host = [torch.zeros(size, dtype=torch.int64, pin_memory=pinned) for _ in range(in_flight)]
        self._steps = 0

    def fill(
        self, works: Sequence[Work], rows: int, before: Sampled | None, adapters: Sequence[int] | None = None
    ) -> None:
        """Sends the inputs of `works`, and of null sequences up to `rows`; `adapters` are slots."""
        staging = self._host[self._steps % len(self._host)]
        self._steps += 1
        host: Ints = staging.numpy()
        fields = host[: self._fields.numel()].reshape(self._fields.shape)
        fields[:, : rows * self._each] = self._null_sequence
        sequences = np.array(self._rows.of([work.sequence for work in works]))
        counts = np.array([len(work.token_ids) for work in works])
        starts = np.array([work.start for work in works])
        owners = np.repeat(np.arange(len(works)), counts)
        steps = np.arange(len(owners)) - np.repeat(counts.cumsum() - counts, counts)  # index of each token in its work
        own, positions = (sequences * self._each)[owners] + steps, starts[owners] + steps
        places, offsets = positions // self._block_size, positions % self._block_size
        tree = host_tree_masks(works, positions)
        fields[[POSITION, LAST], own[:, None]] = positions[:, None]
        if tree is not None:
            fields[POSITION, own], fields[LAST, own], fields[BITS, own] = tree.positions, tree.lasts, tree.bits
        for group in range(len(fields) - SLOT):
            both = zip(owners.tolist(), places.tolist(), strict=True)
            blocks = [works[owner].blocks[group][place] for owner, place in both]
            fields[SLOT + group, own] = np.array(blocks) * self._block_size + offsets
        fields[KV_LENGTH, sequences], fields[COUNT, sequences] = starts + counts, counts
        fields[TOKEN, own], fields[SOURCE, own] = self._find_tokens(works, owners, before)
        fields[ORDER, : len(own)] = own
        if adapters is not None:
            fields[ADAPTER, own] = np.array(adapters)[owners]
        planned = self._plan(fields[KV_LENGTH, :rows])
        host[fields.size :].view(np.int32)[: len(planned)] = planned
        self._sent.copy_(staging, non_blocking=True)
        self._tables.update(sequences.tolist(), [work.blocks for work in works])

    def _find_tokens(self, works: Sequence[Work], owners: Ints, before: Sampled | None) -> tuple[Ints, Ints]:
        """Returns the works' tokens, 0 if pending, and the indices of pending tokens in the previous step."""
        tokens = np.array([token for work in works for token in work.token_ids])
        sources = np.full_like(tokens, NOT_PENDING)
        pending, rows = pending_tokens(works, tokens, owners, before)
        if before is not None and len(pending):
            sources[pending] = put_previous(self._previous, before.tokens, rows)
        return tokens, sources

    def token_ids(self, rows: int) -> Tensor:
        """Returns `[rows]` int64."""
        return known_tokens(self._fields[TOKEN, :rows], self._fields[SOURCE, :rows], self._previous)

    def positions(self, rows: int) -> Tensor:
        """Returns `[rows]` int64."""
        return self._fields[POSITION, :rows]

    def tree_mask(self, rows: int) -> Tensor:
        """Returns `[3, rows]` int64, the mask of draft tokens that may form trees."""
        return self._fields[POSITION : BITS + 1, :rows]

    def slots(self, rows: int, group: int) -> Tensor:
        """Returns `[rows]` int64, `PADDING_SLOT` for null sequences."""
        return self._fields[SLOT + group, :rows]

    def kv_lengths(self, sequences: int) -> Tensor:
        """Returns `[sequences]` int32, 0 for null sequences."""
        return self._fields[KV_LENGTH, :sequences].int()

    def counts(self, sequences: int) -> Tensor:
        """Returns `[sequences]` int32, the tokens of each, 0 for null sequences."""
        return self._fields[COUNT, :sequences].int()

    def planned(self, words: int) -> Tensor:
        """Returns `[words]` int32, the plan; before the first step, `IDLE_PLAN_WORD`."""
        return self._planned[:words]

    def order(self, rows: int) -> Tensor:
        """Returns `[rows]` int64: the rows of the step's works, in their order; then 0."""
        return self._fields[ORDER, :rows]

    def adapters(self, rows: int) -> Tensor:
        """Returns `[rows]` int64, the slot of each row's adapter, 0 for none."""
        return self._fields[ADAPTER, :rows]

    def block_tables(self, sequences: int, group: int) -> Tensor:
        """Returns `[sequences, width]` int32."""
        return self._tables.tensor[group, :sequences]


def put_previous(room: Tensor, tokens: Tensor, rows: Ints) -> Ints:
    """Copies the tokens at `rows` to a fixed place on the device, and returns where they are there."""
    if len(tokens) <= len(room):
        room[: len(tokens)].copy_(tokens)
        return rows
    room[: len(rows)].copy_(tokens[to_device(rows, tokens.device)])
    return np.arange(len(rows))


def known_tokens(tokens: Tensor, sources: Tensor, previous: Tensor) -> Tensor:
    """Returns `tokens`, pending ones by their `sources` in `previous`, whose tokens only the device knows."""
    return torch.where(sources == NOT_PENDING, tokens, previous[sources.clamp(min=0)])


class DecodeRows:
    """Assigns each sequence a row of the decode step, which it keeps, so that its data on the device stays valid.

    Rows are numbered from 0 without gaps: if a sequence leaves, a new sequence or the last one takes its row.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}  # by sequence of the previous step

    def of(self, sequences: Sequence[int]) -> list[int]:
        """Returns the row of each sequence of a step. A sequence whose old row is below their number keeps it."""
        count = len(sequences)
        rows = {sequence: row for sequence in sequences if (row := self._rows.get(sequence, count)) < count}
        if len(rows) < count:
            free = iter(sorted({*range(count)} - {*rows.values()}))
            rows |= {sequence: next(free) for sequence in sequences if sequence not in rows}
        self._rows = rows
        return [rows[sequence] for sequence in sequences]


class DeviceTables:
    """Keeps block tables at a fixed address on the device, and copies only changes since the previous step.

    The `tensor` is `[groups, rows, width]` int32. Entries after a row's own blocks are stale and never read.
    """

    def __init__(self, groups: int, rows: int, width: int, device: torch.device) -> None:
        self.tensor: Tensor = torch.zeros((groups, rows, width), dtype=torch.int32, device=device)
        self._width = width
        self._rows: list[list[list[int]]] = [[[] for _ in range(rows)] for _ in range(groups)]  # contents of the tensor

    def update(self, rows: Sequence[int], tables: Sequence[Sequence[list[int]]]) -> None:
        """Makes row `rows[i]` of group g table `tables[i][g]`.

        Most tables are unchanged, have grown, or have lost a block at the start of the window.
        """
        places: list[Ints] = []
        blocks: list[Ints] = []
        for group, held in enumerate(self._rows):
            for row, of_groups in zip(rows, tables, strict=True):
                known, own = held[row], of_groups[group]
                if own == known:
                    continue
                assert len(own) <= self._width, "a block table longer than the longest text's"
                first, begin = first_difference(known, own), (group * len(held) + row) * self._width
                places.append(np.arange(begin + first, begin + len(own)))
                blocks.append(np.array(own[first:], np.int64))
                held[row] = own.copy()  # a sequence's own list grows
        if places:
            index, values = to_device(np.stack((np.concatenate(places), np.concatenate(blocks))), self.tensor.device)
            self.tensor.view(-1).index_copy_(0, index, values.int())
