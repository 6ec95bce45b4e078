"""Lands, drops, kills, retries, preempts and fails samples in any order: each ends once, and nothing is held."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from contracts.ids import AttemptKey, SampleKey
from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Open
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import Tables
from kvtransfer.events import BlocksGranted, BlocksRefused, BlocksWanted, Dropped, HandoffOver, Landed
from kvtransfer.handoff import HandoffKey, handoff_blocks
from tests.engine.strict_executor import StrictExecutor, next_token
from tests.worker.policy_machine import PolicyMachine
from tests.worker.role_bench import SPEC, WINDOWED, Bench
from tests.worker.roles.decode_handoffs import committed, opened, short_job
from worker.events import Begin, Kill
from worker.roles.decode import DecodePolicy

STOPS = (0, 1, 2)  # of 11 tokens
COMMON = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@dataclass
class Request:
    """Holds one prompt, and how it is to go on."""

    prompt: list[int]
    samples: int
    limits: Limits
    salt: str
    priority: int
    sampling: Sampling


@dataclass
class Handoff:
    """Keeps what the transfer knows of one handoff."""

    opened: Open
    blocks: Tables = ()
    held: tuple[int, ...] = ()
    landed: bool = False
    begun: list[SampleKey] = field(default_factory=list)


class DecodeMachine(PolicyMachine):
    """Plays the I/O thread of a decode worker, in any order of events."""

    @initialize(blocks=st.integers(10, 30), depth=st.integers(1, 2), spec=st.sampled_from([SPEC, WINDOWED]))
    def start(self, blocks: int, depth: int, spec: KVSpec) -> None:
        self.spec = spec
        executor = StrictExecutor(spec)
        bench = Bench(blocks, executor=executor, max_in_flight=depth, spec=spec)
        self.begin(bench, executor, DecodePolicy(bench.parts.of_policy()), depth)
        self.requests: list[Request] = []
        self.dead: dict[SampleKey, int] = {}  # highest attempt that was killed or replaced
        self.count = 0

    # what comes

    @rule(
        common=st.integers(0, 12),
        own=st.lists(st.integers(0, 10), min_size=1, max_size=12),
        samples=st.integers(1, 4),
        limits=st.sampled_from([Limits(2), Limits(12), Limits(12, STOPS), Limits(12, STOPS), Limits(300)]),
        salt=st.sampled_from(["", "", "other"]),
        priority=st.integers(0, 1),
        time=st.integers(1, 60),
        short=st.booleans(),
    )
    def arrive(
        self,
        common: int,
        own: list[int],
        samples: int,
        limits: Limits,
        salt: str,
        priority: int,
        time: int,
        short: bool,
    ) -> None:
        sampling = Sampling(len(self.requests))
        self.requests.append(Request(COMMON[:common] + own, samples, limits, salt, priority, sampling))
        number = len(self.requests) - 1
        keys = [SampleKey(f"r{number}", sample) for sample in range(samples)]
        if short:
            self.submit(keys, 1, [], time)
        else:
            self.want(keys, 1, [], time)

    @rule(data=st.data(), emitted=st.lists(st.integers(3, 10), max_size=3), short=st.booleans(), late=st.booleans())
    def retry(self, data: st.DataObject, emitted: list[int], short: bool, late: bool) -> None:
        """Makes another attempt at one sample; the Kill of the lower one may have been lost, or the Open comes late."""
        if not self.attempts:
            return
        key = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = self.attempts[key] + 1
        if short:
            self.submit([key], attempt, emitted, 20)
        else:
            self.want([key], attempt, emitted, 20)
        if late and attempt == 2:
            samples = range(self.request(key).samples)
            self.want([SampleKey(key.request, sample) for sample in samples], 1, [], 20)

    def request(self, key: SampleKey) -> Request:
        return self.requests[int(key.request[1:])]

    def superseded(self, keys: list[SampleKey], attempt: int) -> None:
        for key in keys:
            self.attempts[key] = max(attempt, self.attempts.get(key, 0))
            self.dead[key] = max(attempt - 1, self.dead.get(key, 0))
            self.ends.killed(AttemptKey(*key, attempt - 1))

    def submit(self, keys: list[SampleKey], attempt: int, emitted: list[int], time: int) -> None:
        request = self.request(keys[0])
        self.superseded(keys, attempt)
        tokens = request.prompt + emitted[: request.limits.max_tokens - 1]
        made = short_job(
            request=keys[0].request,
            samples=tuple(key.sample for key in keys),
            attempt=attempt,
            token_ids=tokens,
            prompt_tokens=len(request.prompt),
            limits=request.limits,
            sampling=request.sampling,
            salt=request.salt,
            priority=request.priority,
            deadline=self.now + time,
        )
        for key in keys:
            self.ends.accept(AttemptKey(*key, attempt), tokens, len(request.prompt), request.sampling, request.limits)
        self.policy.receive(made, self.now)
        self.listen()

    def want(self, keys: list[SampleKey], attempt: int, emitted: list[int], time: int) -> None:
        """Asks for room as the transfer does, which knows who is dead and which handoffs are here."""
        request = self.request(keys[0])
        living = [key for key in keys if self.dead.get(key, 0) < attempt]
        here = {key for each in self.handoffs.values() for key in each.opened.attempts()}
        wanted = [AttemptKey(*key, attempt) for key in living]
        if not living or here & {*wanted} or self.ends.began(wanted):
            return
        self.superseded(living, attempt)
        self.drop_dead()
        self.count += 1
        message = opened(
            request=keys[0].request,
            samples=tuple(key.sample for key in keys),
            attempt=attempt,
            handoff=self.count,
            token_ids=request.prompt + emitted[: request.limits.max_tokens - 2],
            prompt_tokens=len(request.prompt),
            salt=request.salt,
            priority=request.priority,
            remaining_ms=time * 1000.0,
            due_ms=30_000.0,
        )
        key = HandoffKey("prefill", self.count)
        self.handoffs[key] = Handoff(message)
        self.policy.receive(BlocksWanted(key, message, tuple(each.sample for each in living)), self.now)
        self.listen()

    def keys(self, handoff: Handoff) -> list[SampleKey]:
        return [SampleKey(handoff.opened.request, sample) for sample in handoff.opened.samples]

    # what becomes of it

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        if ready := [key for key, each in self.handoffs.items() if each.blocks and not each.landed]:
            key = data.draw(st.sampled_from(ready))
            self.land_one(key, data.draw(st.sets(st.sampled_from(self.handoffs[key].opened.samples), min_size=1)))

    def land_one(self, key: HandoffKey, samples: set[int]) -> None:
        handoff = self.handoffs[key]
        message, handoff.landed = handoff.opened, True
        while any(handoff.held) and self.executor.in_flight:
            self.collect()  # the step that computes held blocks may be under way
        request = self.request(SampleKey(message.request, 0))
        prompt = message.whole_prompt()
        self.executor.land(prompt.token_ids, handoff.blocks, prompt.salt, handoff.held)
        branches = {
            sample: [next_token(prompt.token_ids, request.sampling, sample, prompt.emitted)]
            for sample in sorted(samples)
        }
        living = [each for each in self.keys(handoff) if self.dead.get(each, 0) < message.attempt]
        handoff.begun = [each for each in living if each.sample in branches]
        for each in handoff.begun:
            tokens = [*prompt.token_ids, *branches[each.sample]]
            attempt = AttemptKey(each.request, each.sample, message.attempt)
            self.ends.accept(attempt, tokens, prompt.prompt_tokens, request.sampling, request.limits)
        commit = committed(
            request.limits, branches, handoff=key.handoff, index=prompt.emitted, sampling=request.sampling
        )
        self.policy.receive(Landed(key=key, open=message, commit=commit, bytes=1, digest=1), self.now)
        begun = self.bench.heard(Begin)
        assert [(each.emitted.key.sample, each.emitted.key.attempt) for each in begun] == [
            (each.sample, message.attempt) for each in handoff.begun
        ]
        assert [each.emitted.token_ids for each in begun] == [branches[each.sample] for each in handoff.begun]
        self.listen()

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if ready := [key for key, each in self.handoffs.items() if not each.landed]:
            self.drop_one(data.draw(st.sampled_from(ready)))

    def drop_one(self, key: HandoffKey) -> None:
        handoff = self.handoffs[key]
        if not handoff.landed:
            del self.handoffs[key]
        self.policy.receive(Dropped(key, "cancelled", handoff.landed), self.now)
        self.listen()

    @rule()
    def drop_dead(self) -> None:
        """Drops each handoff whose samples are all dead, landed or not, as the transfer does."""
        for key, handoff in list(self.handoffs.items()):
            if all(self.dead.get(each, 0) >= handoff.opened.attempt for each in self.keys(handoff)):
                self.drop_one(key)

    @rule(data=st.data(), lower=st.booleans())
    def kill(self, data: st.DataObject, lower: bool) -> None:
        if self.attempts:
            key = data.draw(st.sampled_from(sorted(self.attempts)))
            attempt = self.attempts[key] - lower
            self.dead[key] = max(attempt, self.dead.get(key, 0))
            dead = AttemptKey(*key, attempt)
            self.ends.killed(dead)
            self.policy.receive(Kill(dead, "cancelled"), self.now)
            self.listen()

    # what the policy says

    def listen(self) -> None:
        super().listen()
        assert not self.bench.heard(Begin), "only what lands begins"
        for event in self.bench.heard(BlocksGranted):
            handoff = self.handoffs[event.key]
            needed = handoff_blocks(self.spec, handoff.opened.tokens)
            assert not handoff.blocks
            for blocks, table, held in zip(needed, event.blocks, event.held, strict=True):
                assert len(table) == blocks.stop and all(table[blocks.start :]) and not any(table[: blocks.start])
                assert blocks.start <= held <= blocks.stop
            handoff.blocks, handoff.held = event.blocks, event.held
        for event in self.bench.heard(BlocksRefused):
            assert not self.handoffs.pop(event.key).landed
        for event in self.bench.heard(HandoffOver):
            handoff = self.handoffs.pop(event.key)
            assert handoff.landed, "not before it has landed"
            assert all(
                AttemptKey(each.request, each.sample, handoff.opened.attempt) in self.ends.ends
                for each in handoff.begun
            )

    def transfer_goes_on(self) -> bool:
        waiting = [key for key, each in self.handoffs.items() if not each.landed]
        for key in waiting:
            if self.handoffs[key].blocks:
                self.land_one(key, set(self.handoffs[key].opened.samples))
        return bool(waiting)


TestDecodePolicy = DecodeMachine.TestCase
TestDecodePolicy.settings = settings(max_examples=100, stateful_step_count=40)
