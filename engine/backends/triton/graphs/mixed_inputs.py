"""Keeps the inputs of a mixed step at fixed addresses on the device, where a recorded step reads them.

A mixed step has decodes, of a token each and its draft tokens, then chunks of prompts. Its rows are its tokens, work
after work, and padding behind them. Everything but block tables is copied at once from pinned memory. To prefill
attention, which takes all rows, the decodes together are the first work, and padding is the last: works without KV,
whose attention is zero.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine.backends.triton.graphs.decode_inputs import (
    IDLE_PLAN_WORD,
    NOT_PENDING,
    PADDING_SLOT,
    PLAN_WORDS_PER_INT64,
    DecodeRows,
    DeviceTables,
    Words,
    known_tokens,
    put_previous,
)
from engine.model.batch import Ints, Sampled, pending_tokens, rows_of_logits
from engine.plan import Work

TOKEN, POSITION, SOURCE, ADAPTER, LOGIT_ROW, SLOT = range(6)
"""Fields of a row; from `SLOT` on, its slot in each KV group."""
KV_LENGTH, ROW, COUNT = range(3)
"""Fields of a decode."""
MAX_CHUNKS = 8
WORKS_BESIDE_CHUNKS = 2
"""Works of prefill attention beside the chunks: the decodes, and padding."""


class MixedInputs:
    """Inputs of up to `rows` tokens: of up to `decodes` sequences, and of up to `MAX_CHUNKS` chunks."""

    def __init__(
        self,
        rows: int,
        decodes: int,
        width: int,
        block_size: int,
        device: torch.device,
        in_flight: int,
        groups: int,
        plan: Callable[[Ints], Words],
        per_sequence: int = 1,
    ) -> None:
        """`width` is the blocks of the longest text; `in_flight` and `plan` are as in `DecodeInputs`.

        A decode has up to `each` tokens.
        """
        self.decodes = decodes
        self.per_sequence = per_sequence
        self._rows = rows
        self._block_size = block_size
        self._plan = plan
        self._rows_of_sequences = DecodeRows()
        self._tables = DeviceTables(groups, decodes + MAX_CHUNKS + WORKS_BESIDE_CHUNKS, width, device)
        self._previous = torch.zeros(max(rows, decodes + MAX_CHUNKS), dtype=torch.int64, device=device)
        padding = [0, 0, NOT_PENDING, 0, 0, *[PADDING_SLOT] * groups]
        self._padding: Ints = np.array(padding, np.int64)[:, None]
        sizes = [
            len(padding) * rows,
            3 * decodes,
            MAX_CHUNKS + WORKS_BESIDE_CHUNKS + 1,
            MAX_CHUNKS + WORKS_BESIDE_CHUNKS,
        ]
        sizes.append(-(-len(plan(np.zeros(decodes, np.int64))) // PLAN_WORDS_PER_INT64))
        self._sizes = sizes
        first = torch.zeros(sum(sizes), dtype=torch.int64)
        self._parts(first.numpy())[0][:] = self._padding
        first[sum(sizes[:-1]) :] = IDLE_PLAN_WORD
        self._sent = first.to(device)
        parts: list[Tensor] = list(self._sent.split(sizes))
        self._fields, self._of_decodes = parts[0].view(-1, rows), parts[1].view(3, -1)
        self._starts, self._lengths, self._planned = parts[2], parts[3], parts[4].view(torch.int32)
        pinned = device.type == "cuda"
        self._host = [torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=pinned) for _ in range(in_flight)]
        self._steps = 0

    def _parts(self, host: Ints) -> tuple[Ints, Ints, Ints, Ints, Words]:
        fields, of_decodes, starts, lengths, planned = np.split(host, np.cumsum(self._sizes[:-1]))
        return fields.reshape(-1, self._rows), of_decodes.reshape(3, -1), starts, lengths, planned.view(np.int32)

    def fill(
        self,
        works: Sequence[Work],
        decodes: int,
        rows: int,
        before: Sampled | None,
        adapters: Sequence[int] | None = None,
    ) -> int:
        """Sends the inputs of `works`, the first `decodes` of which are decodes, and of padding up to `rows`.

        `adapters` are slots. Returns how many rows reach the head.
        """
        staging = self._host[self._steps % len(self._host)]
        self._steps += 1
        fields, of_decodes, device_starts, device_lengths, planned = self._parts(staging.numpy())
        counts = np.array([len(work.token_ids) for work in works])
        starts = np.array([work.start for work in works])
        first_rows = counts.cumsum() - counts
        owners = np.repeat(np.arange(len(works)), counts)
        tokens = np.fromiter(chain.from_iterable([work.token_ids for work in works]), np.int64)
        count = len(tokens)
        positions = np.arange(count) + (starts - first_rows)[owners]
        sources, source_rows = pending_tokens(works, tokens, owners, before)
        fields[:, :rows] = self._padding
        fields[TOKEN, :count], fields[POSITION, :count] = tokens, positions
        if before is not None and len(sources):
            fields[SOURCE, sources] = put_previous(self._previous, before.tokens, source_rows)
        if adapters is not None:
            fields[ADAPTER, :count] = np.array(adapters)[owners]
        logit_rows = rows_of_logits(works, first_rows, counts)[0]
        fields[LOGIT_ROW, : len(logit_rows)] = logit_rows
        places, offsets = np.divmod(positions, self._block_size)
        for group in range(len(fields) - SLOT):
            blocks = [
                np.array(work.blocks[group])[place]
                for work, place in zip(works, np.split(places, first_rows[1:]), strict=True)
            ]
            fields[SLOT + group, :count] = np.concatenate(blocks) * self._block_size + offsets
        decode_rows = np.array(self._rows_of_sequences.of([work.sequence for work in works[:decodes]]), np.int64)
        of_decodes[:] = 0
        of_decodes[KV_LENGTH, decode_rows], of_decodes[ROW, decode_rows] = (
            (starts + counts)[:decodes],
            first_rows[:decodes],
        )
        of_decodes[COUNT, decode_rows] = counts[:decodes]
        chunks = len(works) - decodes
        device_starts[0], device_starts[1:] = 0, count
        device_starts[1 : 1 + chunks], device_starts[-1] = first_rows[decodes:], rows
        device_lengths[:] = 0
        device_lengths[1 : 1 + chunks] = (starts + counts)[decodes:]
        words = self._plan(of_decodes[KV_LENGTH])
        planned[: len(words)] = words
        self._sent.copy_(staging, non_blocking=True)
        chunk_rows = range(self.decodes + 1, self.decodes + 1 + chunks)
        self._tables.update([*decode_rows.tolist(), *chunk_rows], [work.blocks for work in works])
        return len(logit_rows)

    def token_ids(self, rows: int) -> Tensor:
        """Returns `[rows]` int64."""
        return known_tokens(self._fields[TOKEN, :rows], self._fields[SOURCE, :rows], self._previous)

    def field(self, field: int, rows: int) -> Tensor:
        """Returns `[rows]` int64 of POSITION, ADAPTER, LOGIT_ROW or, from `SLOT` on, of a KV group's slots."""
        return self._fields[field, :rows]

    def of_decodes(self) -> Tensor:
        """Returns `[3, decodes]` int32: KV length, row and count of each decode, 0 where there is none."""
        return self._of_decodes.int()

    def of_chunks(self) -> tuple[Tensor, Tensor]:
        """Returns int32 `[works + 1]` first rows, and `[works]` KV lengths of prefill attention's works."""
        return self._starts.int(), self._lengths.int()

    def planned(self, words: int) -> Tensor:
        """Returns `[words]` int32, the split-KV plan of the decodes."""
        return self._planned[:words]

    def block_tables(self, group: int) -> tuple[Tensor, Tensor]:
        """Returns int32 `[decodes, width]`, and `[works, width]` of prefill attention's works."""
        tables = self._tables.tensor[group]
        return tables[: self.decodes], tables[self.decodes :]
