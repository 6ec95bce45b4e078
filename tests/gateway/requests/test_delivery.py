"""Tokens are delivered once and in order."""

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted
from gateway.requests.delivery import Delivery
from tests.scores import scores_of

KEY = AttemptKey("request", 0, 1)


def test_only_new_tokens_are_taken() -> None:
    delivery = Delivery()
    message = Emitted(KEY, 0, [1, 2])
    assert delivery.take(message) is message, "all of it is new"
    assert delivery.take(Emitted(KEY, 1, [2, 3])).token_ids == [3], "one token is a repetition"
    assert delivery.take(Emitted(KEY, 0, [1], "length")).finish is None, "an end that is not behind the last token"
    assert delivery.take(Emitted(KEY, 4, [5])).token_ids == [], "a gap"
    assert delivery.take(Emitted(KEY, 3, [])).token_ids == [], "nothing"
    assert delivery.take(Emitted(KEY, 3, [4])).token_ids == [4, 5]
    assert delivery.take(Emitted(KEY, 5, [6], "stop")).finish == "stop"
    assert delivery.tokens == [1, 2, 3, 4, 5, 6]


def test_scores_that_a_worker_left_out_of_a_message_break_nothing() -> None:
    delivery = Delivery()
    delivery.take(Emitted(KEY, 1, [2], scores=scores_of([2])))
    joined = delivery.take(Emitted(KEY, 0, [1]))
    assert (joined.token_ids, joined.scores) == ([1, 2], None)


def test_tokens_that_close_a_gap_bring_those_behind_it() -> None:
    delivery = Delivery()
    assert delivery.take(Emitted(KEY, 1, [2, 3], scores=scores_of([2, 3]))).token_ids == [], "too early"
    closed = delivery.take(Emitted(KEY, 0, [1], scores=scores_of([1])))
    assert closed == Emitted(KEY, 0, [1, 2, 3], scores=scores_of([1, 2, 3])) and not delivery.gap


def test_tokens_that_come_twice_behind_a_gap_are_taken_once() -> None:
    """What came early begins before the end of what closes the gap."""
    delivery = Delivery()
    assert delivery.take(Emitted(KEY, 1, [2, 3], scores=scores_of([2, 3]))).token_ids == []
    taken = delivery.take(Emitted(KEY, 0, [1, 2], scores=scores_of([1, 2])))
    assert (taken.token_ids, taken.scores) == ([1, 2, 3], scores_of([1, 2, 3]))
    assert not delivery.gap
