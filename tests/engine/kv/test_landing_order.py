"""A step waits for what has landed in its own blocks, once, and for nothing else."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.landing_order import LandingOrder
from engine.plan import Work

BLOCK = 4
TABLES = {1: [1, 2, 3], 2: [4, 5, 6], 3: [7, 8, 9]}


def work(sequence: int, start: int, tokens: int = 1) -> Work:
    return Work(sequence, start, [0] * tokens, (TABLES[sequence][: (start + tokens - 1) // BLOCK + 1],))


def test_a_step_waits_once_for_its_own_sequences() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK)
    assert order.of_step([work(1, 7)]) is None, "nothing has landed"
    order.landed([4, 5], "layer 0")
    order.landed([4, 5], "layer 1")
    assert order.of_step([work(1, 8)]) is None, "that is another's"
    assert order.of_step([work(1, 9), work(2, 5)]) == "layer 1"
    assert order.of_step([work(1, 10), work(2, 6)]) is None, "it has waited"
    order.landed([7], "early")
    order.landed([6], "late")
    assert order.of_step([work(2, 7), work(3, 3)]) == "early"
    assert order.of_step([work(2, 8)]) == "late", "the sequence has grown into a block that somebody gave up"


def test_who_comes_back_is_looked_at_again() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK)
    order.landed([9], "another's")
    assert order.of_step([work(1, 8)]) is None
    order.landed([1], "what it has left meanwhile")
    assert order.of_step([work(2, 1)]) is None
    assert order.of_step([work(1, 9)]) == "what it has left meanwhile"


def test_moves_and_whoever_touches_any_block() -> None:
    order: LandingOrder[str] = LandingOrder(BLOCK)
    order.landed([1, 2], "first")
    order.landed([2, 3], "second")
    assert order.of_blocks([1, 4]) == "first"
    assert order.of_any() == "second"
    assert order.of_any() is None and order.of_blocks([1, 2, 3]) is None


Events = st.lists(
    st.one_of(
        st.lists(st.sampled_from(sorted(TABLES)), min_size=1, max_size=2, unique=True),  # a step of these sequences
        st.sets(st.integers(1, 9), min_size=1, max_size=3),  # a landing in these blocks
    ),
    max_size=12,
)


@given(Events)
def test_whatever_a_step_touches_was_waited_for(events: Sequence[list[int] | set[int]]) -> None:
    """Nothing lands in blocks of a sequence that runs, which is in the step before or in the next one."""
    order: LandingOrder[int] = LandingOrder(BLOCK)
    waited = 0
    landed = dict.fromkeys(range(1, 10), 0)  # by block: its newest landing
    starts = dict.fromkeys(TABLES, 5)
    running: list[int] = []
    for time, event in enumerate(events, 1):
        if isinstance(event, set):
            free = {block for block in event if not any(block in TABLES[each][:2] for each in running)}
            order.landed(free, time)
            landed |= dict.fromkeys(free, time)
            continue
        works = [work(each, starts[each]) for each in event]
        waited = max(waited, order.of_step(works) or 0)
        touched = [block for each in works for block in each.blocks[0]]
        assert all(landed[block] <= waited for block in touched)
        running = event
        for each in event:
            starts[each] = min(starts[each] + 1, 11)
