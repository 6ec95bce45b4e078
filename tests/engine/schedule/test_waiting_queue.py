"""Shows who comes next: by tenants' shares, by urgency, and that nobody waits for ever."""

from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from engine.schedule.sequence import Sequence
from engine.schedule.waiting_queue import WaitingQueue, urgency
from infra.fair_queueing.shares import MAX_SAVED_TOKENS

NUMBERS = count(1)
LATE_S = 30  # s by which a request that is late goes behind others


def waiting(
    tokens: int = 10,
    *,
    due: float = inf,
    priority: int = 0,
    tenant: str = "",
    weight: float = 1.0,
    preemptions: int = 0,
) -> Sequence:
    """Makes a sequence with an id of its own."""
    prompt = Prompt([1] * tokens, tokens, "", priority, "", tenant, weight)
    made = Sequence(AttemptKey(f"r-{next(NUMBERS)}", 0, 1), "gateway", prompt, inf, due=due)
    made.id, made.preemptions, made.to_compute = next(NUMBERS), preemptions, tokens
    return made


def served(line: WaitingQueue, now: float = 0.0) -> list[Sequence]:
    """Serves everybody who is in line, one after the other."""
    order = []
    while len(line):
        order.append(line.first(now))
        line.shares.charge(order[-1].prompt.tenant, len(order[-1].tokens))
        line.remove(order[-1])
    return order


@pytest.mark.parametrize(
    "come, expected",
    [
        pytest.param([{}, {}, {}], [0, 1, 2], id="without objectives in order of arrival"),
        pytest.param([{"due": 9}, {"due": 3}, {"due": 5}], [1, 2, 0], id="by when they are due"),
        pytest.param([{"due": 9}, {}, {"due": 3}], [2, 0, 1], id="an objective before none"),
        pytest.param([{"due": 9}, {"due": 9, "priority": -5}], [1, 0], id="a higher priority goes before"),
        pytest.param([{"due": 9}, {"due": 20, "priority": -5}], [0, 1], id="but not before who waits for long"),
        pytest.param([{"due": 9}, {"due": 9 + 59, "priority": -(1 << 31)}], [1, 0], id="by a minute at most"),
        pytest.param([{"due": 9}, {"due": 9 + 60, "priority": -(1 << 31)}], [0, 1], id="however high it is"),
        pytest.param([{"due": -1}, {"due": 5}], [1, 0], id="who is late goes behind who may still be in time"),
        pytest.param([{"due": -1}, {"due": LATE_S - 2}], [1, 0], id="for half a minute"),
        pytest.param([{"due": -1}, {"due": LATE_S}], [0, 1], id="but not for ever"),
        pytest.param([{"due": 1}, {"preemptions": 1}, {"due": 0, "priority": -9}], [1, 2, 0], id="preempted first"),
    ],
)
def test_the_order_within_a_tenant(come: list[dict[str, Any]], expected: list[int]) -> None:
    line, all_of_them = WaitingQueue(), [waiting(**each) for each in come]
    for each in all_of_them:
        line.insert(each)
    assert [all_of_them.index(each) for each in served(line)] == expected


def test_who_becomes_late_in_line_is_moved_once() -> None:
    line, early, late = WaitingQueue(), waiting(due=3), waiting(due=9)
    line.insert(early)
    line.insert(late)
    assert line.first(2.0) is early
    assert line.first(4.0) is late, "its objective is lost, the other's is not"
    assert line.first(9.5) is early, "both are late, and it waits for longer"


def test_to_send_one_by_one_gains_nothing() -> None:
    """Lets a tenant send its next prompt as soon as it has got one, beside another that has sent all at once."""
    line = WaitingQueue()
    for _ in range(40):
        line.insert(waiting(1000, tenant="a"))
    taken = dict.fromkeys("ab", 0)
    for _ in range(40):
        if not any(each.prompt.tenant == "b" for each in line):
            line.insert(waiting(1000, tenant="b", due=1))
        first = line.first(0.0)
        taken[first.prompt.tenant] += 1
        line.shares.charge(first.prompt.tenant, 1000)
        line.remove(first)
    assert abs(taken["a"] - taken["b"]) <= 2


def test_a_tenant_that_was_alone_owes_nothing() -> None:
    line = WaitingQueue()
    for _ in range(50):
        line.insert(waiting(1000, tenant="a"))
    for _ in range(40):
        first = line.first(0.0)
        line.shares.charge("a", 1000)
        line.remove(first)
    for _ in range(10):
        line.insert(waiting(1000, tenant="b"))
    tenants = [each.prompt.tenant for each in served(line)]
    assert abs(tenants[:10].count("a") - 5) <= 1


