"""Tokens are delivered once and in order, by the quick way as by the general one."""

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted
from gateway.requests.delivery import Delivery

KEY = AttemptKey("request", 0, 1)


def test_the_quick_way_takes_only_what_is_next() -> None:
    delivery = Delivery()
    assert delivery.take_next(Emitted(KEY, 0, [1, 2]))
    assert not delivery.take_next(Emitted(KEY, 1, [2, 3])), "a repetition"
    assert not delivery.take_next(Emitted(KEY, 3, [4])), "a gap"
    assert not delivery.take_next(Emitted(KEY, 2, [])), "nothing"
    assert not delivery.take_next(Emitted(KEY, 2, [3], "stop")), "an end"
    assert delivery.tokens == [1, 2]


def test_tokens_that_close_a_gap_bring_those_behind_it() -> None:
    delivery = Delivery()
    assert delivery.take(Emitted(KEY, 1, [2, 3])).tokens == [], "too early"
    closing = Emitted(KEY, 0, [1])
    assert not delivery.take_next(closing), "the quick way would leave behind what has come early"
    assert delivery.take(closing).tokens == [1, 2, 3] and not delivery.gap


def test_tokens_that_come_twice_behind_a_gap_are_taken_once() -> None:
    """What came early begins before the end of what closes the gap."""
    delivery = Delivery()
    assert delivery.take(Emitted(KEY, 1, [2, 3])).tokens == []
    assert delivery.take(Emitted(KEY, 0, [1, 2])).tokens == [1, 2, 3]
    assert not delivery.gap
