"""Plans what the next step computes: every step admits, grows, finishes and, under pressure, preempts.

Tokens are planned, not phases: a chunk of a prompt and a decode step are the same thing with other lengths. Running
sequences get their next token first, so that TPOT holds, then prompts get chunks of what is left of the step, the most
urgent first (`engine/schedule/line.py`). Continuous batching after Orca (Yu et al., OSDI 2022); chunks beside decodes
after Sarathi-Serve (Agrawal et al., OSDI 2024); preemption by recomputing after vLLM (Kwon et al., SOSP 2023).

No wait is circular. What prefills has all its blocks and waits for nobody. What lands has all its blocks before a byte
moves. What decodes waits for blocks only, and the oldest of them is never preempted. Landing and parked sequences hold
their blocks until the service adopts or releases them, which their handoff's deadlines bound.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Counts
from typing import NamedTuple

from msgspec import structs

from core.costs.backlog import Ahead, Backlog, owner_of, shares_of
from core.costs.fit import StepFit
from core.costs.steps import StepWork, pairs_of
from core.errors import CapacityError, IllegalMove
from core.messages.sampling import Limits, Sampling
from core.redis.records import STEP_SIZES, Load, SpeculationCounts, StepTokens
from engine.blocks.key_changes import Changed
from engine.blocks.manager import BlockManager
from engine.plan import PENDING, BlockMove, Plan, StepResult, Work
from engine.schedule.acceptance import Acceptance
from engine.schedule.admission import Admission
from engine.schedule.chunking import Chunking
from engine.schedule.lifecycle import Lifecycle, released
from engine.schedule.progress import CONSTRAINTS, GRAMMAR, NON_FINITE, NONE_LEFT, Progress
from engine.schedule.readiness import Readiness
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.speculation.speculation import Speculation
from engine.schedule.turns import SHORTER, Turns
from engine.verification import foreseen

USUAL = 0.1
"""The newest step's weight in what a step usually takes."""


class Launched(NamedTuple):
    """Keeps a step that is under way."""

    plan: Plan
    members: list[Sequence]  # of each work its sequence
    work: StepWork
    planned_at: float  # s


