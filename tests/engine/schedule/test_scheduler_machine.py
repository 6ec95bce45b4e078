"""Whatever chunks, preempts, cancels, overlaps and lands: every sequence gets the tokens that it would get alone."""

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from contracts.errors import CapacityError
from contracts.ids import AttemptKey
from contracts.kv.spec import KVGroup
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager, Tables
from engine.schedule.progress import SequenceProgress
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.speculation import Speculation
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.drawn_jobs import DRAWN_JOBS, DrawnJob
from tests.engine.schedule.event_driven_grammars import Grammars
from tests.engine.schedule.oracle import Oracle
from tests.engine.strict_executor import STOP, StrictExecutor, placed, reference

MAX_MODEL_LEN = 30
MAX_STEPS = 4000
WINDOWED_SHAPES = [((4, 0), (4, 6)), ((4, 5), (4, 0)), ((2, 3),), ((4, 0), (3, 7)), ((4, 0), (2, 1), (4, 9))]
GROUP_SHAPES = [((4, 0),), ((2, 0),), ((4, 0), (3, 0)), ((4, 0), (4, 0)), *WINDOWED_SHAPES]
"""Of each KV group, tokens of a block and the window."""
COMMON_TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def at_once(group: KVGroup, tokens: int) -> int:
    """The blocks that a sequence of so many tokens holds at once, when it is computed token by token."""
    if not group.window:
        return -(-tokens // group.block_tokens)
    held = [
        {at // group.block_tokens for at in range(max(0, last + 1 - group.window), last + 1)} for last in range(tokens)
    ]
    return max(map(len, held), default=0)


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs, handoffs in both directions, cancels, failures and steps in any order."""

    @initialize(
        shapes=st.sampled_from(GROUP_SHAPES),
        counts=st.lists(st.integers(7, 15), min_size=3, max_size=3),
        ahead=st.sampled_from([1, 5, 30]),
        batch=st.integers(2, 12),
        sequences=st.integers(2, 6),
        reserve=st.integers(0, 3),
        max_in_flight=st.integers(1, 2),
        host_slots=st.sampled_from([0, 2, 20]),
        least=st.sampled_from([0, 2]),
        guesses=st.sampled_from([0, 0, 1, 3, 6]),
        right=st.integers(0, 10),
        stores=st.booleans(),
        branching=st.booleans(),
    )
    def start(
        self,
        shapes: tuple[tuple[int, int], ...],
        counts: list[int],
        ahead: int,
        batch: int,
        sequences: int,
        reserve: int,
        max_in_flight: int,
        host_slots: int,
        least: int,
        guesses: int,
        right: int,
        stores: bool,
        branching: bool,
    ) -> None:
        self.expected: dict[int, list[int]] = {}  # by id
        self.spec, counts = spec(*shapes), counts[: len(shapes)]
        slots = host_slots if any(not group.window for group in self.spec.groups) else 0
        self.blocks = BlockManager(self.spec, counts, slots, lambda count: count >= least, ahead)
        self.grammars = Grammars()
        speculation = None
        if guesses:
            oracle = Oracle(self.expected, right, branching)
            speculation = Speculation(self.blocks, oracle, guesses, stores=stores)
        self.scheduler = Scheduler(
            self.blocks,
            SchedulerLimits(
                max_batch_tokens=batch,
                max_sequences=sequences,
                max_model_len=MAX_MODEL_LEN,
                growth_reserve=[reserve] * len(shapes),
                max_in_flight=max_in_flight,
            ),
            readiness=self.grammars,
            speculation=speculation,
        )
        self.counts = counts
        self.limits = (batch, min(batch, sequences), max_in_flight)
        self.executor = StrictExecutor(self.spec)
        self.now = 1.0
        self.all: list[Sequence] = []
        self.emitted: dict[int, list[int]] = {}  # by id, with what earlier attempts and prefill workers emitted
        self.finished: dict[int, str] = {}
        self.cut: set[int] = set()  # cancelled or failed: tokens are a prefix
        self.commits: dict[int, tuple[Sampling, Limits]] = {}
        self.unscored: dict[int, list[int]] = {}  # prompts whose scores are to come, by each sequence of a group
        self.io: list[tuple[str, list[int], Tables]] = []  # (salt, tokens, blocks that a transport still reads)

    @rule(jobs=st.lists(DRAWN_JOBS, min_size=1, max_size=5))
    def add(self, jobs: list[DrawnJob]) -> None:
        for job in jobs:
            self.add_one(job)

    def add_one(self, job: DrawnJob) -> None:
        tokens, kind, stop = COMMON_TOKENS[: job.common] + job.tokens, job.kind, job.stop
        prompt = max(1, len(tokens) - job.before)
        sampling = Sampling(
            seed=len(self.all),
            logprobs=job.logprobs,
            prompt_logprobs=job.prompt_logprobs,
            grammar="g" if job.grammar else "",
        )
        limits = Limits(job.max_tokens, (STOP,) if stop else ())
        members = []
        for sample in range(job.sample, job.sample + 1 + job.branches):
            key = AttemptKey(f"r-{len(self.all)}", sample, 1)
            text = Prompt(list(tokens), prompt, job.salt, job.priority, tenant=job.tenant, weight=1 + len(job.tenant))
            each = Sequence(key, "gateway", text, self.now + job.deadline, due=self.now + job.due)
            each.hand_off, each.landing = kind == "hand_off", kind == "landing"
            if kind != "landing":
                each.sampling, each.limits = sampling, limits
            members.append(each)
        end = min(prompt + job.max_tokens, MAX_MODEL_LEN)
        needs = len(tokens) + 1 if kind != "plain" else end
        fits = len(tokens) < (MAX_MODEL_LEN if kind == "landing" else end) and all(
            at_once(group, needs - 1) <= count - 1 for group, count in zip(self.spec.groups, self.counts, strict=True)
        )
        try:
            self.scheduler.add(members[0], members[1:])
        except CapacityError:
            assert not fits or len(members) > self.limits[1]
            return
        assert fits
        if kind == "hand_off":
            end = min(end, len(tokens) + 1)
        if prompt == len(tokens) > 1 and kind != "landing" and job.prompt_logprobs is not None:
            self.unscored |= dict.fromkeys([each.id for each in members], tokens)
        for each in members:
            self.all.append(each)
            self.commits[each.id] = sampling, limits
            self.expected[each.id] = reference(tokens, prompt, sampling, each.key.sample, end, stop)
            self.emitted[each.id] = list(tokens)
            self.executor.salts[each.id], self.executor.known[each.id] = each.prompt.salt, each.tokens

    @rule(steps=st.integers(1, 12))
    def run_on(self, steps: int) -> None:
        """As the engine loop does: launch as far ahead as may be, then collect."""
        for _ in range(steps):
            while self.launched():
                self.invariants_hold()
            self.collect()
            self.invariants_hold()

    @rule()
    def launch(self) -> None:
        self.launched()

    def launched(self) -> bool:
        self.now += 0.25
        idle = self.executor.in_flight == 0
        plan = self.scheduler.plan(self.now)
        self.executor.move(self.scheduler.take_moves())
        if plan is None:
            if idle:
                assert self.scheduler.plan(self.now) is None, "idle: nothing changes without an event"
                assert not self.scheduler.take_moves()
            return False
        batch, sequences, max_in_flight = self.limits
        assert 0 < sum(len(work.token_ids) for work in plan.works) <= batch
        assert len(plan.works) <= sequences and self.executor.in_flight < max_in_flight
        assert len({work.sequence for work in plan.works}) == len(plan.works)
        constrained = {work.sequence for work in plan.works if work.sampling is not None and work.sampling.grammar}
        assert constrained <= self.grammars.done, "nobody is sampled whose grammar is not ready"
        self.executor.launch(plan)
        return True

    @rule()
    def collect(self) -> None:
        if not self.executor.in_flight:
            return
        for progress in self.scheduler.apply(self.executor.collect(), self.now):
            self.note(progress)

    def note(self, progress: SequenceProgress) -> None:
        sequence = progress.sequence
        emitted = self.emitted[sequence.id]
        assert progress.index == len(emitted) - sequence.prompt_tokens, "each index once, in order"
        emitted += progress.tokens
        self.note_scores(progress)
        if progress.failed:
            assert not progress.tokens and not progress.finish
            event(progress.failed.partition(":")[0])
            self.cut.add(sequence.id)
        elif progress.finish:
            self.finished[sequence.id] = progress.finish
        parked = sequence.hand_off and sequence.state is SequenceState.PARKED
        going = not progress.finish and not progress.failed
        assert parked or (sequence.state is SequenceState.ENDED) == (not going or sequence.hand_off)

    def note_scores(self, progress: SequenceProgress) -> None:
        """Each token comes with its own; a prompt's come with its first token, to one sample, once."""
        sequence, tokens = progress.sequence, progress.tokens
        sampling, _ = self.commits[sequence.id]
        assert progress.scores == (placed(tokens, progress.index, sampling.logprobs) if tokens else None)
        prompt = self.unscored.get(sequence.id) if tokens else None
        if progress.prompt_scores is not None or prompt is not None:
            assert prompt is not None and sampling.prompt_logprobs is not None
            assert progress.prompt_scores == placed(prompt[1:], 1, sampling.prompt_logprobs)
            for each in [number for number, own in self.unscored.items() if own is prompt]:
                del self.unscored[each]

    def those(self, *states: SequenceState) -> list[Sequence]:
        return [each for each in self.all if each.state in states]

    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        landing = self.those(SequenceState.LANDING)
        if landing:
            self.adopt_one(data.draw(st.sampled_from(landing)))

    def adopt_one(self, sequence: Sequence) -> None:
        """Its KV has landed; whoever ended with its first token does not go on here."""
        sampling, limits = self.commits[sequence.id]
        length = len(self.emitted[sequence.id])
        self.executor.land(self.emitted[sequence.id], sequence.blocks, sequence.prompt.salt, sequence.held_blocks)
        members = [sequence, *sequence.branches]
        for each in members:
            if len(self.expected[each.id]) < length + 2:
                self.cancel_one(each)
        living = [each for each in members if each.state is not SequenceState.ENDED and not each.abandoned]
        if not living:
            assert sequence.state is SequenceState.ENDED
            return
        first = {each.key.sample: self.expected[each.id][length : length + 1] for each in living}
        try:
            self.scheduler.adopt(sequence, first, sampling, limits)
        except CapacityError:
            assert sequence.state is SequenceState.LANDING
            for each in living:
                assert each.tokens.tolist() == self.emitted[each.id]
                self.cancel_one(each)
            return
        assert (sequence.state is SequenceState.ENDED) == sequence.abandoned
        for each in living:
            assert each.state is SequenceState.RUNNING
            self.emitted[each.id] += first[each.key.sample]

    @rule(data=st.data(), how=st.sampled_from(["ready", "ready", "ready", "refused", "dropped"]))
    def prepare(self, data: st.DataObject, how: str) -> None:
        """A grammar gets ready, or never will; or what was ready made room for others."""
        if how == "dropped" and self.grammars.done:
            self.grammars.done.remove(data.draw(st.sampled_from(sorted(self.grammars.done))))
        elif how != "dropped" and self.grammars.asked:
            sequence = data.draw(st.sampled_from(self.grammars.asked))
            self.grammars.finish(sequence)
            if how == "refused":
                self.executor.refuse.add(sequence)

    @rule(data=st.data(), trouble=st.sampled_from(["cancel", "cancel", "logits", "time"]))
    def go_wrong(self, data: st.DataObject, trouble: str) -> None:
        if trouble == "cancel":
            self.cancel(data)
        elif trouble == "logits":
            self.break_logits(data)
        else:
            self.time_passes()

    def cancel(self, data: st.DataObject) -> None:
        if self.all:
            self.cancel_one(data.draw(st.sampled_from(self.all)))

    def cancel_one(self, sequence: Sequence) -> None:
        if sequence.state is not SequenceState.ENDED:
            self.cut.add(sequence.id)
        self.scheduler.release(sequence)
        assert sequence.state is SequenceState.ENDED or (sequence.abandoned and sequence.branches)

    @rule(data=st.data(), sending=st.booleans())
    def hand_over(self, data: st.DataObject, sending: bool) -> None:
        parked = self.those(SequenceState.PARKED)
        if parked:
            self.hand_over_one(data.draw(st.sampled_from(parked)), sending)

    def hand_over_one(self, sequence: Sequence, sending: bool) -> None:
        """Accepted: the sequence is released here, perhaps while a transport still reads its blocks."""
        known = sequence.tokens[: sequence.computed].tolist()
        self.executor.expect(known, sequence.blocks, sequence.prompt.salt)
        if sending:
            self.io.append((sequence.prompt.salt, known, sequence.blocks))
            for group, taken in enumerate(self.seen(known, sequence.blocks)):
                self.blocks.hold_io(group, taken)
        self.scheduler.release(sequence)

    @rule()
    def sent(self) -> None:
        if self.io:
            salt, tokens, tables = self.io.pop(0)
            self.executor.expect(tokens, tables, salt)
            for group, taken in enumerate(self.seen(tokens, tables)):
                self.blocks.release_io(group, taken)

    def seen(self, tokens: list[int], tables: Tables) -> list[list[int]]:
        """The blocks that a query behind `tokens` sees."""
        groups = zip(self.spec.groups, tables, strict=True)
        return [[table[at] for at in group.needed_blocks(len(tokens))] for group, table in groups]

    def break_logits(self, data: st.DataObject) -> None:
        running = self.those(SequenceState.RUNNING)
        if running:
            self.executor.fail.add(data.draw(st.sampled_from(running)).id)

    def time_passes(self) -> None:
        self.now += 3
        expired = self.scheduler.expired(self.now)
        live = [each for each in self.all if each.state is not SequenceState.ENDED]
        assert expired == [each for each in live if each.deadline <= self.now]
        for sequence in expired:
            self.cancel_one(sequence)
        assert all(self.scheduler.next_deadline <= each.deadline for each in live if each not in expired)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_invariants()
            assert not any(each.preemptions for each in self.all if each.hand_off)

    @invariant()
    def tokens_are_those_of_a_lone_run(self) -> None:
        for sequence in getattr(self, "all", []):
            emitted, expected = self.emitted[sequence.id], self.expected[sequence.id]
            assert emitted == sequence.tokens.tolist() == expected[: len(emitted)]
            if sequence.id in self.finished:
                assert emitted == expected
                assert (emitted[-1] == STOP) >= (self.finished[sequence.id] == "stop")

    def teardown(self) -> None:
        """From any state everything ends, and nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(MAX_STEPS):
            while self.launched():
                pass
            self.collect()
            for sequence in self.those(SequenceState.LANDING):
                self.adopt_one(sequence)
            for sequence in self.those(SequenceState.PARKED):
                self.hand_over_one(sequence, sending=False)
            self.sent()
            for asked in list(self.grammars.asked):
                self.grammars.finish(asked)
            self.invariants_hold()
            if not self.those(SequenceState.WAITING, SequenceState.RUNNING, SequenceState.LANDING) and not self.io:
                break
        while self.executor.in_flight:
            self.collect()
        assert not self.those(*list(SequenceState)[:-1])
        for sequence in self.all:
            assert sequence.id in self.finished or sequence.id in self.cut or sequence.hand_off
        for name, count in structs.asdict(self.scheduler.load().kv).items():
            event(name, count > 0)
        self.tokens_are_those_of_a_lone_run()
        assert not self.grammars.asked and not self.grammars.done, "who has ended is forgotten"
        self.blocks.check_invariants([])
        assert self.blocks.used_count == 0 and self.scheduler.load().running == self.scheduler.load().waiting == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40)
