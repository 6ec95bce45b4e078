"""The strict executor keeps the order that the real one keeps: steps, moves and landings, each after the one before."""

import pytest

from engine.plan import BlockMove, Plan, Work
from tests.engine.drive import GREEDY
from tests.engine.strict_executor import StrictExecutor, next_token

PROMPT = [1, 2, 3, 4, 5, 6]


def prefilled() -> StrictExecutor:
    """Six tokens of sequence 1 in blocks 1 and 2, the step not collected."""
    executor = StrictExecutor((4,))
    executor.launch(Plan(1, [Work(1, 0, PROMPT, ([1, 2],), GREEDY, (0, 3))]))
    return executor


def test_moves_follow_the_launched_step_and_come_before_what_lands() -> None:
    executor = prefilled()
    executor.move([BlockMove("copy", 0, 1, 4), BlockMove("out", 0, 2, 7), BlockMove("in", 0, 7, 5)])
    executor.land(2, PROMPT, ([1, 2],))
    executor.expect(1, PROMPT, ([4, 5],))
    executor.expect(2, PROMPT, ([1, 2],))
    assert executor.collect().tokens == [[next_token(PROMPT, GREEDY, sample, 0) for sample in (0, 3)]]


def test_a_step_in_flight_writes_after_what_landed_too_early() -> None:
    executor = prefilled()
    executor.land(2, PROMPT, ([1, 2],))
    executor.collect()
    with pytest.raises(AssertionError, match="position 0 of 6"):
        executor.expect(2, PROMPT, ([1, 2],))


def test_a_slot_that_holds_something_else_is_seen() -> None:
    executor = prefilled()
    executor.move([BlockMove("out", 0, 1, 0), BlockMove("out", 0, 2, 0), BlockMove("in", 0, 0, 4)])
    executor.collect()
    with pytest.raises(AssertionError, match="position 0 of 6"):
        executor.expect(1, PROMPT, ([4, 2],))
