"""Shows who waits at the gate, in which order they are let in, and who is refused."""

import asyncio
from contextlib import suppress
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.errors import APIError
from gateway.requests.gate import MAX_CALLED_BACK, Gate, WaitingRequest


async def let_in(gate: Gate, waiting: WaitingRequest, order: list[int], number: int) -> None:
    """Plays a request: it goes when its turn has come."""
    try:
        while not gate.is_turn(waiting):
            await gate.turn(waiting, 1e9, 0.0)
        order.append(number)
        gate.goes(waiting, 0.0)
    finally:
        gate.leave(waiting)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, inf])), min_size=1, max_size=20))
def test_a_tenants_are_let_in_by_when_they_are_due_and_as_they_came(come: list[tuple[str, float]]) -> None:
    async def played() -> list[int]:
        gate = Gate(100)
        order: list[int] = []
        waiting = [gate.enter(tenant, 1.0, 100, due, 0.0) for tenant, due in come]
        await asyncio.gather(*[let_in(gate, each, order, number) for number, each in enumerate(waiting)])
        assert not len(gate) and not gate.tokens and gate.is_turn(None)
        return order

    order = asyncio.run(played())
    for tenant in "ab":
        own = [number for number in order if come[number][0] == tenant]
        assert own == sorted(own, key=lambda number: (come[number][1], number))
    assert sorted(order) == list(range(len(come)))


def test_tenants_take_turns() -> None:
    async def played() -> list[int]:
        gate = Gate(100)
        order: list[int] = []
        waiting = [gate.enter("many" if number < 30 else "few", 1.0, 600, inf, 0.0) for number in range(33)]
        await asyncio.gather(*[let_in(gate, each, order, number) for number, each in enumerate(waiting)])
        return order

    order = asyncio.run(played())
    assert max(order.index(number) for number in (30, 31, 32)) < 9


async def test_where_the_line_is_full_the_largest_tenant_loses_its_last() -> None:
    gate = Gate(4)
    many = [gate.enter("many", 1.0, 1, inf, 0.0) for _ in range(4)]
    with pytest.raises(APIError) as caught:
        gate.enter("many", 1.0, 1, inf, 0.0)
    assert caught.value.status == 429 and caught.value.retry_after
    other = gate.enter("other", 1.0, 1, inf, 0.0)
    with pytest.raises(APIError, match="4 requests wait"):
        await gate.turn(many[-1], 1e9, 0.0)
    assert len(gate) == gate.tokens == 4 and other.refusal is None and not any(each.refusal for each in many[:-1])


async def test_an_urgent_one_comes_before_who_has_less_of_a_hurry() -> None:
    gate = Gate(2)
    calm = gate.enter("", 1.0, 1, inf, 0.0)
    assert gate.is_turn(calm) and not gate.is_turn(None)
    urgent = gate.enter("", 1.0, 1, 2.0, 0.0)
    assert gate.is_turn(urgent) and not calm.is_head.is_set()
    gate.leave(urgent)
    assert gate.is_turn(calm)


def test_who_is_refused_is_told_a_moment_of_its_own() -> None:
    async def told() -> list[float]:
        gate = Gate(10)
        waiting = [gate.enter("", 1.0, 1, inf, 0.0) for _ in range(10)]
        for number, each in enumerate(waiting[:8]):  # one each 200 ms
            gate.goes(each, 0.2 * number + 1)
        return [gate.full(3.0).retry_after or 0.0 for _ in range(50)]

    moments = asyncio.run(told())
    assert moments == sorted(moments) and len(set(moments)) == 50
    between = moments[1] - moments[0]
    assert between == pytest.approx(3.0 / 9, rel=0.05)  # 8 have gone in 3 s, and the next is due
    assert moments[-1] == pytest.approx(moments[0] + 49 * between)


def test_time_in_which_nobody_waits_tells_nothing() -> None:
    """Neither that of the clock before anybody came, nor that between two who waited."""
    gate = Gate(1)
    assert (gate.full(50_000.0).retry_after or 0.0) < 2
    for now in (60_000.0, 70_000.0):
        waiting = gate.enter("a", 1.0, 1, inf, now)
        gate.goes(waiting, now + 0.1)
        gate.leave(waiting)
    assert (gate.full(80_000.0).retry_after or 0.0) < 2


