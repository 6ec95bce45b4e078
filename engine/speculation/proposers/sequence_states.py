"""Keeps the newest hidden state of each sequence on the device, for its next token."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device
from engine.plan import Work


class _StateSlot(NamedTuple):
    row: int
    position: int  # of the token whose state it is
    stored: int  # position up to which the sequence's KV is stored


NO_STATE = _StateSlot(0, -2, -1)


class SequenceStates:
    """One hidden state for each of the most recent sequences.

    Ends of sequences are not reported: the least recently used state is dropped, and is then unknown to the caller.
    """

    def __init__(self, max_sequences: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        self._states = torch.zeros((max_sequences, hidden), device=device, dtype=dtype)
        self._slots: OrderedDict[int, _StateSlot] = OrderedDict()  # by sequence

    def keep(self, sequences: Sequence[int], positions: Sequence[int], stored: Sequence[int], states: Tensor) -> None:
        """Stores `states` `[sequences, hidden]` of the tokens at these `positions`, replacing older states.

        `stored` are the positions up to which the sequences' KV is stored.
        """
        assert len(sequences) <= len(self._states), "more sequences than states fit"
        rows = []
        for sequence, position, through in zip(sequences, positions, stored, strict=True):
            slot = self._slots.pop(sequence, None)
            row = len(self._slots) if slot is None else slot.row
            if row == len(self._states):
                row = self._slots.popitem(last=False)[1].row
            self._slots[sequence] = _StateSlot(row, position, through)
            rows.append(row)
        if rows:
            self._states.index_copy_(0, to_device(np.array(rows, dtype=np.int64), states.device), states)

    def have(self, works: Sequence[Work]) -> bool:
        """Returns whether the KV of each work's first token is stored already."""
        return all((slot := self._slots.get(work.sequence)) is not None and slot.stored == work.start for work in works)

    def before(self, works: Sequence[Work], of_block: Callable[[Work], Tensor | None]) -> tuple[Tensor, list[bool]]:
        """Returns the states `[works, hidden]` before each work's first token, and whether each is known.

        `of_block` returns the state of a work whose sequence has no state here, from the cached block before it.
        """
        slots = [self._slots.get(work.sequence, NO_STATE) for work in works]
        known = [slot.position == work.start - 1 for work, slot in zip(works, slots, strict=True)]
        rows = to_device(np.array([slot.row for slot in slots], dtype=np.int64), self._states.device)
        states = self._states[rows]
        for at, work in enumerate(works):
            if len(work.state) == 4 * states.shape[1] and not known[at]:  # computed by another worker
                handed = to_device(np.frombuffer(bytearray(work.state), dtype=np.float32), states.device)
                states[at], known[at] = handed.to(states.dtype), True
            elif not known[at] and (state := of_block(work)) is not None:
                states[at], known[at] = state, True
        return states, known
