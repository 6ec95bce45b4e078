"""Drives a policy through what each lives through: steps that overlap, time that passes, logits that are not finite.

A role's machine adds its jobs and its transfer. It runs on the strict executor, so that wrong KV is seen at once.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contracts.ids import SampleKey
from tests.engine.strict_executor import StrictExecutor
from tests.worker.ends import Ends
from tests.worker.role_bench import Bench
from worker.events import Emit, Fail


class PolicyMachine(RuleBasedStateMachine):
    """Plays the I/O thread and the loop around a policy, in any order. `begin` is to be called first."""

    def begin(self, bench: Bench, executor: StrictExecutor, policy: Any, depth: int) -> None:
        """Begins with an idle policy. `depth`: steps that may be launched and not collected."""
        self.bench, self.executor, self.policy, self.depth = bench, executor, policy, depth
        self.now = 1.0
        self.ends = Ends()
        self.attempts: dict[SampleKey, int] = {}  # the highest attempt at each sample
        self.handoffs: dict[Any, Any] = {}

    @rule()
    def launch(self) -> None:
        if self.executor.in_flight < self.depth:
            self.launched()

    @rule(steps=st.integers(1, 6))
    def run_on(self, steps: int) -> None:
        for _ in range(steps):
            self.launch()
            self.collect()

    def launched(self) -> bool:
        for each in self.bench.scheduler.added:
            self.executor.salts[each.id], self.executor.known[each.id] = each.prompt.salt, each.tokens
        done = self.bench.launch(self.policy, self.now) is not None
        self.listen()
        return done

    @rule()
    def collect(self) -> None:
        if self.executor.in_flight:
            self.now += 0.25
            self.bench.collect(self.policy, self.now)
            self.listen()

    @rule(data=st.data())
    def break_logits(self, data: st.DataObject) -> None:
        if self.bench.scheduler.added:
            self.executor.fail.add(data.draw(st.sampled_from(self.bench.scheduler.added)).id)

    @rule()
    def time_passes(self) -> None:
        self.now += 3
        self.policy.expired(self.bench.scheduler.expired(self.now), self.now)
        self.listen()

    def listen(self) -> None:
        """Takes all that the policy has said."""
        self.bench.scheduler.check_invariants()
        for event in self.bench.heard(Emit):
            for emitted in event.emitted:
                self.ends.emit(emitted)
        for event in self.bench.heard(Fail):
            self.ends.end(event.key, event.failure.reason)

    @invariant()
    def whoever_is_owed_an_end_is_here(self) -> None:
        if hasattr(self, "policy"):
            assert self.policy.busy() == bool(self.ends.open() or self.handoffs)

    def transfer_goes_on(self) -> bool:
        """Does what the transfer would do by itself; returns False if that is nothing."""
        raise AssertionError("a role's machine says")

    def teardown(self) -> None:
        """Checks that from any state everything ends, and nothing is held."""
        if not hasattr(self, "policy"):
            return
        for _ in range(1000):
            while self.executor.in_flight < self.depth and self.launched():
                pass
            if self.executor.in_flight:
                self.collect()
            elif not self.transfer_goes_on():
                break
        assert not self.ends.open() and not self.handoffs and not self.policy.busy()
        assert self.bench.blocks.used_count == 0 and self.policy.load().waiting == 0
        self.bench.blocks.check_invariants([])
