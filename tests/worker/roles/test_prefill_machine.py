"""Kills, retries, refuses, fails and accepts samples in any order: each ends once, and nothing is held."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from contracts.ids import AttemptKey
from contracts.kv.spec import KVSpec, blocks_for
from contracts.messages.job import PrefillJob
from contracts.messages.sampling import Limits, Sampling
from kvtransfer.events import AbortHandoff, BlocksTaken, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from tests.engine.strict_executor import StrictExecutor
from tests.worker.policy_machine import PolicyMachine
from tests.worker.role_bench import SPEC, WINDOWED, Bench
from tests.worker.roles.prefill_jobs import closed, job, whole
from worker.events import Kill
from worker.roles.prefill import PrefillPolicy

STOPS = (0, 1, 2, 3)  # of 11 tokens
COMMON = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@dataclass
class Handoff:
    """Keeps what the transfer knows of one handoff."""

    job: PrefillJob
    samples: tuple[int, ...]
    blocks: list[list[int]]
    ready: dict[int, int] = field(default_factory=dict)  # blocks by layer
    branches: list[int] = field(default_factory=list)
    aborted: bool = False
    closed: bool = False


class PrefillMachine(PolicyMachine):
    """Plays the I/O thread of a prefill worker, in any order of events."""

    @initialize(
        blocks=st.integers(8, 30),
        share=st.sampled_from([0.2, 0.6]),
        depth=st.integers(1, 2),
        spec=st.sampled_from([SPEC, WINDOWED]),
    )
    def start(self, blocks: int, share: float, depth: int, spec: KVSpec) -> None:
        self.spec = spec
        executor = StrictExecutor(spec)
        bench = Bench(blocks, share, executor, depth, spec)
        self.begin(bench, executor, PrefillPolicy(bench.parts.of_policy()), depth)
        self.jobs: list[PrefillJob] = []  # the first job of every request

    @rule(
        common=st.integers(0, 12),
        own=st.lists(st.integers(0, 10), min_size=1, max_size=24),
        samples=st.integers(1, 4),
        peer=st.sampled_from("ab"),
        limits=st.sampled_from([Limits(1), Limits(10), Limits(10, STOPS), Limits(10, STOPS), Limits(500)]),
        salt=st.sampled_from(["", "", "other"]),
        time=st.integers(1, 60),
        alone=st.booleans(),
    )
    def submit(
        self, common: int, own: list[int], samples: int, peer: str, limits: Limits, salt: str, time: int, alone: bool
    ) -> None:
        tokens = COMMON[:common] + own
        number = len(self.jobs)
        made = job(
            number,
            peer=peer,
            token_ids=tokens,
            samples=tuple(range(samples)),
            limits=limits,
            salt=salt,
            deadline=self.now + time,
            sampling=Sampling(number),
        )
        self.jobs.append(made)
        self.take(made, alone)

    def take(self, made: PrefillJob, alone: bool) -> None:
        """Submits a job; `alone`: no decode worker is there, and the whole request is asked for."""
        for key in made.attempts():
            self.ends.killed(key._replace(attempt=key.attempt - 1))
            self.attempts[key.of] = key.attempt
            self.ends.accept(key, [*made.prompt.token_ids], made.prompt.prompt_tokens, made.sampling, made.limits)
        self.policy.receive(whole(made) if alone else made, self.now)
        self.listen()

    @rule(data=st.data(), emitted=st.lists(st.integers(4, 10), max_size=3), alone=st.booleans())
    def retry(self, data: st.DataObject, emitted: list[int], alone: bool) -> None:
        """Submits a higher attempt at one sample; the Kill of the lower one may have been lost."""
        if not self.attempts:
            return
        key = data.draw(st.sampled_from(sorted(self.attempts)))
        first = next(each for each in self.jobs if each.request == key.request)
        number = int(key.request[1:])
        emitted = emitted[: first.limits.max_tokens - 1]
        made = job(
            number,
            peer=first.decode_epoch,
            token_ids=[*first.prompt.token_ids, *emitted],
            prompt_tokens=first.prompt.prompt_tokens,
            samples=(key.sample,),
            limits=first.limits,
            salt=first.prompt.salt,
            deadline=first.deadline,
            sampling=first.sampling,
            attempt=self.attempts[key] + 1,
        )
        self.take(made, alone)

    @rule(data=st.data(), lower=st.booleans())
    def kill(self, data: st.DataObject, lower: bool) -> None:
        if self.attempts:
            key = data.draw(st.sampled_from(sorted(self.attempts)))
            self.kill_one(AttemptKey(*key, self.attempts[key] - lower))

    @rule(data=st.data())
    def kill_one_that_lives(self, data: st.DataObject) -> None:
        if living := self.ends.open():
            self.kill_one(data.draw(st.sampled_from(sorted(living))))

    def kill_one(self, key: AttemptKey) -> None:
        self.ends.killed(key)
        self.policy.receive(Kill(key, "cancelled"), self.now)
        self.listen()

    @rule(data=st.data(), accepted=st.booleans(), unpinned=st.booleans())
    def close(self, data: st.DataObject, accepted: bool, unpinned: bool) -> None:
        if live := [number for number, each in self.handoffs.items() if not each.closed]:
            self.close_one(data.draw(st.sampled_from(live)), accepted)
        if unpinned:
            self.unpin()

    def close_one(self, number: int, accepted: bool) -> None:
        handoff = self.handoffs[number]
        handoff.closed = True
        if accepted and handoff.branches:
            for sample in handoff.branches:
                attempt = AttemptKey(handoff.job.request, sample, handoff.job.attempt)
                if attempt not in self.ends.ends:
                    self.ends.end(attempt, "handed over")
            self.policy.receive(closed(number, "accepted"), self.now)
        else:
            self.policy.receive(closed(number, "failed", "refused"), self.now)
        self.listen()

    def unpin(self) -> None:
        """Unpins what is closed. Until now frames could be read: the blocks have to be as they were committed."""
        for number in [number for number, each in self.handoffs.items() if each.closed]:
            handoff = self.handoffs.pop(number)
            if handoff.branches:
                self.expect(handoff)
            self.policy.receive(Unpinned(number), self.now)

    def listen(self) -> None:
        super().listen()
        for event in self.bench.heard(OpenHandoff):
            assert event.handoff not in self.handoffs
            self.handoffs[event.handoff] = Handoff(event.job, event.samples, list(event.blocks))
            assert list(event.samples) == self.living(self.handoffs[event.handoff])
        for event in self.bench.heard(BlocksTaken):
            tables = self.handoffs[event.handoff].blocks
            assert self.spec.groups[event.group].window and not tables[event.group], "taken once"
            tables[event.group] = event.blocks
        for event in self.bench.heard(LayerReady):
            ready = self.handoffs[event.handoff]
            assert not ready.closed and not ready.aborted and ready.blocks[event.group]
            ready.ready[event.layer] = event.upto
        for event in self.bench.heard(CommitHandoff):
            self.commit(event)
        for event in self.bench.heard(AbortHandoff):
            handoff = self.handoffs[event.handoff]
            assert not handoff.closed and not handoff.aborted and not self.living(handoff)
            assert not (handoff.branches and event.reason == "done")
            handoff.aborted = True

    def commit(self, event: CommitHandoff) -> None:
        handoff = self.handoffs[event.handoff]
        assert not handoff.branches and not handoff.closed and not handoff.aborted
        handoff.branches = [branch.sample for branch in event.branches]
        assert handoff.branches == self.living(handoff), "those that go on, and no others"
        whole = blocks_for(len(handoff.job.prompt.token_ids), 4)
        layers = [layer for group in self.spec.groups for layer in group.layers]
        assert handoff.ready == dict.fromkeys(layers, whole), "a block that would never leave"
        self.expect(handoff)

    def expect(self, handoff: Handoff) -> None:
        """The blocks that move hold the prompt's KV."""
        prompt = handoff.job.prompt
        self.executor.expect(prompt.token_ids, tuple(handoff.blocks), prompt.salt)

    def living(self, handoff: Handoff) -> list[int]:
        keys = [key for key in handoff.job.attempts() if key.sample in handoff.samples]
        return [key.sample for key in keys if key not in self.ends.ends]

    def transfer_goes_on(self) -> bool:
        for number in [number for number, each in self.handoffs.items() if not each.closed]:
            self.close_one(number, accepted=not self.handoffs[number].aborted)
        going = bool(self.handoffs)
        self.unpin()
        return going


TestPrefillPolicy = PrefillMachine.TestCase
TestPrefillPolicy.settings = settings(max_examples=100, stateful_step_count=40)
