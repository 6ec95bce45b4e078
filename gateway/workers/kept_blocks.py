"""Full blocks whose KV one worker has, as far as it has reported: a set of short keys. Pure.

Lost messages appear as gaps in their numbers. Then the set loses nothing until all pieces of a full list have come: a
prompt sent to a worker for KV that is gone is simply computed there.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from contracts.kv.block_hash import SHORT_KEY_BYTES
from contracts.messages.gateway import NOT_HEARD, KeyNews
from gateway.workers.holders import BlockHolders

EXPECTED_BLOCKS_S = 1.0  # minimum seconds for which blocks are expected; at most twice as long
MAX_EXPECTED_KEYS = 1 << 14
MAX_KEYS = 1 << 17  # upper bound of keys of a worker; a worker reports at most half as many
KEYS_PER_STEP = 1024
"""Number of keys that are removed in one step after a worker has left: some 0.3 ms."""


class _Whole:
    """A full list of keys, as far as its pieces have come. So each piece is taken within a millisecond or two."""

    __slots__ = ("came", "keys", "pieces", "upto")

    def __init__(self, upto: int, pieces: int) -> None:
        self.upto = upto  # all keys as of this change
        self.pieces = pieces
        self.came: set[int] = set()  # positions of pieces
        self.keys: set[int] = set()


class KeptBlocks:
    """Set of a worker's blocks, from its reports."""

    def __init__(self) -> None:
        self.heard = NOT_HEARD  # number of the last change that was received without a gap
        self._keys: set[int] = set()
        self._whole: _Whole | None = None  # a full list of keys of which some pieces have come
        self.told = False  # the worker reports its blocks
        self._soon: set[int] = set()  # keys of blocks that it will probably report soon …
        self._sooner: set[int] = set()  # … and the keys of the period before
        self._turned_at = 0.0  # local time, s, when the period of `_soon` began
        self._holders: BlockHolders[KeptBlocks] = BlockHolders()  # index of all workers, in step with these keys

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys or key in self._soon or key in self._sooner

    def joins(self, holders: BlockHolders["KeptBlocks"]) -> None:
        """Keeps an index in step with the worker's blocks from now on."""
        self._holders = holders
        holders.add(self, self._keys | self._soon | self._sooner)
        if self.told:
            holders.telling.add(self)

    def leaves(self) -> Iterator[None]:
        """Forgets all blocks, and leaves the index; each step of the iterator removes some of the blocks there."""
        holders, gone = self._holders, chain(self._keys, self._soon, self._sooner)
        self._holders, self._keys, self._soon, self._sooner = BlockHolders(), set(), set(), set()
        self._whole = None
        holders.telling.discard(self)
        return self._removed_from(holders, gone)

    def _removed_from(self, holders: BlockHolders["KeptBlocks"], keys: Iterator[int]) -> Iterator[None]:
        while some := list(islice(keys, KEYS_PER_STEP)):
            holders.drop(self, some)
            yield

    def expects(self, keys: Sequence[int], now: float) -> None:
        """Counts blocks as the worker's for one to two `EXPECTED_BLOCKS_S`, until it reports them itself."""
        if now - self._turned_at > EXPECTED_BLOCKS_S or len(self._soon) > MAX_EXPECTED_KEYS:
            past = self._sooner
            self._sooner, self._soon, self._turned_at = self._soon, set(), now
            self._forgets(past)
        some = [key for key in keys[:MAX_EXPECTED_KEYS] if key not in self._keys]
        self._soon.update(some)
        self._holders.add(self, some)

    def take(self, news: KeyNews) -> None:
        """Takes a report; reports may come in any order."""
        if news.pieces:
            self._take_piece(news)
        elif news.first <= self.heard < news.upto:
            lost, kept = _numbers(news.lost), _numbers(news.kept)
            self._keys.difference_update(lost)
            self._keys.update(kept)
            self._forgets(lost)
            self._holders.add(self, kept)
            self.heard, self._whole = news.upto, None
            self._bound()
        elif news.first > self.heard:
            self.heard = NOT_HEARD  # a report is missing

    def _take_piece(self, news: KeyNews) -> None:
        if news.upto < self.heard:
            return
        whole = self._whole
        if whole is None or (whole.upto, whole.pieces) != (news.upto, news.pieces):
            if whole is not None and news.upto < whole.upto:
                return
            whole = self._whole = _Whole(news.upto, news.pieces)
        some = _numbers(news.kept)
        whole.came.add(news.piece)
        whole.keys.update(some)
        self._keys.update(some)
        self._holders.add(self, some)
        if len(whole.came) == whole.pieces:
            past, self._keys = self._keys, whole.keys
            if len(past) > len(whole.keys):  # `past` includes `whole.keys`
                self._forgets(past)
            self.heard, self.told, self._whole = whole.upto, True, None
            self._holders.telling.add(self)
        self._bound()

    def _bound(self) -> None:
        """Forgets all reports of a worker that reports too many blocks, until it tells all anew."""
        if len(self._keys) > MAX_KEYS:
            past, self._keys = self._keys, set()
            self._forgets(past)
            self.heard, self._whole = NOT_HEARD, None

    def blocks(self, keys: Sequence[int]) -> int:
        """Counts the leading blocks of a prompt that the worker has; `keys` are in order.

        A worker that has a block has all blocks before it, so bisection finds the last one.
        """
        known, soon, sooner = self._keys, self._soon, self._sooner  # without a call of `__contains__` for each look
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            key = keys[middle]
            if key in known or key in soon or key in sooner:
                low = middle + 1
            else:
                high = middle
        return low

    def _forgets(self, keys: Iterable[int]) -> None:
        """Removes this worker from the index entries of those `keys` whose blocks the worker no longer has."""
        self._holders.drop(self, set(keys) - self._keys - self._soon - self._sooner)


def _numbers(joined: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(joined) // SHORT_KEY_BYTES}Q", joined)
