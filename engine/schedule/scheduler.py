"""Plans the next step: admits, grows and finishes sequences and, if blocks are short, preempts some.

The unit is the token, not a phase: a chunk of a prompt and a decode step differ only in length. Running sequences get
their next token first, which keeps TPOT low; prompts get chunks from the rest of the step's token budget, most urgent
first (`waiting_queue.py`). Continuous batching after Orca (Yu et al., OSDI 2022); chunks beside decodes after
Sarathi-Serve (Agrawal et al., OSDI 2024); preemption by recomputing after vLLM (Kwon et al., SOSP 2023).

There is no circular wait. A prefilling sequence has all its blocks. A landing sequence has all its blocks before a byte
moves. A decoding sequence waits only for blocks, and the oldest is never preempted. Landing and parked sequences hold
their blocks until the service adopts or releases them, within the handoff's deadlines.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Counts
from typing import NamedTuple

from msgspec import Struct, structs

from contracts.errors import CapacityError, IllegalMove
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.key_changes import Changed
from engine.blocks.manager import BlockManager
from engine.plan import BlockMove, StepPlan, StepResult
from engine.schedule.acceptance import Acceptance
from engine.schedule.admission import BlockAdmission
from engine.schedule.chunking import Chunking
from engine.schedule.growth import Growth
from engine.schedule.lifecycle import Lifecycle, released
from engine.schedule.progress import CONSTRAINTS_PREFIX, GRAMMAR_PREFIX, NON_FINITE, NONE_LEFT, SequenceProgress
from engine.schedule.prompt_turns import SHORTER_PROMPTS_SHARE, PromptTurns
from engine.schedule.readiness import Readiness
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.speculation import Speculation
from engine.schedule.step_history import StepHistory
from engine.schedule.step_repetition import StepRepetition
from engine.schedule.works import Telling, Works
from engine.speculation.control.controller import PlannedDecodes
from infra.redis.worker_load import SpeculationCounts, StepTokens, WorkerLoad
from pricing.routes.backlog import Backlog, PromptWork, largest_tenants, owner_of
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """Limits of a scheduler's steps and sequences."""

    max_batch_tokens: int  # tokens of a step
    max_sequences: int  # running or landing; at most `max_batch_tokens`: each gets a token in every step
    max_model_len: int  # tokens of a sequence
    growth_reserve: Counts[int] = ()  # blocks of each KV group that stay free for running sequences
    max_in_flight: int = 1  # steps that may be launched and not collected, 1 or 2
    shorter: float = SHORTER_PROMPTS_SHARE  # share of a step that a long prompt leaves to shorter prompts
    returns_states: bool = False  # a handoff includes the hidden state of the last computed token
    pools: bool = False  # a sequence ends with the result of its states, and no token is drawn
    whole_prompts: bool = False  # a prompt is computed in one step, without KV from the cache


class PlannedStep(NamedTuple):
    """A step that is planned and not applied yet."""

    plan: StepPlan
    members: list[Sequence]  # the sequence of each work
    work: StepWork
    planned_at: float  # s
    decoding: PlannedDecodes | None  # what its decodes try; None: no trial


