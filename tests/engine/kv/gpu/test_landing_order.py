"""A step waits for what has landed in its own blocks, once, and for nothing else."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.gpu.landing_order import LandingOrder
from engine.plan import Work

BLOCK_TOKENS = 4
TABLES = {1: [1, 2, 3], 2: [4, 5, 6], 3: [7, 8, 9]}
MIRRORED = {1: [9, 8, 7], 2: [6, 5, 4], 3: [3, 2, 1]}
"""Blocks in the second group: numbers that others have in the first."""


def work(sequence: int, start: int, tokens: int = 1) -> Work:
    count = (start + tokens - 1) // BLOCK_TOKENS + 1
    return Work(sequence, start, [0] * tokens, (TABLES[sequence][:count], MIRRORED[sequence][:count]))


def test_a_step_waits_once_for_its_own_sequences() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK_TOKENS, 2)
    assert order.of_step([work(1, 7)]) is None, "nothing has landed"
    order.landed(0, [4, 5], "layer 0")
    order.landed(0, [4, 5], "layer 1")
    assert order.of_step([work(1, 8)]) is None, "that is another's"
    assert order.of_step([work(1, 9), work(2, 5)]) == "layer 1"
    assert order.of_step([work(1, 10), work(2, 6)]) is None, "it has waited"
    order.landed(0, [7], "early")
    order.landed(0, [6], "late")
    assert order.of_step([work(2, 7), work(3, 3)]) == "early"
    assert order.of_step([work(2, 8)]) == "late", "the sequence has grown into a block that somebody gave up"


def test_who_comes_back_is_looked_at_again() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK_TOKENS, 2)
    order.landed(0, [9], "another's")
    assert order.of_step([work(1, 8)]) is None
    order.landed(0, [1], "what it has left meanwhile")
    assert order.of_step([work(2, 1)]) is None
    assert order.of_step([work(1, 9)]) == "what it has left meanwhile"


def test_a_number_means_another_block_in_each_group() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK_TOKENS, 2)
    order.landed(1, [1, 2], "the third's")
    assert order.of_step([work(1, 7)]) is None, "those are another group's"
    order.landed(0, [4], "the second's")
    assert order.of_step([work(2, 5), work(3, 11)]) == "the second's", "it came behind the other"
    assert order.of_step([work(2, 6)]) is None


def test_moves_and_whoever_touches_any_block() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK_TOKENS, 2)
    order.landed(0, [1, 2], "first")
    order.landed(0, [2, 3], "second")
    assert order.of_blocks([[1, 4], [2]]) == "first"
    assert order.of_any() == "second"
    assert order.of_any() is None and order.of_blocks([[1, 2, 3]] * 2) is None


Events = st.lists(
    st.one_of(
        st.lists(st.sampled_from(sorted(TABLES)), min_size=1, max_size=2, unique=True),  # a step of these sequences
        st.tuples(st.integers(0, 1), st.sets(st.integers(1, 9), min_size=1, max_size=3)),  # a landing in these blocks
    ),
    max_size=12,
)


@given(Events)
def test_whatever_a_step_touches_was_waited_for(events: Sequence[list[int] | tuple[int, set[int]]]) -> None:
    """Nothing lands in blocks of a sequence that runs, which is in the step before or in the next one."""
    order: LandingOrder[int] = LandingOrder(BLOCK_TOKENS, 2)
    waited = 0
    landed = dict.fromkeys([(group, block) for group in range(2) for block in range(1, 10)], 0)  # each one's newest
    starts = dict.fromkeys(TABLES, 5)
    running: list[int] = []
    for time, event in enumerate(events, 1):
        if isinstance(event, tuple):
            group, blocks = event
            own = [block for each in running for block in (TABLES, MIRRORED)[group][each][:2]]
            free = blocks - {*own}
            order.landed(group, free, time)
            landed |= dict.fromkeys([(group, block) for block in free], time)
            continue
        works = [work(each, starts[each]) for each in event]
        waited = max(waited, order.of_step(works) or 0)
        touched = [(group, block) for each in works for group, table in enumerate(each.blocks) for block in table]
        assert all(landed[place] <= waited for place in touched)
        running = event
        for each in event:
            starts[each] = min(starts[each] + 1, 11)
