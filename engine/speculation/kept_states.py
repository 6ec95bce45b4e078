"""Keeps the newest hidden state of each sequence on the device, for the token that comes next."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device
from engine.plan import Work


class KeptStates:
    """Keeps one state for each of the sequences that were last heard of.

    Nobody says when a sequence ends: the one that was not heard of for longest gives way. Whoever asks for a state that
    is gone is told so.
    """

    def __init__(self, most: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        """Makes room for the states `[hidden]` of `most` sequences: at least as many as one step has."""
        self._states = torch.zeros((most, hidden), device=device, dtype=dtype)
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()  # by sequence: its row, the state's position

    def keep(self, sequences: Sequence[int], positions: Sequence[int], states: Tensor) -> None:
        """Keeps `states` `[sequences, hidden]`, those of the tokens at these positions; they replace older ones."""
        assert len(sequences) <= len(self._states), "more sequences than states can be kept of"
        rows = []
        for sequence, position in zip(sequences, positions, strict=True):
            row, _ = self._places.pop(sequence, (-1, 0))
            if row < 0:
                row = len(self._places)
                if row == len(self._states):
                    _, (row, _) = self._places.popitem(last=False)
            self._places[sequence] = row, position
            rows.append(row)
        if rows:
            self._states.index_copy_(0, to_device(np.array(rows, dtype=np.int64), states.device), states)

    def before(self, works: Sequence[Work]) -> tuple[Tensor, list[bool]]:
        """Returns the states `[works, hidden]` of the tokens before each work's first, and which of them are known."""
        places = [self._places.get(work.sequence, (0, -2)) for work in works]
        known = [position == work.start - 1 for work, (_, position) in zip(works, places, strict=True)]
        rows = to_device(np.array([row for row, _ in places], dtype=np.int64), self._states.device)
        states = self._states[rows]
        for at, work in enumerate(works):
            if len(work.state) == 4 * states.shape[1] and not known[at]:  # another worker has computed it
                given = torch.frombuffer(bytearray(work.state), dtype=torch.float32)
                states[at], known[at] = given.to(states), True
        return states, known
