"""A read waits for what has written its blocks, and for as little behind that as is known."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.gpu.write_order import MAX_EVENTS_PER_LAYER, WriteOrder

BLOCK_COUNT = 6


def test_a_step_behind_is_not_waited_for() -> None:
    order: WriteOrder[str] = WriteOrder(2, [BLOCK_COUNT])
    assert order.before(0, 0, [1]) is None, "nothing was ever written"
    order.begin([[1, 2]])
    assert order.before(0, 0, [1]) is None, "it is not known to be enqueued"
    order.recorded([0], "step 1, layer 0")
    order.recorded([1], "step 1, layer 1")
    order.begin([[2, 3]])
    order.recorded([0], "step 2, layer 0")
    assert order.before(0, 0, [1]) == "step 1, layer 0"
    assert order.before(0, 0, [1, 2]) == "step 2, layer 0"
    assert order.before(0, 1, [2]) == "step 1, layer 1", "the second step has not come so far"
    assert order.before(0, 0, [4]) is None and order.before(0, 0, []) is None
    order.begin(None)
    order.recorded([0, 1], "step 3")
    assert order.before(0, 0, [4]) == order.before(0, 1, [1]) == "step 3"


def test_a_number_means_another_block_in_each_group() -> None:
    order: WriteOrder[str] = WriteOrder(2, [BLOCK_COUNT, 2])  # layer 1 is the second group's
    order.begin([[4], [1]])
    order.recorded([0, 1], "step 1")
    order.begin([[5, 1], []])
    order.recorded([0, 1], "step 2")
    assert order.before(0, 0, [4]) == order.before(1, 1, [1]) == "step 1"
    assert order.before(0, 0, [1]) == "step 2"


Written = st.tuples(*[st.lists(st.integers(0, BLOCK_COUNT - 1), max_size=3)] * 2)
Steps = st.lists(st.tuples(st.none() | Written, st.integers(0, 1)), max_size=3 * MAX_EVENTS_PER_LAYER)


@given(Steps, st.lists(st.integers(0, BLOCK_COUNT - 1), min_size=1, max_size=3))
def test_whatever_came_before_is_covered(
    steps: Sequence[tuple[tuple[list[int], list[int]] | None, int]], blocks: list[int]
) -> None:
    """Events are times. Of each step the first layer is recorded; the second, which another group has, only where the
    last number says so."""
    order: WriteOrder[int] = WriteOrder(2, [BLOCK_COUNT, BLOCK_COUNT])
    for time, (written, both) in enumerate(steps):
        order.begin(written)
        order.recorded([0, 1][: 1 + both], time)
    for layer in range(2):
        recorded = [time for time, (_, both) in enumerate(steps) if layer <= both]
        theirs = []
        for time in recorded:
            written = steps[time][0]
            if written is None or set(blocks) & set(written[layer]):
                theirs.append(time)
        found = order.before(layer, layer, blocks)
        if theirs:
            assert found is not None and found >= theirs[-1], "read before it was written"
            assert found == theirs[-1] or found <= recorded[-MAX_EVENTS_PER_LAYER:][0] or layer == 1, (
                "waits for a later step"
            )
