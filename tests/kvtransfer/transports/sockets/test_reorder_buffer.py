"""Payloads of several connections pass in the order in which they left, in bounded bytes, each once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import MessageError
from kvtransfer.transports.sockets.reorder_buffer import MAX_AHEAD, ReorderBuffer, counted


@given(st.permutations(range(12)))
def test_any_arrival_passes_in_the_order_of_leaving(arrival: list[int]) -> None:
    order: ReorderBuffer[int] = ReorderBuffer(capacity=12)
    passed = []
    for number in arrival:
        ready = order.take(counted(number), 1, number)
        passed += ready
        assert ready == [] or ready[0] == number
    assert passed == list(range(12))


@pytest.mark.parametrize("count", [counted(0), counted(2), counted(1 + MAX_AHEAD), b"", b"1234567"])
def test_a_count_that_was_there_or_cannot_be_is_refused(count: bytes) -> None:
    order: ReorderBuffer[str] = ReorderBuffer(capacity=100)
    order.take(counted(0), 1, "first")
    order.take(counted(2), 1, "early")
    with pytest.raises(MessageError, match="with a count that was there"):
        order.take(count, 1, "again")
    assert order.take(counted(1), 1, "late") == ["late", "early"]


def test_no_more_is_held_than_may_be_under_way() -> None:
    order: ReorderBuffer[int] = ReorderBuffer(capacity=10)
    order.take(counted(1), 10, 1)
    with pytest.raises(MessageError, match="than the window has"):
        order.take(counted(2), 1, 2)
    assert order.take(counted(0), 100, 0) == [0, 1]  # the one that is missing is never held
    assert order.take(counted(3), 10, 3) == []
