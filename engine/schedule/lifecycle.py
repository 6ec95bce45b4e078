"""Moves sequences between states, and updates their blocks and the prefix cache accordingly.

The scheduler decides when a sequence moves; every change of state happens here.
"""

from itertools import chain

from msgspec import structs

from engine.blocks.manager import BlockManager
from engine.schedule.admission import BlockAdmission
from engine.schedule.readiness import Readiness
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.shared_landings import SharedLandings
from engine.schedule.waiting_queue import ArrivalOrder
from infra.redis.worker_load import KVCounts


class Lifecycle:
    """Sequences by state, and the moves between states."""

    def __init__(
        self, blocks: BlockManager, admission: BlockAdmission, readiness: Readiness | None, max_sequences: int
    ) -> None:
        """`max_sequences`: maximum sequences that run or land at once."""
        self.live: dict[int, Sequence] = {}  # by id: all sequences that have not ended
        self.running = ArrivalOrder()
        self.landing = ArrivalOrder()
        self._shared_landings = SharedLandings(blocks.main)
        self.preemptions = 0  # since the start of the worker
        self.next_deadline = float("inf")  # s; no sequence expires before it
        self._forks = 0
        self._blocks = blocks
        self._admission = admission
        self._readiness = readiness
        self._max_sequences = max_sequences
        self.collected = 0  # number of the newest collected step
        self._arrivals = 0
        self._admitted: list[Sequence] = []  # for the next `take_admitted`

    def enter(self, members: list[Sequence], step: int) -> None:
        """Gives new sequences their ids, in order. The first waits for blocks, the others wait for its first token.

        `step` is the next step to be planned.
        """
        for each in members:
            self._arrivals += 1
            each.id = self._arrivals
            self.live[each.id] = each
        parent = members[0]
        parent.chains = self._blocks.chains(parent.prompt.salt, parent.prompt.adapter)
        parent.branches = members[1:]
        for branch in parent.branches:
            branch.parent, branch.state = parent, SequenceState.BRANCH
        if not parent.landing:
            parent.to_compute = len(parent.tokens) - self._admission.find(parent, step).tokens
        self._admission.queue.insert(parent)
        self.next_deadline = min(self.next_deadline, parent.deadline)

    def occupied(self) -> int:
        """Counts the running and landing sequences, and their branches that have not started."""
        return sum(1 + len(each.branches) for each in chain(self.running, self.landing))

    def waiting(self) -> int:
        return len(self._admission.queue) + len(self._shared_landings)

    def admit(self, sequence: Sequence, now: float, step: int) -> bool:
        """Admits a queued sequence if it fits; `step` is being planned.

        A landing may instead leave the queue to wait for another sequence's landing that brings most of its KV.
        """
        others = self.occupied()
        if others + 1 + len(sequence.branches) > self._max_sequences:
            return False  # before the cache lookup, which takes time for each token of the prompt, in every step
        found = self._admission.find(sequence, step)
        if sequence.landing and self._shared_landings.wait(sequence, found.whole_blocks):
            self._admission.queue.remove(sequence)
            return True
        if not self._admission.admit(sequence, found, others > 0):
            return False
        # A landing is registered with the newest step collected by then.
        sequence.since = found.since(self.collected if sequence.landing else step)
        if not sequence.preemptions:
            sequence.admitted_at = now
            self._admitted.append(sequence)
        self._start(sequence)
        return True

    def surely_fits(self, sequence: Sequence) -> bool:
        others = self.occupied()
        room = others + 1 + len(sequence.branches) <= self._max_sequences
        return room and self._admission.surely_fits(sequence, others > 0)

    def take_admitted(self) -> list[Sequence]:
        admitted, self._admitted = self._admitted, []
        return [sequence for sequence in admitted if sequence.state is not SequenceState.ENDED]

    def _start(self, sequence: Sequence) -> None:
        if sequence.landing:
            sequence.move(SequenceState.LANDING)
            self.landing.insert(sequence)
            self._shared_landings.announce(sequence, min(sequence.held_blocks))
        else:
            self.run(sequence)
        sequence.register_at = self._blocks.next_full(sequence.known)

    def run(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.LANDING:
            self._landing_over(sequence)
            self.next_deadline = min(self.next_deadline, sequence.deadline)  # may be past already
        sequence.move(SequenceState.RUNNING)
        sequence.looks_back = sequence.sampling.looks_back
        self.running.insert(sequence)

    def park(self, sequence: Sequence) -> None:
        """Excludes a sequence with a computed prompt from further steps; it keeps its blocks until it is released."""
        self.advance(sequence)
        self.running.remove(sequence)
        sequence.move(SequenceState.PARKED)

    def advance(self, sequence: Sequence) -> None:
        """Moves a sequence's windows: steps in flight read nothing before the last computed token's window.

        The freed blocks make room for more of its prompt.
        """
        if self._blocks.has_windows and sequence.computed >= sequence.advance_at:
            sequence.advance_at = self._blocks.advance(sequence.blocks, sequence.computed, sequence.admitted_length)
            sequence.capacity = self._blocks.capacity(sequence.blocks)

    def preempt(self, sequence: Sequence) -> None:
        """Frees a sequence's blocks; it keeps its tokens and is queued again.

        Its full blocks become idle, and its last blocks are evicted first. When it is admitted again, blocks that are
        still cached are reused, blocks in the host tier come back if that is cheaper, and the rest is computed again.
        """
        assert sequence.in_flight == 0
        sequence.move(SequenceState.WAITING)
        self.running.remove(sequence)
        sequence.lost_blocks = self._blocks.whole_blocks(sequence.computed)
        self.free(sequence)
        sequence.planned = sequence.computed = 0
        sequence.to_compute = len(sequence.tokens)  # an upper bound: some of its blocks may still be cached
        sequence.preemptions += 1
        self.preemptions += 1
        self._admission.queue.insert(sequence)

    def register(self, sequence: Sequence, upto: int, step: int | None = None) -> None:
        """Registers the KV of the first `upto` tokens in the prefix cache.

        Steps run in the order of planning, and a step stores all KV of a layer before it attends. Works planned later,
        even in the same step, can therefore share KV of the `step` being planned. Without `step` the KV is computed
        already, and no step in flight refers to it.
        """
        self._blocks.register(
            sequence.blocks,
            sequence.chains,
            sequence.tokens,
            sequence.known,
            upto,
            self.collected if step is None else step,
            sequence.since,
            replace=step is None,
        )
        sequence.register_at = self._blocks.next_full(sequence.known, upto)

    def begin_branches(self, parent: Sequence, branches: list[Sequence]) -> None:
        """Lets each branch run on the parent's blocks, which are copied on write."""
        for branch in branches:
            branch.blocks = self._blocks.fork(parent.blocks)
            branch.chains = tuple(keys.copy() for keys in parent.chains)
            branch.known = list(parent.known)
            branch.capacity, branch.register_at = parent.capacity, parent.register_at
            branch.advance_at = parent.advance_at
            branch.planned = branch.computed = parent.computed
            branch.admitted_length, branch.admitted_at = parent.admitted_length, parent.admitted_at
            branch.forked = parent.forked = True
            branch.since = parent.since
            branch.parent = None
            self._forks += 1
            self.run(branch)
        parent.branches = []

    def invalidate(self, sequence: Sequence, start: int, step: int) -> None:
        """Removes KV of a failed `step` from `start` on from the cache: sequences that find it would fail too.

        Finite logits prove that the KV of all earlier tokens is finite. A prompt without logits so far proves nothing,
        not even about KV found in the cache: the sequence that computed it may have been released before its first
        token.
        """
        proven = start >= sequence.admitted_length
        sound = start if proven else 0
        since = step if proven else self._blocks.since(sequence.blocks, sequence.since)
        self._blocks.invalidate(sequence.blocks, sound, since)
        sequence.computed = min(sequence.computed, sound)

    def release(self, sequence: Sequence) -> None:
        """Ends a sequence, or lets it go on without reports until its branches have started."""
        if sequence.state is SequenceState.ENDED:
            return
        if any(not released(branch) for branch in sequence.branches):
            sequence.abandoned = True
            return
        parent = sequence.parent
        self.end(sequence)
        if parent is not None and parent.abandoned:
            self.release(parent)

    def end(self, sequence: Sequence) -> None:
        if sequence in self._shared_landings:
            self._shared_landings.leave(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._admission.queue.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is SequenceState.LANDING:
            self._landing_over(sequence)
        sequence.move(SequenceState.ENDED)
        if self._readiness is not None and sequence.sampling.grammar:
            self._readiness.forget(sequence.id)
        del self.live[sequence.id]
        self.free(sequence)

    def _landing_over(self, sequence: Sequence) -> None:
        self.landing.remove(sequence)
        for each in self._shared_landings.conclude(sequence):
            self._admission.queue.insert(each)

    def free(self, sequence: Sequence) -> None:
        """Frees blocks unless a launched step still writes to them; the cache keeps full blocks."""
        if sequence.in_flight == 0 and sequence.blocks:
            self.register(sequence, sequence.computed)
            self._blocks.free(sequence.blocks)
            sequence.blocks, sequence.capacity, sequence.advance_at = (), 0, 0

    def kv_counts(self) -> KVCounts:
        """Counts cache hits, preemptions, forks and block moves, and the fill of the blocks."""
        pools = self._blocks.groups
        return structs.replace(
            self._admission.counts(),
            copied_blocks=sum([pool.copied for pool in pools]),
            forks=self._forks,
            evicted_blocks=sum([pool.evicted for pool in pools]),
            spilled_blocks=sum([pool.spilled for pool in pools]),
            returned_blocks=sum([pool.returned for pool in pools]),
            used_slots=self._blocks.used_slots,
            wasted_slots=sum([max(0, each.capacity - len(each.tokens)) for each in self.running]),
        )

    def expired(self, now: float) -> list[Sequence]:
        """Returns sequences past their deadline, in order of arrival; the caller reports and releases them."""
        if now < self.next_deadline:
            return []
        live = self.live.values()
        self.next_deadline = min((each.deadline for each in live if each.deadline > now), default=float("inf"))
        return [sequence for sequence in live if sequence.deadline <= now]

    def check_invariants(self, flying: list[Sequence]) -> None:
        """Raises AssertionError unless sequences and blocks agree; `flying`: the members of all launched steps."""
        assert all(each.blocks for each in flying), "a launched step writes to blocks that were given back"
        ended = {each.id: each for each in flying if each.state is SequenceState.ENDED}
        self._blocks.check_invariants(each.blocks for each in [*self.live.values(), *ended.values()] if each.blocks)
        by_state = {state: [each.id for each in self.live.values() if each.state is state] for state in SequenceState}
        queued = [each for each in self.live.values() if each not in self._shared_landings]
        assert sorted(each.id for each in self._admission.queue) == sorted(
            each.id for each in queued if each.state is SequenceState.WAITING
        )
        assert self.waiting() == len(by_state[SequenceState.WAITING]), "a waiting sequence is in no queue"
        assert not len(self._shared_landings) or len(self.landing), "sequences wait for a landing that does not exist"
        assert sorted(by_state[SequenceState.RUNNING]) == [each.id for each in self.running]
        assert sorted(by_state[SequenceState.LANDING]) == [each.id for each in self.landing]
        assert not by_state[SequenceState.ENDED]
        parents = [each.parent for each in self.live.values() if each.state is SequenceState.BRANCH]
        assert all(parent is not None and parent.id in self.live for parent in parents), (
            "a branch that would never begin"
        )
        for sequence in self.live.values():
            assert sequence.in_flight == flying.count(sequence)
            assert 0 <= sequence.computed <= sequence.planned <= sequence.length + max(0, sequence.drafted - 1)
            assert sequence.planned <= sequence.capacity
            assert sequence.drafted == 0 or sequence.pending == 1
            assert bool(sequence.blocks) == (sequence.state not in (SequenceState.WAITING, SequenceState.BRANCH))
            own = sequence.planned - sequence.drafted
            assert sequence.length - own >= (sequence.state is SequenceState.RUNNING)
            assert sequence.in_flight == 0 or sequence.state is SequenceState.RUNNING


def released(sequence: Sequence) -> bool:
    return sequence.abandoned or sequence.state is SequenceState.ENDED
