"""Divides a step's prompt tokens among prompts: chooses the next prompt to compute, and the number of its tokens.

Tenants take turns (`infra/fair_queueing/shares.py`). A tenant's most urgent prompt comes first, in progress or queued.
A prompt longer than the step leaves a share of the step to the tenant's shorter prompts, shortest first: they need few
tokens and hardly delay the long prompt. Prompts of the same length never give way to each other.

A tenant whose prompts all fit into the step waits for this step only. Tenants with more work than fits may therefore
lengthen it only by a share of the fully served tenants' tokens.

If the next queued prompt finds no blocks, no other queued prompt is admitted until it does.
"""

from collections.abc import Iterator
from math import ceil

from engine.schedule.lifecycle import Lifecycle
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.waiting_queue import WaitingQueue, urgency

SHORTER_PROMPTS_SHARE = 0.5
"""Share of a step that a long prompt leaves to its tenant's shorter prompts."""
EXTRA_TOKENS_SHARE = 0.25
"""Tokens that a tenant with more work may add to a step, as a share of the fully served tenants' tokens."""


class PromptTurns:
    """Gives each prompt its tokens of a step, in turns."""

    def __init__(self, queue: WaitingQueue, lifecycle: Lifecycle, shorter: float) -> None:
        self._queue = queue
        self._lifecycle = lifecycle
        self._shorter = shorter
        self._stuck: Sequence | None = None  # a queued prompt that found no blocks in its turn

    def take(self, prompts: list[Sequence], budget: int, now: float, step: int) -> Iterator[tuple[Sequence, int]]:
        """Yields the next prompt and its maximum tokens, until the `budget` of tokens is used up.

        `prompts` are in progress; `step` is being planned. The caller plans each prompt before asking for the next. A
        landing needs no tokens of a step, and is admitted in its turn.
        """
        if self._stuck is not None and self._stuck.state is not SequenceState.WAITING:
            self._stuck = None
        if not prompts and not len(self._queue):
            return
        turn = _StepTurns(self._queue, self._lifecycle, prompts, self._stuck, now, step)
        left_of_step, served = budget, False  # served: at least one tenant has all its prompts in this step
        while (leader := turn.next(left_of_step)) is not None:
            if leader.state is not SequenceState.RUNNING:
                continue
            left, before = leader.left, leader.planned
            if served and turn.tenant_tokens(left) > left_of_step:
                left_of_step = min(left_of_step, ceil(EXTRA_TOKENS_SHARE * (budget - left_of_step)))
            is_long = left > left_of_step
            kept = min(int(left_of_step * self._shorter), turn.shorter_tokens(left)) if is_long else 0
            yield leader, left_of_step - kept
            planned = turn.charge(leader, before)
            left_of_step -= planned
            while kept and left_of_step > 0 and (each := turn.shortest(left)) is not None:
                before = each.planned
                yield each, left_of_step
                left_of_step -= turn.charge(each, before)
            served = served or turn.tenant_tokens(left - planned) == 0
        self._stuck = turn.stuck


class _StepTurns:
    """The prompts not yet served by one step."""

    def __init__(
        self,
        queue: WaitingQueue,
        lifecycle: Lifecycle,
        prompts: list[Sequence],
        stuck: Sequence | None,
        now: float,
        step: int,
    ) -> None:
        self.stuck = stuck
        self._queue = queue
        self._lifecycle = lifecycle
        self._now = now
        self._step = step
        self._blocked = False  # a queued prompt found no blocks, so none behind it is admitted
        self._tenant = ""  # whose turn it is
        self._prompts: dict[str, list[Sequence]] = {}  # in progress, by tenant, the most urgent first
        for each in sorted(prompts, key=lambda each: (urgency(each, now), each.id)):
            self._prompts.setdefault(each.prompt.tenant, []).append(each)

    def next(self, tokens: int) -> Sequence | None:
        """Returns the next prompt: in progress, or just admitted from the queue.

        Without `tokens` left in the step, only landings are admitted.
        """
        while not self._blocked and (first := self._foremost) is not None and (tokens > 0 or first.landing):
            if self._admits(first):
                self._tenant = first.prompt.tenant
                return first
        while tenants := self._tenants():
            self._tenant = self._queue.shares.turn(tenants)
            own = self._prompts.get(self._tenant)
            head = None if self._blocked else self._queue.head(self._tenant, self._now)
            if tokens == 0 and (head is None or not head.landing):
                return None
            if own and (head is None or not self._comes_before(head, own[0])):
                return self._taken(own[0])
            assert head is not None, "a tenant without prompts takes no turn"
            if self._admits(head):
                if head.landing:
                    self._queue.shares.charge(self._tenant, len(head.tokens))
                return head
        return None

    def charge(self, sequence: Sequence, before: int) -> int:
        tokens = sequence.planned - before
        self._queue.shares.charge(sequence.prompt.tenant, tokens)
        return tokens

    def tenant_tokens(self, left: int) -> int:
        in_progress = sum(each.left for each in self._prompts.get(self._tenant, ()))
        return left + in_progress + self._queue.tokens_of(self._tenant)

    def shorter_tokens(self, than: int) -> int:
        shorter = sum(each.left for each in self._prompts.get(self._tenant, ()) if each.left < than)
        waiting = self._may_pass(than)
        return shorter + (len(self._queue) * waiting.to_compute if waiting is not None else 0)

    def shortest(self, than: int) -> Sequence | None:
        """Returns the tenant's prompt with the fewest tokens left, if shorter `than` this many tokens."""
        waiting = self._may_pass(than)
        shorter = [each for each in self._prompts.get(self._tenant, ()) if each.left < than]
        first = min(shorter, key=lambda each: each.left, default=None)
        if waiting is None or (first is not None and first.left <= waiting.to_compute):
            return self._taken(first) if first is not None else None
        return waiting if self._admits(waiting) else None

    def _tenants(self) -> dict[str, float]:
        running = {name: own[-1].prompt.weight for name, own in self._prompts.items()}
        return running if self._blocked or self._foremost is not None else self._queue.weights() | running

    def _comes_before(self, head: Sequence, prompt: Sequence) -> bool:
        if head.landing or urgency(head, self._now) >= urgency(prompt, self._now):
            return False
        return self._lifecycle.surely_fits(head)

    def _may_pass(self, than: int) -> Sequence | None:
        """Returns the tenant's shortest queued prompt if it is shorter `than` this many tokens and may be admitted now.

        No prompt may pass a head of the queue that lacks blocks: the head could wait for ever.
        """
        if self._blocked or self._foremost is not None:
            return None
        waiting, head = self._queue.shortest(self._tenant), self._queue.head(self._tenant, self._now)
        if waiting is None or head is None or waiting.landing or waiting.to_compute >= than:
            return None
        return waiting if self._lifecycle.surely_fits(head) else None

    @property
    def _foremost(self) -> Sequence | None:
        """The queued sequence that precedes all others: preempted, or stuck; None: none."""
        return self._queue.preempted or self.stuck

    def _admits(self, sequence: Sequence) -> bool:
        self._blocked = not self._lifecycle.admit(sequence, self._now, self._step)
        if self._blocked and not sequence.preemptions:
            self.stuck = sequence
        elif sequence is self.stuck:
            self.stuck = None
        return not self._blocked

    def _taken(self, sequence: Sequence) -> Sequence:
        own = self._prompts[sequence.prompt.tenant]
        own.remove(sequence)
        if not own:
            del self._prompts[sequence.prompt.tenant]
        return sequence