class Scheduler:
    """Turns sequences into plans, and results into progress."""

    def __init__(
        self,
        blocks: BlockManager,
        limits: SchedulerLimits,
        *,
        chunking: Chunking | None = None,
        readiness: Readiness | None = None,
        fit: StepFit | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """Plans steps over `blocks`.

        `chunking` limits prompt tokens beside decodes; None: only by the token budget. `readiness` prepares sequences
        with a grammar. `fit` learns the costs of steps. `speculation` plans draft tokens; None: none.
        """
        assert limits.max_in_flight in (1, 2), "a pending token comes from the step before, not from an older one"
        self._blocks = blocks
        self._limits = limits
        self._admission = BlockAdmission(
            blocks,
            growth_reserve=limits.growth_reserve,
            max_model_len=limits.max_model_len,
            whole_prompts=limits.whole_prompts,
        )
        self._max_sequences = min(limits.max_sequences, limits.max_batch_tokens)
        self._lifecycle = Lifecycle(blocks, self._admission, readiness, self._max_sequences)
        self._growth = Growth(blocks, self._lifecycle)
        turns = PromptTurns(self._admission.queue, self._lifecycle, 0.0 if limits.whole_prompts else limits.shorter)
        telling = Telling(limits.returns_states, limits.pools, limits.whole_prompts)
        self._works = Works(self._lifecycle, turns, readiness, speculation, telling)
        self._acceptance = Acceptance(self._lifecycle)
        self._running, self._landing = self._lifecycle.running, self._lifecycle.landing
        self._repetition = StepRepetition(blocks)
        self._history = StepHistory(chunking or Chunking(), fit or StepFit())
        self._speculation = speculation
        self._prompts: list[Sequence] = []  # in progress when the newest step was planned
        self._decoding = StepWork()  # the decodes of that step
        self._launched: deque[PlannedStep] = deque()
        self._applied_at = 0.0  # s, when the newest result was applied
        self._planned_steps = 0
        self._prompt_tokens = 0

    # sequences -------------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence, branches: Iterable[Sequence] = ()) -> None:
        """Queues a new sequence and gives it an id. Raises `CapacityError`, with both numbers, if it can never fit.

        `branches` are further samples of the same tokens. They wait for the first token of `sequence`; then each draws
        its own from the same logits, and continues on the same blocks, copied on write.
        """
        members = [sequence, *branches]
        if any(each.id for each in members):
            raise IllegalMove(f"a sequence of {sequence.key.request} was added before")
        if len(members) > self._max_sequences:
            raise CapacityError(f"{len(members)} samples of a prompt, but {self._max_sequences} sequences run at once")
        for each in members:
            self._admission.set_lengths(each)
        self._lifecycle.enter(members, self._planned_steps + 1)
        self._works.may_be_sampled(sequence)  # its grammar is prepared while it waits

    def take_admitted(self) -> list[Sequence]:
        return self._lifecycle.take_admitted()

    def take_moves(self) -> list[BlockMove]:
        return self._blocks.take_moves()

    def take_key_changes(self) -> Changed | None:
        return self._blocks.take_key_changes()

    def adopt(
        self,
        sequence: Sequence,
        emitted: Mapping[int, list[int]],
        sampling: Sampling,
        limits: Limits,
        state: bytes = b"",
    ) -> None:
        """Continues a sequence whose KV has landed, and its branches, after the tokens `emitted` by each sample.

        `state` is the hidden state of the token before `emitted`, if it was sent. Raises `CapacityError` if the limits
        can never fit here, and `IllegalMove` if the sequence does not land or if `emitted` lacks a sample that was not
        released; then nothing has changed.
        """
        members = [each for each in (sequence, *sequence.branches) if not released(each)]
        if sequence.state is not SequenceState.LANDING or not all(emitted.get(each.key.sample) for each in members):
            raise IllegalMove(f"sequence {sequence.id}, {sequence.state.value}, adopted with tokens of {list(emitted)}")
        before = sequence.limits
        for at, each in enumerate(members):
            each.tokens.extend(emitted[each.key.sample])
            each.limits, each.landing = limits, False
            try:
                self._admission.set_lengths(each)
            except CapacityError:
                for changed in members[: at + 1]:
                    del changed.tokens[-len(emitted[changed.key.sample]) :]
                    changed.limits, changed.landing = before, True
                raise
        for each in members:
            each.sampling, each.handed_state, each.handed_state_at = sampling, state, sequence.admitted_length
        sequence.planned = sequence.computed = sequence.admitted_length
        self._lifecycle.register(sequence, sequence.computed)
        sequence.since = self._blocks.since(sequence.blocks, sequence.since)  # blocks may be another's now
        self._lifecycle.run(sequence)
        self._lifecycle.begin_branches(sequence, [each for each in members if each is not sequence])
        if sequence.abandoned:
            self._lifecycle.end(sequence)
        for each in members:
            if not released(each):
                self._works.may_be_sampled(each)

    def release(self, sequence: Sequence) -> None:
        """Ends a sequence in any state. Its blocks are freed now, or after the last launched step that refers to them.

        A sequence whose branches have not started continues for them, without reporting progress.
        """
        self._lifecycle.release(sequence)

    def expired(self, now: float) -> list[Sequence]:
        return self._lifecycle.expired(now)

    @property
    def next_deadline(self) -> float:
        return self._lifecycle.next_deadline

    def load(self) -> WorkerLoad:
        """Counts sequences, blocks and totals; landing sequences count as waiting."""
        return WorkerLoad(
            running=len(self._running),
            waiting=self._lifecycle.waiting() + len(self._landing),
            blocks_total=self._blocks.total,
            blocks_used=self._blocks.used_count,
            blocks_cached=self._blocks.cached_count,
            steps=self._history.steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._acceptance.output_tokens,
            preemptions=self._lifecycle.preemptions,
            kv=self._lifecycle.kv_counts(),
            step_tokens=StepTokens(self._history.sizes(), self._prompt_tokens + self._acceptance.output_tokens),
            backlog=self.backlog(),
            costs=self._history.fit.costs,
            step_totals=self._history.totals,
            speculation=self._speculation.counts() if self._speculation is not None else SpeculationCounts(),
        )

    def backlog(self) -> Backlog:
        """Counts the work that comes before a new request's, as `load` does."""
        queue, main = self._admission.queue, self._blocks.groups[self._blocks.main]
        left = [
            PromptWork(
                each.admitted_length - each.computed, each.computed, owner_of(each.prompt.tenant, each.prompt.weight)
            )
            for each in self._prompts
            if each.state is SequenceState.RUNNING and each.computed < each.admitted_length
        ]
        decoding = self._decoding if len(self._running) else StepWork()
        waiting = Backlog(
            prompts=len(queue),
            tokens=queue.tokens,
            pairs=queue.pairs,
            shares=largest_tenants(queue.owned),
            lengths=tuple(queue.lengths),
            sequences=decoding.sequences,
            context=decoding.context,
            free_blocks=main.available,
            step_ms=self._history.usual_s * 1000,
        )
        return waiting.and_prompts(left)

    @property
    def launched_work(self) -> StepWork:
        """Returns the work of the newest step, which is launched and not collected."""
        return self._launched[-1].work

    def repeat(self, most: int) -> int:
        """Lets the newest step be carried out several times in a row, each with a token more of every sequence.

        Returns how many times, from 1 to `most`: until a sequence ends or is handed off, or blocks for their further
        tokens are short. Sequences take these blocks when the steps' result is applied. Fewer may be carried out, and
        `learn` is told of each. A step with prompts is not repeated.
        """
        work, members = self._launched[-1].work, self._launched[-1].members
        if work.prompt_tokens or len(members) < len(self._running):
            return 1
        return self._repetition.most(members, most)

    @property
    def costs(self) -> StepCosts:
        return self._history.fit.costs

    def blocks_for(self, further: int) -> int:
        """Returns how many of the blocks that `load` counts as free the newest step's sequences take for more steps."""
        return self._repetition.missing(self._launched[-1].members, further)[self._blocks.main]

    # a step ---------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Returns the next step to launch, or None.

        None while a step is in flight: collect it first. None otherwise: nothing can be computed until another call is
        made or a grammar gets ready, so the worker may sleep until an event or `next_deadline`. The plan refers to the
        sequences' own block tables: read them before the next call.
        """
        if len(self._launched) >= self._limits.max_in_flight or not self._growth.grow(bool(self._launched)):
            return None
        step = self._planned_steps + 1
        decodes, prompts = self._works.ready()
        self._prompts = prompts
        budget = self._limits.max_batch_tokens - len(decodes)
        if decodes:
            budget = self._history.chunking.budget(budget)
        works, left = self._works.decodes(decodes, budget, self._decoding.context, step)
        context = sum([work.start + len(work.token_ids) for work in works])
        self._decoding = StepWork(sequences=len(decodes), context=context)
        chunks = self._works.chunks(prompts, left, now, step)
        works += chunks
        if not works:
            return None
        self._planned_steps = step
        plan = StepPlan(step, works)
        live = self._lifecycle.live
        members = [live[work.sequence] for work in works]
        self._prompts = list(dict.fromkeys([*prompts, *members[len(decodes) :]]))
        work = StepWork(
            prompt_tokens=sum([len(chunk.token_ids) for chunk in chunks]),
            pairs=sum([pairs_of(chunk.start, len(chunk.token_ids)) for chunk in chunks]),
            sequences=len(decodes),
            context=context,
            rows=budget - left,
        )
        decoding = self._speculation.decoding if self._speculation is not None and decodes and not chunks else None
        self._launched.append(PlannedStep(plan, members, work, now, decoding))
        return plan

    def apply(self, result: StepResult, now: float) -> list[SequenceProgress]:
        """Applies the result of the oldest launched step: sequences continue, end or park, and blocks are freed.

        Tokens past a sequence's end, or after its release, are dropped. Returns the progress of each sequence that was
        not released. Raises `IllegalMove` for the result of another step.
        """
        if not self._launched or self._launched[0].plan.step != result.step:
            raise IllegalMove(f"result of step {result.step} is not that of the oldest launched step")
        step = self._launched.popleft()
        self._lifecycle.collected = result.step
        # The step began when it was planned, or when the previous step was applied.
        seconds = now - max(step.planned_at, self._applied_at)
        if further := result.repeats - 1:
            self._repetition.go_on(step.members, further)
        else:
            self._history.learn(step.work, (seconds,), result.proposing)
        self._applied_at = now
        prompt, output = self._prompt_tokens, self._acceptance.output_tokens
        failed = {
            index: (CONSTRAINTS_PREFIX if refusal.by_worker else GRAMMAR_PREFIX) + refusal.why
            for index, refusal in result.refused.items()
        }
        failed |= dict.fromkeys(result.none_left, NONE_LEFT)
        failed |= dict.fromkeys(result.failed, NON_FINITE)  # before other reasons: its KV has to leave the cache
        progress: list[SequenceProgress] = []
        shares = zip(step.plan.works, step.members, result.tokens, strict=True)
        for index, (work, sequence, tokens) in enumerate(shares):
            sequence.in_flight -= 1
            if failed and failed.get(index) == NON_FINITE:
                self._lifecycle.invalidate(sequence, work.start, result.step)
            if sequence.state is SequenceState.ENDED:
                self._lifecycle.free(sequence)
                continue
            own = len(work.token_ids) - len(work.proposed)
            if work.start < sequence.admitted_length:
                self._prompt_tokens += own
            if index in failed:
                progress += self._acceptance.fail(sequence, failed[index])
                continue
            accepted = result.accepted.get(index, ())
            sequence.computed += own + len(accepted) + further
            if work.prompt_rows is not None:
                sequence.keep_prompt_scores(result.prompt_scores[index])
            if work.sampling is not None:
                sequence.pending -= 1
                if self._limits.pools:
                    progress += self._acceptance.pool(sequence, result.states[index], now)
                    continue
                taken = self._acceptance.accept(sequence, tokens, result.scores.get(index), now)
                if (state := result.states.get(index)) is not None:
                    taken = [structs.replace(each, state=state) for each in taken]
                progress += taken
            if self._speculation is not None:
                if work.proposed or work.propose:
                    self._speculation.judge(sequence, work, accepted, result.proposed.get(index))
                if sequence.is_over:
                    self._speculation.ended(sequence)
        prompt, output = self._prompt_tokens - prompt, self._acceptance.output_tokens - output
        self._history.count_size(prompt + output, result.repeats)
        if self._speculation is not None and step.decoding is not None:
            self._speculation.took(step.decoding, seconds, result.proposing, output)
        return progress

    def learn(self, work: StepWork, durations: Counts[float], proposing: float = 0.0) -> None:
        """Learns from steps of these seconds, each with a token more of every sequence than the one before.

        `work`: of the first; `proposing`: seconds of each in which drafts were proposed.
        """
        self._history.learn(work, durations, proposing)

    def check_invariants(self) -> None:
        """Raises AssertionError unless sequences, blocks and steps in flight agree."""
        flying = [sequence for step in self._launched for sequence in step.members]
        self._lifecycle.check_invariants(flying)
