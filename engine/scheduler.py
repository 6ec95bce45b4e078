"""What the next step computes. Iteration-level: every step admits, grows, finishes and, under pressure, preempts.

Tokens are planned, not phases: a chunk of a prompt and a decode step are the same thing with other lengths. Running
sequences get their next token first, so that TPOT holds, then prompts get chunks of what is left of the step, in order
of arrival. Continuous batching after Orca (Yu et al., OSDI 2022); chunks beside decodes after Sarathi-Serve (Agrawal et
al., OSDI 2024); preemption by recomputing after vLLM (Kwon et al., SOSP 2023).

No wait is circular. What prefills has all its blocks and waits for nobody. What lands has all its blocks before a byte
moves. What decodes waits for blocks only, and the oldest of them is never preempted. Landing and parked sequences hold
their blocks until the service adopts or releases them, which their handoff's deadlines bound.
"""

from collections import deque

from msgspec import Struct

from core.errors import CapacityError, IllegalMove
from core.messages import Finish, Limits, Sampling
from core.records import Load
from engine.admission import Admission, InOrder
from engine.blocks import BlockManager
from engine.plan import PENDING, Plan, StepResult, Work
from engine.sequence import Sequence, SequenceState

NON_FINITE = "non-finite logits"


class Progress(Struct, frozen=True):
    """What a step did for one sequence: `tokens` at output indices `index`, …; the end, if this was it."""

    sequence: Sequence
    index: int
    tokens: list[int]
    finish: Finish | None = None
    failed: str = ""


