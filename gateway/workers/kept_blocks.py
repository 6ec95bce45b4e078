"""Keeps which full blocks' KV one worker has, as far as it has told: a set of short keys. Pure.

What comes between two messages that were lost is noticed by their numbers; until all keys have come again, what is
known stays as it is: a prompt that is sent for KV which is not there is only computed, as anywhere else.
"""

import struct
from collections.abc import Sequence

from contracts.kv.block_hash import SHORT_KEY_BYTES
from contracts.messages.gateway import NOT_HEARD, KeyNews

EXPECTED_BLOCKS_S = 1.0
"""Seconds for which blocks are expected at least; twice as long at most."""
MAX_EXPECTED_KEYS = 1 << 14
MAX_KEYS = 1 << 17
"""Keys that are kept of a worker, which tells of no more than half as many."""


class KeptBlocks:
    """Takes a worker's news, and says how much of a prompt it has."""

    def __init__(self) -> None:
        self.heard = NOT_HEARD  # number of the change up to which all was heard
        self._keys: set[int] = set()
        self._pieces: dict[int, KeyNews] = {}  # of all keys as of one change, by their place
        self.told = False  # the worker tells what it has
        self._soon: set[int] = set()  # keys of what it was sent, and will tell of soon …
        self._sooner: set[int] = set()  # … those of the seconds before
        self._turned_at = 0.0  # local time from which on `_soon` was filled, s

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys or key in self._soon or key in self._sooner

    def expects(self, keys: Sequence[int], now: float) -> None:
        """Counts blocks as the worker's for a second or two, in which it will tell of them itself."""
        if now - self._turned_at > EXPECTED_BLOCKS_S or len(self._soon) > MAX_EXPECTED_KEYS:
            self._sooner, self._soon, self._turned_at = self._soon, set(), now
        self._soon.update(keys[:MAX_EXPECTED_KEYS])

    def take(self, news: KeyNews) -> None:
        """Takes a message, in whichever order they come."""
        if news.pieces:
            self._take_piece(news)
        elif news.first <= self.heard < news.upto:
            self._keys.difference_update(_numbers(news.lost))
            self._keys.update(_numbers(news.kept))
            self.heard = news.upto
            if len(self._keys) > MAX_KEYS:
                self._keys.clear()
                self.heard = NOT_HEARD
        elif news.first > self.heard:
            self.heard = NOT_HEARD  # something is missing

    def _take_piece(self, news: KeyNews) -> None:
        if news.upto < self.heard:
            return
        if any(piece.upto != news.upto or piece.pieces != news.pieces for piece in self._pieces.values()):
            if news.upto < next(iter(self._pieces.values())).upto:
                return
            self._pieces.clear()
        self._pieces[news.piece] = news
        if len(self._pieces) < news.pieces:
            return
        self._keys = {key for piece in self._pieces.values() for key in _numbers(piece.kept)}
        self._pieces.clear()
        self.heard, self.told = news.upto, True

    def blocks(self, keys: Sequence[int]) -> int:
        """Counts the leading blocks of a prompt, by their keys in order, that the worker has.

        A block is found only behind those before it, and gives way before them: so the last one is found by bisection.
        """
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self:
                low = middle + 1
            else:
                high = middle
        return low


def _numbers(joined: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(joined) // SHORT_KEY_BYTES}Q", joined)
