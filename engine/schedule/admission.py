"""Admits waiting sequences: gives blocks to the queue's head, be it a new job, a landing or a preempted sequence.

If the head does not fit, the sequences behind it wait too, so that none starves; running sequences continue and free
blocks. Preempted sequences come first, so no landing is granted while a preempted sequence waits.
"""

from collections.abc import Sequence as Counts

from contracts.errors import CapacityError
from engine.blocks.finding import FoundPrefix
from engine.blocks.manager import BlockManager
from engine.schedule.sequence import Sequence
from engine.schedule.waiting_queue import WaitingQueue
from infra.redis.worker_load import KVCounts

GROWTH_SHARE = 0.02  # share of a pool that admission keeps free for running sequences


class BlockAdmission:
    """The queue, and the admission of its head if enough blocks stay free."""

    def __init__(
        self, blocks: BlockManager, *, growth_reserve: Counts[int], max_model_len: int, whole_prompts: bool = False
    ) -> None:
        """`growth_reserve`: blocks of each KV group that stay free for running sequences; (): none.

        `max_model_len`: maximum tokens of a sequence, its prompt included. `whole_prompts`: nothing is found in
        the cache.
        """
        self.queue = WaitingQueue()
        self._blocks = blocks
        self._growth_reserve = growth_reserve
        self._max_model_len = max_model_len
        self._whole_prompts = whole_prompts
        self._queried = self._found = self._partial = self._swapped = self._recomputed = 0

    def set_lengths(self, sequence: Sequence) -> None:
        """Sets the lengths at which the sequence ends. Raises `CapacityError` with both numbers if it can never fit."""
        tokens = len(sequence.tokens)
        end = sequence.prompt_tokens + sequence.limits.max_tokens
        if sequence.landing:
            end = tokens + 1  # its limits come with the Commit; until then it needs its prompt and a first token
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

    def find(self, sequence: Sequence, step: int) -> FoundPrefix:
        """Finds the cached prefix of the sequence's tokens, for the step being planned.

        Landing KV arrives in whole blocks; otherwise the last token is left to compute, so that the next can be
        sampled.
        """
        tokens, landing = sequence.tokens, sequence.landing
        limit = len(tokens) if landing else len(tokens) - 1
        if self._whole_prompts:
            limit = 0
        elif sequence.wants_prompt_scores:
            limit = min(limit, sequence.scored)  # a token's score needs the row of logits of the token before it
        return self._blocks.find(tokens, sequence.chains, limit, step, whole=landing)

    def surely_fits(self, sequence: Sequence, others: bool) -> bool:
        return self._blocks.fits(len(sequence.tokens), self._reserve(sequence, others))

    def admit(self, sequence: Sequence, found: FoundPrefix, others: bool) -> bool:
        """Allocates blocks for all tokens of the sequence, `found` first, if they fit. Returns whether it is admitted.

        `others`: other sequences run or land here. If there are none, the sequence may use the reserve.
        """
        tokens = sequence.tokens
        returning = found.returning
        blocks = self._blocks.allocate(len(tokens), found, self._reserve(sequence, others))
        if blocks is None:
            return False
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

    def _reserve(self, sequence: Sequence, others: bool) -> Counts[int]:
        return self._growth_reserve if others and not sequence.hand_off else ()

    def counts(self) -> KVCounts:
        """Counts tokens found in the cache, and the costs of preemption."""
        return KVCounts(
            queried_tokens=self._queried,
            found_tokens=self._found,
            partial_hits=self._partial,
            preempted_swapped=self._swapped,
            preempted_recomputed=self._recomputed,
        )

    def _count(self, sequence: Sequence, found: FoundPrefix, returning: int) -> None:
        self._queried += len(sequence.tokens)
        self._found += found.tokens
        self._partial += found.partial
        if sequence.preemptions:
            self._swapped += returning > 0
            self._recomputed += found.whole_blocks < sequence.lost_blocks
