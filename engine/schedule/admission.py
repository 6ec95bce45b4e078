"""Decides who may take blocks next: one queue in order of arrival, for jobs, grants and preempted sequences alike.

Strictly first come, first served: a head that does not fit keeps everybody behind it waiting, so that nothing starves,
while what runs goes on and gives back blocks. From this follows, without a rule of its own, that preempted sequences
come first (whatever was admitted once arrived before everything that never was), and that no landing is granted
while one of them waits.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from collections.abc import Sequence as Counts
from operator import attrgetter

from core.costs.steps import pairs_of
from core.errors import CapacityError
from core.redis.records import KVCounts
from engine.blocks.finding import Found
from engine.blocks.manager import BlockManager
from engine.schedule.sequence import Sequence

arrival = attrgetter("id")


class InOrder:
    """Keeps sequences in order of arrival."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        """Returns the earliest; there must be one."""
        return self._sequences[0]

    def insert(self, sequence: Sequence) -> None:
        """Puts a sequence at its place."""
        insort(self._sequences, sequence, key=arrival)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; it must be in."""
        place = bisect_left(self._sequences, sequence.id, key=arrival)
        assert self._sequences[place] is sequence
        del self._sequences[place]


class Queue(InOrder):
    """Keeps those who wait for blocks, and knows what they will compute, as far as it was known when they came."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0
        self.pairs = 0.0  # of such a token and one that it attends to

    def insert(self, sequence: Sequence) -> None:
        """Puts a sequence at its place, `to_compute` tokens of which will be computed."""
        super().insert(sequence)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; it must be in, and need as much as when it came."""
        super().remove(sequence)
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens = sequence.to_compute
        self.tokens += sign * tokens
        self.pairs += sign * pairs_of(len(sequence.tokens) - tokens, tokens)


class Admission:
    """Keeps the queue, and admits its head where enough blocks stay free."""

    def __init__(self, blocks: BlockManager, *, growth_reserve: Counts[int], max_model_len: int) -> None:
        """Makes an empty queue. `growth_reserve`: blocks of each KV group that stay free for those who run; (): none.

        `max_model_len`: tokens of a sequence, its prompt included.
        """
        self.queue = Queue()
        self._blocks = blocks
        self._growth_reserve = growth_reserve
        self._max_model_len = max_model_len
        self._queried = self._found = self._partial = self._swapped = self._recomputed = 0

    def set_lengths(self, sequence: Sequence) -> None:
        """Works out where the sequence ends. Raises `CapacityError` with both numbers if it can never get there."""
        tokens = len(sequence.tokens)
        end = sequence.prompt_tokens + sequence.limits.max_tokens
        if sequence.landing:
            end = tokens + 1  # its limits come with the Commit; here it needs its prompt and a first token
        if tokens >= self._max_model_len:
            raise CapacityError(f"{tokens} tokens and one more are longer than max_model_len = {self._max_model_len}")
        end = min(end, self._max_model_len)
        if tokens >= end:
            raise CapacityError(f"{tokens} tokens leave nothing to emit: prompt and max_tokens end at {end}")
        plan_length = tokens + 1 if sequence.hand_off else end
        if not self._blocks.ever_fits(plan_length - 1):  # the last token's KV is never needed
            raise CapacityError(
                f"{plan_length - 1} tokens need {sum(self._blocks.needed(plan_length - 1))} KV blocks, "
                f"the whole pool has {self._blocks.total}"
            )
        sequence.end_length, sequence.plan_length = end, plan_length

    def find(self, sequence: Sequence, step: int) -> Found:
        """Finds what the cache has of the sequence's tokens, for the step that is being planned.

        KV that lands comes in whole blocks; otherwise a last token is left to compute, so that one can be sampled.
        """
        tokens, landing = sequence.tokens, sequence.landing
        limit = len(tokens) if landing else len(tokens) - 1
        if sequence.wants_prompt_scores:
            limit = min(limit, sequence.scored)  # of a token that is not computed there is no row to score the next by
        return self._blocks.find(tokens, sequence.chains, limit, step, whole=landing)

    def admit(self, sequence: Sequence, found: Found, others: bool) -> bool:
        """Takes all blocks that the sequence's tokens hold at once, first those that were just `found`, or none.

        `others`: somebody else runs or lands here. Alone, a sequence may use the reserve: nobody else could give it
        back. Returns whether it has its blocks, and has left the queue.
        """
        reserve = self._growth_reserve if others and not sequence.hand_off else ()
        tokens = sequence.tokens
        if not self._blocks.fits(len(tokens), reserve, found):
            return False
        returning = found.returning
        blocks = self._blocks.allocate(len(tokens), found)
        assert blocks is not None
        sequence.blocks = blocks
        sequence.capacity = self._blocks.capacity(blocks)
        sequence.admitted_length = len(tokens)
        sequence.known = self._blocks.known(found, len(tokens), sequence.sent_block_tokens)
        if not sequence.landing:
            sequence.planned = sequence.computed = found.tokens
        if not sequence.preemptions:
            sequence.cached_tokens, sequence.held_blocks = found.tokens, found.held
        self._count(sequence, found, returning)
        self.queue.remove(sequence)
        return True

    def counts(self) -> KVCounts:
        """Counts how often KV was found here instead of being computed, and what preemption has cost."""
        return KVCounts(
            queried_tokens=self._queried,
            found_tokens=self._found,
            partial_hits=self._partial,
            preempted_swapped=self._swapped,
            preempted_recomputed=self._recomputed,
        )

    def _count(self, sequence: Sequence, found: Found, returning: int) -> None:
        self._queried += len(sequence.tokens)
        self._found += found.tokens
        self._partial += found.partial
        if sequence.preemptions:
            self._swapped += returning > 0
            self._recomputed += found.whole_blocks < sequence.lost_blocks
