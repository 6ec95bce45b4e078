"""Finds where the last tokens of a text stood in it before, in microseconds: an index that grows with the text.

Each pair of neighbouring tokens has a chain of the places behind it, the newest first, as compressors keep them (Ziv
and Lempel, 1977; RFC 1951, section 4): a table of the newest place by a hash, and a ring of the place before each.
Where a pair never stood before, the newest place of the last token alone has to do: of the demo model's own texts it is
right in 12 to 50 of 100 cases, a pair in 33 to 72, and four tokens or more in over 90, so a match tells its length.
A place that is found is compared with the end of the text itself: what collides costs time and no more.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

PAIR_TOKENS = 2
"""Tokens of which chains are kept. Those of three found less: 1.5 tokens a step of edited stories, and two had 1.7."""
MAX_MATCH_TOKENS = 16
"""Tokens of a match that is not compared any further: the newest of those is taken."""
MAX_PLACES_COMPARED = 16
"""Places that are compared at most; of those the longest match counts, and the newest of equals."""
MAX_INDEXED_TOKENS = 1 << 15
"""Newest tokens of a text whose places are kept."""
MAX_TOKENS_PER_EXTENSION = 2048
"""Tokens that are indexed for one search at most, some 0.3 ms: a long prompt is ready after a few steps."""
MAX_UNINDEXED_TOKENS = 8
"""Newest tokens that may not be indexed yet: a call for each would take longer than what it does."""
HASH_FACTOR = 40503
"""Spreads neighbouring ids over the table: 2^16 divided by the golden ratio (Knuth, volume 3, section 6.4)."""


Text = Sequence[int]


class Match(NamedTuple):
    """Says where a text went on before, as it may now."""

    place: int  # of the token behind the match
    length: int  # tokens that are equal before it, at most `MAX_MATCH_TOKENS`


NO_MATCH = Match(0, 0)


class Suffixes:
    """Indexes one text, which only grows. It takes 12 bytes for each token, of which it has a power of 2."""

    __slots__ = ("_alone", "_before", "_indexed", "_mask", "_newest")

    def __init__(self, most: int) -> None:
        size = 1 << (min(max(most, 2), MAX_INDEXED_TOKENS) - 1).bit_length()
        self._mask = size - 1
        self._newest = array("I", bytes(4 * size))  # by the hash of a pair, the place behind it; 0: none
        self._before = array("I", bytes(4 * size))  # by place, the one before in its chain
        self._alone = array("I", bytes(4 * size))  # by a token, the place behind it
        self._indexed = PAIR_TOKENS - 1  # places up to here are known

    def find(self, tokens: Text, of: Text | None = None) -> Match:
        """Returns the longest match of the last tokens among the newest places; `NO_MATCH` if there is none.

        `tokens` is the text of the index, and what is looked for is its end, or that of another text.
        """
        end = len(tokens)
        if end - self._indexed > MAX_UNINDEXED_TOKENS:
            self._extend(tokens, end)
        if of is None:
            of = tokens
        at = len(of)
        if end <= PAIR_TOKENS or at < PAIR_TOKENS:
            return NO_MATCH
        last, second = of[-1], of[-2]
        oldest = max(0, end - self._mask - 1)
        before, mask = self._before, self._mask
        place = self._newest[(second * HASH_FACTOR ^ last) & mask]
        best, longest = 0, 0
        for _ in range(MAX_PLACES_COMPARED):
            if place <= oldest:
                break
            if tokens[place - 1] == last and tokens[place - 2] == second:
                length = PAIR_TOKENS
                most = min(MAX_MATCH_TOKENS, place, at)
                while length < most and tokens[place - 1 - length] == of[at - 1 - length]:
                    length += 1
                if length > longest:
                    best, longest = place, length
                    if length == MAX_MATCH_TOKENS:
                        break
            older = before[place & mask]
            if older >= place:
                break  # the ring has gone round
            place = older
        if best:
            return Match(best, longest)
        place = self._alone[last & mask]
        return Match(place, 1) if place > oldest and tokens[place - 1] == last else NO_MATCH

    def _extend(self, tokens: Text, end: int) -> None:
        begin = max(self._indexed + 1, end - self._mask)
        stop = min(end, begin + MAX_TOKENS_PER_EXTENSION)
        if begin >= stop:
            return
        newest, before, alone, mask = self._newest, self._before, self._alone, self._mask
        second = tokens[begin - 2]
        for place in range(begin, stop):
            last = tokens[place - 1]
            chain = (second * HASH_FACTOR ^ last) & mask
            before[place & mask] = newest[chain]
            newest[chain] = alone[last & mask] = place
            second = last
        self._indexed = stop - 1


def continued(tokens: list[int], place: int, most: int) -> list[int]:
    """Returns `most` tokens that stand from `place` on; what has caught up with the end goes round, as texts do."""
    found = tokens[place : place + most]
    period = len(found)
    while len(found) < most:
        found.append(found[len(found) - period])
    return found