class Scheduler:
    """Sequences in, plans out, results in, progress out."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        max_model_len: int,
        growth_reserve: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        """`max_in_flight`: steps that may be launched and not collected, 1 or 2.

        `max_sequences` run or land at once, but never more than `max_batch_tokens`: each gets a token in every step.
        """
        assert max_in_flight in (1, 2), "a PENDING token comes from the step before, not from an older one"
        self._blocks = blocks
        self._admission = Admission(blocks, growth_reserve=growth_reserve, max_model_len=max_model_len)
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = min(max_sequences, max_batch_tokens)
        self._max_in_flight = max_in_flight
        self._live: dict[int, Sequence] = {}  # by id: all that have not ended
        self._running = InOrder()
        self._landing = 0
        self._launched: deque[tuple[Plan, list[Sequence]]] = deque()
        self._admitted: list[Sequence] = []
        self._arrivals = 0
        self._planned_steps = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._preemptions = 0
        self._next_deadline = float("inf")

    # sequences come and go

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence and gives it its id. Raises `CapacityError`, with both numbers, if it can never fit."""
        if sequence.id:
            raise IllegalMove(f"sequence {sequence.id} of {sequence.key.request} was added before")
        self._admission.set_lengths(sequence)
        self._arrivals += 1
        sequence.id = self._arrivals
        self._live[sequence.id] = sequence
        self._admission.queue.insert(sequence)
        self._next_deadline = min(self._next_deadline, sequence.deadline)

    def take_admitted(self) -> list[Sequence]:
        """Those that got their first blocks since the last call: time to Open a handoff, or to Grant one."""
        admitted, self._admitted = self._admitted, []
        return [sequence for sequence in admitted if sequence.state is not SequenceState.ENDED]

    def adopt(self, sequence: Sequence, tokens: list[int], sampling: Sampling, limits: Limits) -> None:
        """The KV of a landing sequence is there; it goes on after `tokens`, which the prefill worker emitted.

        Raises `CapacityError` if its limits can never fit here, `IllegalMove` if it does not land or `tokens` are none;
        in both cases nothing has changed, and the sequence is still to be released.
        """
        if sequence.state is not SequenceState.LANDING or not tokens:
            raise IllegalMove(f"sequence {sequence.id}, {sequence.state.value}, adopted with {len(tokens)} tokens")
        before = sequence.limits
        sequence.tokens += tokens
        sequence.limits, sequence.landing = limits, False
        try:
            self._admission.set_lengths(sequence)
        except CapacityError:
            del sequence.tokens[-len(tokens) :]
            sequence.limits, sequence.landing = before, True
            raise
        sequence.sampling = sampling
        sequence.planned = sequence.computed = sequence.admitted_length
        self._landing -= 1
        self._run(sequence)

    def release(self, sequence: Sequence) -> None:
        """Ends a sequence in any state. Its blocks go back now, or with the last launched step that refers to them."""
        if sequence.state is not SequenceState.ENDED:
            self._end(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed, in order of arrival; the caller reports and releases them."""
        if now < self._next_deadline:
            return []
        live = self._live.values()
        self._next_deadline = min((each.deadline for each in live if each.deadline > now), default=float("inf"))
        return [sequence for sequence in live if sequence.deadline <= now]

    @property
    def next_deadline(self) -> float:
        """No sequence expires before this; infinite if there is none."""
        return self._next_deadline

    @property
    def in_flight(self) -> int:
        """Steps that are launched and not applied."""
        return len(self._launched)

    def has_work(self) -> bool:
        """Whether a sequence runs or waits; landing and parked ones depend on others."""
        return bool(len(self._running) or len(self._admission.queue))

    def load(self) -> Load:
        """Sequences, blocks and totals; what has not begun to run here (landing too) waits."""
        return Load(
            running=len(self._running),
            waiting=len(self._admission.queue) + self._landing,
            blocks_total=self._blocks.total,
            blocks_used=self._blocks.used_count,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._preemptions,
        )

    # a step

    def plan(self, now: float) -> Plan | None:
        """The next step, to be launched, or None.

        None while a step is in flight means: collect first. None while none is in flight means that nothing can happen
        before another call changes something: the worker may sleep until an event or `next_deadline`.
        The block tables in the plan are the sequences' own: they are to be read before the next call.
        """
        if len(self._launched) >= self._max_in_flight or not self._grow():
            return None
        works: list[Work] = []
        prompts: list[Sequence] = []
        for sequence in self._running:
            length = sequence.length
            if length >= sequence.plan_length or length > sequence.capacity:
                continue  # its last token is under way, or it waits for a block
            if length - sequence.planned == 1:
                works.append(self._work(sequence, 1))
            else:
                prompts.append(sequence)
        room = self._max_batch_tokens - len(works)
        prompts += self._admit(now, room - sum(sequence.length - sequence.planned for sequence in prompts))
        for sequence in prompts:
            if room == 0:
                break
            works.append(self._work(sequence, min(room, sequence.length - sequence.planned)))
            room -= len(works[-1].token_ids)
        if not works:
            return None
        self._planned_steps += 1
        plan = Plan(self._planned_steps, works)
        self._launched.append((plan, [self._live[work.sequence] for work in works]))
        return plan

    def apply(self, result: StepResult, now: float) -> list[Progress]:
        """Takes over what the oldest launched step computed, and ends, parks and frees accordingly.

        A token that was computed past a sequence's end, or after its release, is discarded. Raises `IllegalMove` for
        the result of another step.
        """
        if not self._launched or self._launched[0][0].step != result.step:
            raise IllegalMove(f"result of step {result.step} is not that of the oldest launched step")
        plan, members = self._launched.popleft()
        self._steps += 1
        failed = frozenset(result.failed)
        progress: list[Progress] = []
        for number, (work, sequence, tokens) in enumerate(zip(plan.works, members, result.tokens, strict=True)):
            sequence.in_flight -= 1
            if sequence.state is SequenceState.ENDED:
                self._free(sequence)
                continue
            sequence.computed += len(work.token_ids)
            if work.start < sequence.admitted_length:
                self._prompt_tokens += len(work.token_ids)
            if number in failed:
                progress.append(Progress(sequence, sequence.emitted, [], failed=NON_FINITE))
                self._end(sequence)
            elif work.sampling is not None:
                sequence.pending -= 1
                progress.append(self._accept(sequence, tokens, now))
        return progress

    def check_invariants(self) -> None:
        """Raises AssertionError unless sequences, blocks and steps in flight agree."""
        flying = [sequence for _, members in self._launched for sequence in members]
        assert all(each.blocks for each in flying), "a launched step writes to blocks that were given back"
        ended = {each.id: each for each in flying if each.state is SequenceState.ENDED}
        self._blocks.check_invariants(each.blocks for each in [*self._live.values(), *ended.values()] if each.blocks)
        by_state = {state: [each.id for each in self._live.values() if each.state is state] for state in SequenceState}
        assert sorted(by_state[SequenceState.WAITING]) == [each.id for each in self._admission.queue]
        assert sorted(by_state[SequenceState.RUNNING]) == [each.id for each in self._running]
        assert len(by_state[SequenceState.LANDING]) == self._landing
        assert not by_state[SequenceState.ENDED]
        for sequence in self._live.values():
            assert sequence.in_flight == flying.count(sequence)
            assert 0 <= sequence.computed <= sequence.planned <= sequence.length
            assert sequence.planned <= sequence.capacity
            assert bool(sequence.blocks) == (sequence.state is not SequenceState.WAITING)
            assert sequence.in_flight == 0 or sequence.state is SequenceState.RUNNING

    # inside a step

    def _grow(self) -> bool:
        """Gives every running sequence blocks for its next token, oldest first, preempting the latest if need be.

        False: blocks are short, and a step in flight is to be collected before anybody may lose some.
        """
        for sequence in list(self._running):
            length = sequence.length
            if length <= sequence.capacity or length >= sequence.plan_length:
                continue
            while sequence.state is SequenceState.RUNNING and not self._blocks.grow(sequence.blocks, length):
                if self._launched:
                    return False
                victim = self._victim()
                if victim is None:
                    break  # landing, parked or I/O blocks will come back
                self._preempt(victim)
            if sequence.blocks:
                sequence.capacity = self._blocks.capacity(sequence.blocks)
        return True

    def _victim(self) -> Sequence | None:
        """The latest arrival of those that may be preempted, but never the oldest: somebody always gets on."""
        candidates = [sequence for sequence in self._running if not sequence.hand_off]
        return candidates[-1] if len(candidates) > 1 else None

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a sequence's blocks; it keeps its tokens, and their KV is computed again later."""
        assert sequence.in_flight == 0
        sequence.move(SequenceState.WAITING)
        self._running.remove(sequence)
        self._free(sequence)
        sequence.planned = sequence.computed = 0
        sequence.preemptions += 1
        self._preemptions += 1
        self._admission.queue.insert(sequence)

    def _admit(self, now: float, room: int) -> list[Sequence]:
        """Admits from the head of the queue while blocks suffice; all but landings need room in this step too."""
        admitted: list[Sequence] = []
        queue = self._admission.queue
        while len(queue) and (room > 0 or queue.first.landing):
            sequence = queue.first
            others = len(self._running) + self._landing
            if others >= self._max_sequences or not self._admission.admit(sequence, others > 0):
                break
            if not sequence.preemptions:
                sequence.admitted_at = now
                self._admitted.append(sequence)
            if sequence.landing:
                sequence.move(SequenceState.LANDING)
                self._landing += 1
            else:
                self._run(sequence)
                admitted.append(sequence)
                room -= len(sequence.tokens)
        return admitted

    def _run(self, sequence: Sequence) -> None:
        sequence.move(SequenceState.RUNNING)
        self._running.insert(sequence)

    def _work(self, sequence: Sequence, count: int) -> Work:
        """The next `count` tokens of a sequence; the last of them all is sampled from."""
        start = sequence.planned
        sampled = start + count == sequence.length
        work = Work(
            sequence.id,
            start,
            sequence.tokens[start : start + count] or [PENDING],
            sequence.blocks,
            sequence.sampling if sampled else None,
            (sequence.key.sample,),
            sequence.emitted + sequence.pending,
        )
        sequence.planned += count
        sequence.pending += sampled
        sequence.in_flight += 1
        return work

    def _accept(self, sequence: Sequence, sampled: list[int], now: float) -> Progress:
        """Appends sampled tokens up to the end that one of them may be."""
        assert sampled, "a row that was sampled has a token, or has failed"
        index, before = sequence.emitted, len(sequence.tokens)
        finish: Finish | None = None
        for token in sampled:
            sequence.tokens.append(token)
            finish = sequence.finish_after(token, len(sequence.tokens))
            if finish:
                break
        accepted = sequence.tokens[before:]
        self._output_tokens += len(accepted)
        sequence.first_token_at = sequence.first_token_at or now
        if finish:
            self._end(sequence)
        elif sequence.hand_off:
            self._running.remove(sequence)
            sequence.move(SequenceState.PARKED)
        return Progress(sequence, index, accepted, finish)

    def _end(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING:
            self._admission.queue.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        elif sequence.state is SequenceState.LANDING:
            self._landing -= 1
        sequence.move(SequenceState.ENDED)
        del self._live[sequence.id]
        self._free(sequence)

    def _free(self, sequence: Sequence) -> None:
        """Gives a sequence's blocks back, unless a launched step still writes to them."""
        if sequence.in_flight == 0 and sequence.blocks:
            self._blocks.free(sequence.blocks)
            sequence.blocks, sequence.capacity = (), 0
