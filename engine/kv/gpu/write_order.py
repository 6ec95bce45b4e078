"""Finds the event that a read of blocks must wait for, while the device is still busy with later steps.

Steps, and moves of blocks between them, are *marks*, in the order in which the engine's stream runs them. A block's
mark is the last mark that writes it; each layer records an event for each mark. With two steps in flight, a layer's
newest event is often that of the step after the one that filled the block: waiting for it would be a whole step too
late.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

MAX_EVENTS_PER_LAYER = 8
"""Maximum events remembered for each layer: two steps are in flight, and each may have moves before it."""

Event = TypeVar("Event")


class WriteOrder(Generic[Event]):
    """Remembers which mark writes which block, and each layer's newest events. Any thread may query."""

    def __init__(self, layers: int, counts: Sequence[int]) -> None:
        self._newest = 0  # mark
        self._marks = [np.zeros(count, dtype=np.int64) for count in counts]
        self._everything = 0  # newest mark that may have written any block
        self._events: list[tuple[tuple[int, Event], ...]] = [()] * layers  # replaced, never changed

    def begin(self, blocks: Sequence[Sequence[int]] | None) -> None:
        """Begins a mark, which writes these blocks of each group; None: any."""
        self._newest += 1
        if blocks is None:
            self._everything = self._newest
            return
        for marks, written in zip(self._marks, blocks, strict=True):
            marks[np.array(written, dtype=np.int64)] = self._newest

    def recorded(self, layers: Sequence[int], event: Event) -> None:
        """Records an `event` after all writes of the newest mark in these layers."""
        for layer in layers:
            self._events[layer] = (*self._events[layer][1 - MAX_EVENTS_PER_LAYER :], (self._newest, event))

    def before(self, group: int, layer: int, blocks: Sequence[int]) -> Event | None:
        """Returns the earliest known event after all recorded writes of these blocks, or None.

        Writes without an event are not waited for: they may not be enqueued yet.
        """
        marks = self._marks[group][np.array(blocks, dtype=np.int64)]
        mark = max(self._everything, int(marks.max(initial=0)))
        known = self._events[layer]
        if not mark or not known:
            return None
        return next((event for found, event in reversed(known) if found <= mark), known[0][1])  # dropped: the oldest