async def test_one_that_steps_aside_lets_the_next_be_looked_at_and_comes_back() -> None:
    gate = Gate(9)
    strict, calm = gate.enter("a", 1.0, 5, 1.0, 0.0), gate.enter("a", 1.0, 7, 2.0, 0.0)
    gate.steps_aside(strict)
    assert gate.is_turn(calm) and not gate.is_turn(None) and (len(gate), gate.tokens) == (2, 12)
    gate.steps_aside(calm)
    assert gate.is_turn(None), "who comes now is looked at at once"
    await asyncio.gather(gate.turn(calm, 1e9, 0.0), gate.turn(strict, 1e9, 0.0))
    assert gate.is_turn(strict), "by themselves, and in order"
    gate.leave(strict)
    gate.leave(calm)
    assert not len(gate) and not gate.tokens


def test_an_answers_end_calls_back_a_few_and_of_different_tenants_first() -> None:
    gate = Gate(100)
    waiting = [gate.enter("ab"[number % 10 == 9], 1.0, 600, float(number), 0.0) for number in range(20)]
    for each in waiting:
        gate.steps_aside(each)
    gate.look()
    assert [number for number, each in enumerate(waiting) if not each.is_aside] == [0, 1, 9, 19]
    gate.look()
    assert sum(not each.is_aside for each in waiting) == 2 * MAX_CALLED_BACK


def test_those_are_called_back_first_whose_tenants_have_had_least() -> None:
    gate = Gate(100)
    gone = gate.enter("a", 1.0, 5000, 1.0, 0.0)
    gate.goes(gone, 0.0)
    gate.leave(gone)
    waiting = {tenant: gate.enter(tenant, 1.0, 600, 1.0, 0.0) for tenant in "abcde"}
    for each in waiting.values():
        gate.steps_aside(each)
    gate.look()
    assert [tenant for tenant, each in waiting.items() if each.is_aside] == ["a"]


def test_a_tenants_requests_that_stand_aside_leave_room_for_others() -> None:
    gate = Gate(4)
    for _ in range(2):
        gate.steps_aside(gate.enter("a", 1.0, 5, 1.0, 0.0))
    third = gate.enter("a", 1.0, 5, 1.0, 0.0)
    with pytest.raises(APIError, match="2 requests of this tenant wait") as caught:
        gate.steps_aside(third)
    assert (caught.value.status, caught.value.code) == (429, "objective_out_of_reach")
    gate.leave(third)
    assert (len(gate), gate.tokens) == (2, 10) and gate.is_turn(None)
    gate.steps_aside(gate.enter("b", 1.0, 5, 1.0, 0.0))


class Lines(RuleBasedStateMachine):
    """Has requests of three tenants come, step aside, come back, begin and leave in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(6)
        self.waiting: list[WaitingRequest] = []

    def settled(self) -> None:
        self.waiting = [each for each in self.waiting if each.refusal is None]

    @rule(tenant=st.sampled_from("abc"), due=st.sampled_from([1.0, 2.0, 3.0]), tokens=st.integers(1, 900))
    def come(self, tenant: str, due: float, tokens: int) -> None:
        with suppress(APIError):
            self.waiting.append(self.gate.enter(tenant, 1.0, tokens, due, 0.0))
        self.settled()

    @precondition(lambda self: self.waiting)
    @rule(begins=st.booleans())
    def look_at_the_head(self, begins: bool) -> None:
        head = next((each for each in self.waiting if self.gate.is_turn(each)), None)
        if head is None:
            return
        try:
            if not begins:
                self.gate.steps_aside(head)
                return
            self.gate.goes(head, 0.0)
            self.gate.leave(head)
        except APIError:
            pass
        self.waiting.remove(head)

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        self.gate.leave(self.waiting.pop(number % len(self.waiting)))

    @rule()
    def an_answer_ends(self) -> None:
        self.gate.look()

    @invariant()
    def all_are_known_and_one_has_the_turn(self) -> None:
        in_line = [each for each in self.waiting if not each.is_aside]
        assert len(self.gate) == len(self.waiting) and self.gate.tokens == sum(each.tokens for each in self.waiting)
        heads = [each for each in in_line if self.gate.is_turn(each)]
        assert len(heads) == bool(in_line) and self.gate.is_turn(None) == (not in_line)
        for head in heads:
            assert head.is_head.is_set(), "it is awake"
            assert head.place == min(each.place for each in in_line if each.tenant == head.tenant)


TestLines = Lines.TestCase
TestLines.settings = settings(max_examples=60, stateful_step_count=30)