class Scheduler:
    """Takes sequences and gives plans, takes results and gives progress."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        max_model_len: int,
        growth_reserve: Counts[int] = (),
        max_in_flight: int = 1,
        chunking: Chunking | None = None,
        readiness: Readiness | None = None,
        shorter: float = SHORTER,
        fit: StepFit | None = None,
        speculation: Speculation | None = None,
        tells_states: bool = False,
    ) -> None:
        """Plans over the blocks of `blocks`, of which `growth_reserve` of each group stay free for those who run.

        `max_batch_tokens`: tokens of a step. `max_sequences`: sequences that run or land at once, but never more than
        `max_batch_tokens`: each gets a token in every step. `max_model_len`: tokens of a sequence. `max_in_flight`:
        steps that may be launched and not collected, 1 or 2. `chunking`: how prompts are cut beside decodes; None: into
        all that is left of `max_batch_tokens`. `readiness`: prepares sequences that have a grammar. `shorter`: share of
        a step's tokens that a long prompt leaves to shorter ones, while there are any. `fit`: learns what steps cost.
        `speculation`: guesses tokens, which steps verify beside the next ones; None: nobody does. `tells_states`:
        whoever goes on elsewhere takes the hidden state of its last computed token along.
        """
        assert max_in_flight in (1, 2), "a PENDING token comes from the step before, not from an older one"
        self._blocks = blocks
        self._admission = Admission(blocks, growth_reserve=growth_reserve, max_model_len=max_model_len)
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = min(max_sequences, max_batch_tokens)
        self._max_in_flight = max_in_flight
        self._readiness = readiness
        self._lifecycle = Lifecycle(blocks, self._admission, readiness, self._max_sequences)
        self._turns = Turns(self._admission.line, self._lifecycle, shorter)
        self._acceptance = Acceptance(self._lifecycle)
        self._running, self._landing = self._lifecycle.running, self._lifecycle.landing
        self._chunking = chunking or Chunking()
        self._fit = fit or StepFit()
        self._speculation = speculation
        self._tells_states = tells_states
        self._prompts: list[Sequence] = []  # that were being computed when a step was last planned
        self._decoding = StepWork()  # what decoded then
        self._usual = 0.0  # s that a step takes, as a moving average
        self._launched: deque[Launched] = deque()
        self._applied_at = 0.0  # s, the newest result
        self._planned_steps = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._step_sizes = [0] * (len(STEP_SIZES) + 1)

    # sequences come and go ------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence, branches: Iterable[Sequence] = ()) -> None:
        """Queues a new sequence; each gets its id. Raises `CapacityError`, with both numbers, if it can never fit.

        `branches` are further samples of the same tokens. They wait until `sequence` has its first token; then each has
        one of its own, drawn from the same logits, and goes on with the same blocks, copied where they differ.
        """
        members = [sequence, *branches]
        if any(each.id for each in members):
            raise IllegalMove(f"a sequence of {sequence.key.request} was added before")
        if len(members) > self._max_sequences:
            raise CapacityError(f"{len(members)} samples of a prompt, but {self._max_sequences} sequences run at once")
        for each in members:
            self._admission.set_lengths(each)
        self._lifecycle.enter(members, self._planned_steps + 1)
        self._may_be_sampled(sequence)  # its grammar is prepared while it waits

    def take_admitted(self) -> list[Sequence]:
        """Returns those that got their first blocks since the last call: time to Open a handoff, or to Grant one."""
        return self._lifecycle.take_admitted()

    def take_moves(self) -> list[BlockMove]:
        """Returns what the last plan needs to be done to the blocks' bytes, before anything else touches the pool."""
        return self._blocks.take_moves()

    def take_key_changes(self) -> Changed | None:
        """Returns which blocks' texts the cache has come to know and has forgotten since the last call."""
        return self._blocks.take_key_changes()

    def adopt(
        self,
        sequence: Sequence,
        emitted: Mapping[int, list[int]],
        sampling: Sampling,
        limits: Limits,
        state: bytes = b"",
    ) -> None:
        """Lets a landing sequence whose KV is there, and its branches, go on after what each, by sample, has `emitted`.

        `state` is the hidden state of the last token before those, if it was told.
        Raises `CapacityError` if the limits can never fit here, `IllegalMove` if it does not land, or if `emitted` has
        no tokens for one of those that were not released; in both cases nothing has changed.
        """
        members = [each for each in (sequence, *sequence.branches) if not released(each)]
        if sequence.state is not SequenceState.LANDING or not all(emitted.get(each.key.sample) for each in members):
            raise IllegalMove(f"sequence {sequence.id}, {sequence.state.value}, adopted with tokens of {list(emitted)}")
        before = sequence.limits
        for at, each in enumerate(members):
            each.tokens += emitted[each.key.sample]
            each.limits, each.landing = limits, False
            try:
                self._admission.set_lengths(each)
            except CapacityError:
                for changed in members[: at + 1]:
                    del changed.tokens[-len(emitted[changed.key.sample]) :]
                    changed.limits, changed.landing = before, True
                raise
        for each in members:
            each.sampling, each.told, each.told_at = sampling, state, sequence.admitted_length
        sequence.planned = sequence.computed = sequence.admitted_length
        self._lifecycle.register(sequence, sequence.computed)
        sequence.since = self._blocks.since(sequence.blocks, sequence.since)  # some may be another's now
        self._lifecycle.run(sequence)
        self._lifecycle.begin_branches(sequence, [each for each in members if each is not sequence])
        if sequence.abandoned:
            self._lifecycle.end(sequence)
        for each in members:
            if not released(each):
                self._may_be_sampled(each)

    def release(self, sequence: Sequence) -> None:
        """Ends a sequence in any state. Its blocks go back now, or with the last launched step that refers to them.

        One whose branches have not begun goes on for them, unheard.
        """
        self._lifecycle.release(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Returns sequences whose deadline has passed, in order of arrival; the caller reports and releases them."""
        return self._lifecycle.expired(now)

    @property
    def next_deadline(self) -> float:
        """Returns the time in s before which no sequence expires; infinite if there is none."""
        return self._lifecycle.next_deadline

    def load(self) -> Load:
        """Counts sequences, blocks and totals; what has not begun to run here (landing too) waits."""
        return Load(
            running=len(self._running),
            waiting=self._lifecycle.waiting() + len(self._landing),
            blocks_total=self._blocks.total,
            blocks_used=self._blocks.used_count,
            blocks_cached=self._blocks.cached_count,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._acceptance.output_tokens,
            preemptions=self._lifecycle.preemptions,
            kv=self._lifecycle.kv_counts(),
            step_tokens=StepTokens(tuple(self._step_sizes), self._prompt_tokens + self._acceptance.output_tokens),
            backlog=self._backlog(),
            costs=self._fit.costs,
            speculation=self._speculation.counts() if self._speculation is not None else SpeculationCounts(),
        )

    def _backlog(self) -> Backlog:
        """Counts what is still to be computed of the prompts here, and what decodes."""
        line, main = self._admission.line, self._blocks.groups[self._blocks.main]
        left = [
            Ahead(each.admitted_length - each.computed, each.computed, owner_of(each.prompt.tenant, each.prompt.weight))
            for each in self._prompts
            if each.state is SequenceState.RUNNING and each.computed < each.admitted_length
        ]
        decoding = self._decoding if len(self._running) else StepWork()
        waiting = Backlog(
            prompts=len(line),
            tokens=line.tokens,
            pairs=line.pairs,
            shares=shares_of(line.owned),
            lengths=tuple(line.lengths),
            sequences=decoding.sequences,
            context=decoding.context,
            free_blocks=main.available,
            step_ms=self._usual * 1000,
        )
        return waiting.and_prompts(left)

    # a step ---------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan | None:
        """Returns the next step, to be launched, or None.

        None while a step is in flight means: collect first. None while none is in flight means that nothing can happen
        before another call, or a grammar that gets ready, changes something: the worker may sleep until an event or
        `next_deadline`.
        The block tables in the plan are the sequences' own: they are to be read before the next call.
        """
        if len(self._launched) >= self._max_in_flight or not self._grow():
            return None
        decodes, prompts = self._ready()
        self._prompts = prompts
        room = self._max_batch_tokens - len(decodes)
        if decodes:
            room = self._chunking.room(room)
        works, left = self._decodes(decodes, room)
        context = sum([work.start + len(work.token_ids) for work in works])
        self._decoding = StepWork(sequences=len(decodes), context=context)
        chunks = self._chunks(prompts, left, now)
        works += chunks
        if not works:
            return None
        self._planned_steps += 1
        plan = Plan(self._planned_steps, works)
        live = self._lifecycle.live
        members = [live[work.sequence] for work in works]
        self._prompts = list(dict.fromkeys([*prompts, *members[len(decodes) :]]))
        work = StepWork(
            prompt_tokens=sum([len(chunk.token_ids) for chunk in chunks]),
            pairs=sum([pairs_of(chunk.start, len(chunk.token_ids)) for chunk in chunks]),
            sequences=len(decodes),
            context=context,
            rows=room - left,
        )
        self._launched.append(Launched(plan, members, work, now))
        return plan

    def apply(self, result: StepResult, now: float) -> list[Progress]:
        """Takes over what the oldest launched step computed, and ends, parks and frees accordingly.

        A token that was computed past a sequence's end, or after its release, is discarded. Returns what the step did
        for each sequence that somebody wants to hear of. Raises `IllegalMove` for the result of another step.
        """
        if not self._launched or self._launched[0].plan.step != result.step:
            raise IllegalMove(f"result of step {result.step} is not that of the oldest launched step")
        step = self._launched.popleft()
        self._lifecycle.collected = result.step
        # It began when it was planned, or when the step before was done.
        seconds = now - max(step.planned_at, self._applied_at)
        self._chunking.learn(step.work.prompt_tokens, step.work.sequences, seconds)
        self._fit.learn(step.work, seconds)
        self._usual += USUAL * (seconds - self._usual) if self._steps else seconds
        self._applied_at = now
        self._steps += 1
        before = self._prompt_tokens + self._acceptance.output_tokens
        failed = {
            index: (CONSTRAINTS if refusal.ours else GRAMMAR) + refusal.why for index, refusal in result.refused.items()
        }
        failed |= dict.fromkeys(result.none_left, NONE_LEFT)
        failed |= dict.fromkeys(result.failed, NON_FINITE)  # whatever else is wrong: its KV has to leave the cache
        progress: list[Progress] = []
        shares = zip(step.plan.works, step.members, result.tokens, strict=True)
        for index, (work, sequence, tokens) in enumerate(shares):
            sequence.in_flight -= 1
            if failed.get(index) == NON_FINITE:
                self._lifecycle.invalidate(sequence, work.start, result.step)
            if sequence.state is SequenceState.ENDED:
                self._lifecycle.free(sequence)
                continue
            if work.start < sequence.admitted_length:
                self._prompt_tokens += len(work.token_ids) - len(work.proposed)
            if index in failed:
                progress += self._acceptance.fail(sequence, failed[index])
                continue
            sequence.computed += len(work.token_ids) - len(work.proposed) + foreseen(work.proposed, tokens)
            if work.prompt_rows is not None:
                sequence.keep_prompt_scores(result.prompt_scores[index])
            if work.sampling is not None:
                sequence.pending -= 1
                taken = self._acceptance.accept(sequence, tokens, result.scores.get(index), now)
                if (state := result.states.get(index)) is not None:
                    taken = [structs.replace(each, state=state) for each in taken]
                progress += taken
            if self._speculation is not None and (work.proposed or work.propose):
                self._speculation.judge(sequence, work, tokens, result.proposed.get(index))
        self._step_sizes[bisect_left(STEP_SIZES, self._prompt_tokens + self._acceptance.output_tokens - before)] += 1
        return progress

    def check_invariants(self) -> None:
        """Raises AssertionError unless sequences, blocks and steps in flight agree."""
        flying = [sequence for step in self._launched for sequence in step.members]
        self._lifecycle.check_invariants(flying)

    # inside a step --------------------------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """Gives every running sequence a block of its own for its next token, oldest first, preempting if need be.

        Prompts have theirs, as far as their windows reach. Returns False where blocks are short, and a step in flight
        is to be collected before anybody may lose some.
        """
        if self._blocks.has_windows:
            for sequence in self._running:
                self._lifecycle.advance(sequence)
        short = [each for each in self._running if each.length > each.capacity or each.forked]
        for sequence in short:
            length = sequence.length
            if length >= sequence.plan_length:
                continue
            if sequence.planned < sequence.admitted_length:  # a prompt: as much of it as its windows reach
                length = min(length, max(sequence.planned + 1, sequence.capacity))
                if length <= sequence.capacity and not sequence.forked:
                    continue
            position = sequence.planned if sequence.forked else None
            while sequence.state is SequenceState.RUNNING and not self._blocks.grow(sequence.blocks, length, position):
                if self._launched:
                    return False
                victim = self._victim()
                if victim is None:
                    break  # landing, parked or I/O blocks will come back
                self._lifecycle.preempt(victim)
            else:
                if sequence.blocks:
                    sequence.capacity = self._blocks.capacity(sequence.blocks)
                    sequence.forked = False
        return True

    def _ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """Returns those who run and can go on in this step: who decode, and whose prompts are still to be computed.

        Who decodes has more than one token to compute where its grammar has given it several at once.
        """
        decodes, prompts = [], []
        for sequence in self._running:
            length = sequence.length
            if length >= sequence.plan_length or sequence.forked:
                continue  # its last token is under way, or it waits for a block
            if length > sequence.capacity and sequence.planned >= min(sequence.admitted_length, sequence.capacity):
                continue  # it waits for a block; a prompt may be longer than its windows reach
            if sequence.pending and (sequence.branches or sequence.sampling.grammar or self._guesses(sequence)):
                continue  # its branches are to begin first; a grammar, and guesses, have to see the token before
            if length - sequence.planned == 1 or sequence.planned >= sequence.admitted_length:
                if self._may_be_sampled(sequence):
                    decodes.append(sequence)
            else:
                prompts.append(sequence)
        return decodes, prompts

    def _decodes(self, decodes: list[Sequence], room: int) -> tuple[list[Work], int]:
        """Plans a token of each, and up to `room` more of those that have more to compute; returns what is left of it.

        Hundreds may decode in steps of a few milliseconds: little is done for each.
        """
        works: list[Work] = []
        speculation = self._speculation
        if speculation is not None and not (decodes and speculation.begin(len(decodes), self._decoding.context)):
            speculation = None
        for sequence in decodes:
            count = sequence.length - sequence.planned
            proposed: tuple[int, ...] = ()
            whole = True
            if count > 1:
                whole = count <= 1 + room
                count = min(count, 1 + room)
                room -= count - 1
            if speculation is not None and whole:
                proposed = speculation.guess(sequence, len(decodes), room)
                room -= len(proposed)
            works.append(self._work(sequence, count, proposed))
        return works, room

    def _guesses(self, sequence: Sequence) -> bool:
        """Tells whether what follows a sequence's tokens may be guessed, once they are known."""
        return self._speculation is not None and self._speculation.serves(sequence)

    def _chunks(self, prompts: list[Sequence], room: int, now: float) -> list[Work]:
        """Cuts chunks of `room` tokens at most, of prompts in progress and of those that are admitted for it.

        They come one by one: each may share what the ones before it compute in this very step.
        """
        works: list[Work] = []
        for sequence, most in self._turns.take(prompts, room, now, self._planned_steps + 1):
            if count := self._chunk(sequence, most):
                works.append(self._work(sequence, count))
        return works

    def _chunk(self, sequence: Sequence, room: int) -> int:
        """Counts the tokens of a prompt that are computed next; the last one waits for the sequence's grammar."""
        left = sequence.left
        room = min(room, sequence.capacity - sequence.planned)
        return min(room, left if room < left or self._may_be_sampled(sequence) else left - 1)

    def _may_be_sampled(self, sequence: Sequence) -> bool:
        """Tells whether a sequence's next token can be drawn; begins to prepare its grammar if not."""
        grammar = sequence.sampling.grammar
        if self._readiness is None or not grammar:
            return True
        return self._readiness.ready(sequence.id, grammar, sequence.tokens, sequence.prompt_tokens)

    def _victim(self) -> Sequence | None:
        """Chooses who is preempted: the lowest priority, of these the latest arrival, but never the oldest of all.

        So somebody always gets on.
        """
        candidates = [sequence for sequence in self._running if not sequence.hand_off]
        return max(candidates[1:], key=_gives_way, default=None)

    def _work(self, sequence: Sequence, count: int, proposed: tuple[int, ...] = ()) -> Work:
        """Plans the next `count` tokens of a sequence, and guesses; the last of its tokens, and those, are drawn at."""
        start, length = sequence.planned, sequence.length
        end = start + count
        sampled = end == length
        samples: tuple[int, ...] = (sequence.key.sample,)
        if sequence.branches:
            samples += tuple(branch.key.sample for branch in sequence.branches)
        sampling, output_index = sequence.sampling, length - sequence.prompt_tokens
        propose = 0
        if sampled and self._speculation is not None and self._speculation.in_engine:
            propose = self._speculation.wanted(sequence, len(proposed))
        state = b""
        if sequence.told and start == sequence.told_at:
            state, sequence.told = sequence.told, b""
        work = Work(
            sequence=sequence.id,
            start=start,
            token_ids=[*sequence.tokens[start:end], *proposed] or [PENDING],
            blocks=sequence.blocks,
            sampling=sampling if sampled else None,
            samples=samples,
            output_index=output_index,
            tokens=sequence.tokens if sampled and (sampling.looks_back or propose) else None,
            prompt_tokens=sequence.prompt_tokens,
            banned=sequence.limits.stop_token_ids if output_index < sequence.limits.min_tokens else (),
            prompt_rows=sequence.prompt_rows(start, end) if sampling.prompt_logprobs is not None else None,
            adapter=sequence.prompt.adapter,
            proposed=proposed,
            propose=propose,
            state=state,
            tells_state=sampled and sequence.hand_off and self._tells_states,
        )
        sequence.planned = end + len(proposed)
        sequence.guessed = len(proposed)
        sequence.pending += sampled
        sequence.in_flight += 1
        if end >= sequence.register_at:
            self._lifecycle.register(sequence, min(end, len(sequence.tokens)), self._planned_steps + 1)
        return work


def _gives_way(sequence: Sequence) -> tuple[int, int]:
    """Orders sequences: the greatest is preempted first."""
    return sequence.prompt.priority, sequence.id