def test_what_was_found_in_the_cache_is_not_charged() -> None:
    line = WaitingQueue()
    for _ in range(20):
        line.insert(waiting(1000, tenant="a"))
        line.insert(waiting(1000, tenant="b"))
    tenants = []
    for _ in range(21):
        tenants.append(line.first(0.0).prompt.tenant)
        line.shares.charge(tenants[-1], 500 if tenants[-1] == "a" else 1000)
        line.remove(line.first(0.0))
    assert 12 <= tenants.count("a") <= 15


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.floats(-50, 50), st.integers(-99, 99)), min_size=1, max_size=40),
    st.floats(-60, 60),
)
def test_a_tenant_is_in_order_of_urgency_at_any_time(come: list[tuple[int, float, int]], now: float) -> None:
    line = WaitingQueue()
    for tokens, due, priority in come:
        line.insert(waiting(tokens, due=due, priority=priority))
    shortest = line.shortest("")
    assert shortest is not None and len(shortest.tokens) == min(tokens for tokens, _, _ in come)
    order = served(line, now)
    assert order == sorted(order, key=lambda each: (urgency(each, now), each.id))


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
MAX_PROMPT_TOKENS = 4000


class Fairness(RuleBasedStateMachine):
    """Serves three tenants of different weights, who come as they like and whose prompts have any length."""

    def __init__(self) -> None:
        super().__init__()
        self.line = WaitingQueue()
        self.now = 0.0
        self.came: dict[Sequence, float] = {}
        self.since: dict[str, dict[str, float]] = {}  # of tenants that wait, tokens served to each since they all wait

    def of(self, tenant: str) -> list[Sequence]:
        return [each for each in self.line if each.prompt.tenant == tenant]

    @rule(
        tenant=st.sampled_from(sorted(WEIGHTS)),
        tokens=st.integers(1, MAX_PROMPT_TOKENS),
        due=st.floats(0, 30),
        number=st.integers(1, 40),
    )
    def comes(self, tenant: str, tokens: int, due: float, number: int) -> None:
        for _ in range(number):
            if not self.of(tenant):
                self.since = {}  # another one shares from now on
            each = waiting(tokens, due=self.now + due, tenant=tenant, weight=WEIGHTS[tenant])
            self.line.insert(each)
            self.came[each] = self.now

    @precondition(lambda self: len(self.line) > 0)
    @rule(seconds=st.floats(0, 5), number=st.integers(1, 20))
    def are_served(self, seconds: float, number: int) -> None:
        for _ in range(min(number, len(self.line))):
            self.now += seconds
            self.serve()

    def serve(self) -> None:
        first = self.line.first(self.now)
        assert self.line.first(self.now) is first, "asking changes nothing"
        own = self.of(first.prompt.tenant)
        assert first is min(own, key=lambda each: (urgency(each, self.now), each.id))
        assert all(self.came[first] <= each.due + LATE_S for each in own), (
            "those before one are bounded by its own time"
        )
        tenants = {each.prompt.tenant for each in self.line}
        key = ",".join(sorted(tenants))
        if key not in self.since:
            self.since = {key: dict.fromkeys(tenants, 0.0)}
        self.since[key][first.prompt.tenant] += len(first.tokens) / WEIGHTS[first.prompt.tenant]
        self.line.shares.charge(first.prompt.tenant, len(first.tokens))
        self.line.remove(first)

    @precondition(lambda self: len(self.line) > 0)
    @rule(draw=st.integers(0, 99))
    def leaves(self, draw: int) -> None:
        each = list(self.line)[draw % len(self.line)]
        self.line.remove(each)
        if not self.of(each.prompt.tenant):
            self.since = {}

    @invariant()
    def tenants_who_wait_together_are_served_alike(self) -> None:
        """Bounds the difference as Goyal, Vin and Cheng do: the longest of each, and what one had saved."""
        for shares in self.since.values():
            for one, had in shares.items():
                for other, has in shares.items():
                    longest = MAX_PROMPT_TOKENS / WEIGHTS[one] + MAX_PROMPT_TOKENS / WEIGHTS[other]
                    assert abs(had - has) <= longest + MAX_SAVED_TOKENS + 1e-6


TestFairness = Fairness.TestCase
