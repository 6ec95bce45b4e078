"""Decides whose prompt is computed next in a step, and how many tokens of it.

Tenants take turns (`infra/fair_queueing/shares.py`). Of the one whose turn it is, the most urgent prompt leads, be it
in progress or in line. One that is longer than the step leaves a share of it to the tenant's shorter ones, the shortest
first: they wait for few tokens, and it waits a little longer. To give way to a prompt of the same length would help
nobody.

Who has all it asked for in a step waits for that step only, so a step should not become much longer for others who have
more than fits into it anyway: they add a share of what those have.

Whose turn it is in line, and who finds no room, keeps everybody else in line waiting until it has room.
"""

from collections.abc import Iterator
from math import ceil

from engine.schedule.lifecycle import Lifecycle
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.waiting_queue import WaitingQueue, urgency

SHORTER_PROMPTS_SHARE = 0.5
EXTRA_TOKENS_SHARE = 0.25
"""Tokens, over those of tenants that are served whole, which one that is not may add to their step."""


class PromptTurns:
    """Lends the tokens of a step to prompts."""

    def __init__(self, line: WaitingQueue, lifecycle: Lifecycle, shorter: float) -> None:
        """Serves the prompts in `line`, too. `shorter`: share of a step that a long prompt leaves to shorter ones."""
        self._line = line
        self._lifecycle = lifecycle
        self._shorter = shorter
        self._stuck: Sequence | None = None  # found no room when its turn came

    def take(self, prompts: list[Sequence], room: int, now: float, step: int) -> Iterator[tuple[Sequence, int]]:
        """Yields whose turn it is, and how many of the `room` tokens it may have, while there are any.

        `prompts` are in progress; `step` is being planned. Who asks for the next one has planned the one before. KV
        that lands needs no room in a step, and is admitted in its turn.
        """
        if self._stuck is not None and self._stuck.state is not SequenceState.WAITING:
            self._stuck = None
        turn = _Turn(self._line, self._lifecycle, prompts, self._stuck, now, step)
        full, whole = room, False  # somebody is served whole
        while (leader := turn.next(room)) is not None:
            if leader.state is not SequenceState.RUNNING:
                continue
            left, before = leader.left, leader.planned
            if whole and turn.asked(left) > room:
                room = min(room, ceil(EXTRA_TOKENS_SHARE * (full - room)))
            kept = min(int(room * self._shorter), turn.shorter_tokens(left)) if left > room else 0
            yield leader, room - kept
            planned = turn.charge(leader, before)
            room -= planned
            while kept and room > 0 and (each := turn.shortest(left)) is not None:
                before = each.planned
                yield each, room
                room -= turn.charge(each, before)
            whole = whole or turn.asked(left - planned) == 0
        self._stuck = turn.stuck


class _Turn:
    """Keeps who is still to be served in one step."""

    def __init__(
        self,
        line: WaitingQueue,
        lifecycle: Lifecycle,
        prompts: list[Sequence],
        stuck: Sequence | None,
        now: float,
        step: int,
    ) -> None:
        self.stuck = stuck
        self._line = line
        self._lifecycle = lifecycle
        self._now = now
        self._step = step
        self._blocked = False  # somebody in line has no room: nobody behind it is admitted
        self._tenant = ""  # whose turn it is
        self._prompts: dict[str, list[Sequence]] = {}  # in progress, by tenant, the most urgent first
        for each in sorted(prompts, key=lambda each: (urgency(each, now), each.id)):
            self._prompts.setdefault(each.prompt.tenant, []).append(each)

    def next(self, room: int) -> Sequence | None:
        """Returns the next one: a prompt in progress, or whoever was admitted, or left the line for another's landing.

        Without room in the step, only those are admitted that need none.
        """
        while not self._blocked and (first := self._foremost) is not None and (room > 0 or first.landing):
            if self._admits(first):
                self._tenant = first.prompt.tenant
                return first
        while tenants := self._tenants():
            self._tenant = self._line.shares.turn(tenants)
            own = self._prompts.get(self._tenant)
            head = None if self._blocked else self._line.head(self._tenant, self._now)
            if room == 0 and (head is None or not head.landing):
                return None
            if own and (head is None or not self._comes_before(head, own[0])):
                return self._taken(own[0])
            assert head is not None, "a tenant that has neither is not among them"
            if self._admits(head):
                if head.landing:
                    self._line.shares.charge(self._tenant, len(head.tokens))
                return head
        return None

    def charge(self, sequence: Sequence, before: int) -> int:
        """Counts what was planned of a prompt to its tenant, and returns it."""
        tokens = sequence.planned - before
        self._line.shares.charge(sequence.prompt.tenant, tokens)
        return tokens

    def asked(self, left: int = 0) -> int:
        """Counts the tokens that the tenant whose turn it is asks for; `left` are those of whoever was taken."""
        return (
            left + sum(each.left for each in self._prompts.get(self._tenant, ())) + self._line.tokens_of(self._tenant)
        )

    def shorter_tokens(self, than: int) -> int:
        """Counts the tokens of the tenant's others that have fewer left `than` so many."""
        shorter = sum(each.left for each in self._prompts.get(self._tenant, ()) if each.left < than)
        waiting = self._may_pass(than)
        return shorter + (len(self._line) * waiting.to_compute if waiting is not None else 0)

    def shortest(self, than: int) -> Sequence | None:
        """Returns the tenant's one with the fewest tokens left, if those are fewer `than` so many."""
        waiting = self._may_pass(than)
        shorter = [each for each in self._prompts.get(self._tenant, ()) if each.left < than]
        first = min(shorter, key=lambda each: each.left, default=None)
        if waiting is None or (first is not None and first.left <= waiting.to_compute):
            return self._taken(first) if first is not None else None
        return waiting if self._admits(waiting) else None

    def _tenants(self) -> dict[str, float]:
        """Returns the weights of those who have something to do."""
        running = {name: own[-1].prompt.weight for name, own in self._prompts.items()}
        return running if self._blocked or self._foremost is not None else self._line.weights() | running

    def _comes_before(self, head: Sequence, prompt: Sequence) -> bool:
        """Tells whether one in line is served before a prompt in progress, which goes on if that one has no room."""
        if head.landing or urgency(head, self._now) >= urgency(prompt, self._now):
            return False
        return self._lifecycle.surely_fits(head)

    def _may_pass(self, than: int) -> Sequence | None:
        """Returns the tenant's shortest in line, if it is shorter `than` so many tokens, and may come before its turn.

        Nobody passes a head for which there may be too few blocks: that would have to wait for ever.
        """
        if self._blocked or self._foremost is not None:
            return None
        waiting, head = self._line.shortest(self._tenant), self._line.head(self._tenant, self._now)
        if waiting is None or head is None or waiting.landing or waiting.to_compute >= than:
            return None
        return waiting if self._lifecycle.surely_fits(head) else None

    @property
    def _foremost(self) -> Sequence | None:
        """Returns who comes before everybody else in line, if there is somebody."""
        return self._line.preempted or self.stuck

    def _admits(self, sequence: Sequence) -> bool:
        """Admits one that is in line, if it fits; if not, nobody else in line is admitted before it."""
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
