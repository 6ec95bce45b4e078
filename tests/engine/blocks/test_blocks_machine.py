"""Blocks shared, copied, evicted, swapped, handed off and forgotten in any order: everybody reads their own text.

`python -m tests.engine.blocks.test_blocks_machine 1000000` takes so many steps, and counts what happened.
"""

import sys
import time
from collections import Counter
from random import Random

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.engine.blocks.blocks_model import OPERATIONS, BlocksModel

SHAPES: list[tuple[tuple[int, int], ...]] = [((4, 0),), ((2, 0),), ((1, 0),), ((3, 0), (2, 0))]
SHAPES += [((4, 0), (4, 6)), ((4, 5), (4, 0)), ((2, 3),), ((4, 0), (2, 7), (3, 1))]
"""Of each KV group, tokens of a block and the window."""
AHEAD = [1, 3, 30]
BLOCKS = range(6, 19)
SLOTS = [0, 2, 4, 8, 20]
LEAST = [0, 0, 0, 2, 99]
CHOICE = st.integers(0, len(OPERATIONS) - 1)
STEPS_PER_EXAMPLE = 50
"""Of one example."""

MAX_EXAMPLES = 100


class BlocksMachine(RuleBasedStateMachine):
    """The block manager alone, against `BlocksModel`."""

    @initialize(
        shapes=st.sampled_from(SHAPES),
        blocks=st.sampled_from(BLOCKS),
        slots=st.sampled_from(SLOTS),
        least=st.sampled_from(LEAST),
        ahead=st.sampled_from(AHEAD),
    )
    def start(self, shapes: tuple[tuple[int, int], ...], blocks: int, slots: int, least: int, ahead: int) -> None:
        self.model = BlocksModel(shapes, blocks, slots, least, ahead)

    @rule(choice=CHOICE, which=st.integers(0, 59), count=st.integers(0, 5), bits=st.integers(0, 255))
    def act(self, choice: int, which: int, count: int, bits: int) -> None:
        self.model.act(choice, which, count, bits)

    def teardown(self) -> None:
        """From any state everything ends, and nothing is held."""
        if hasattr(self, "model"):
            self.model.finish()
            for name in self.model.counts:
                event(name)


TestBlocksMachine = BlocksMachine.TestCase
TestBlocksMachine.settings = settings(max_examples=MAX_EXAMPLES, stateful_step_count=STEPS_PER_EXAMPLE)


def random_examples(first: int, count: int) -> Counter[str]:
    """Examples without Hypothesis, which is slower than the model, each with a seed of its own; what happened."""
    happened: Counter[str] = Counter()
    for number in range(first, first + count):
        draw = Random(number)
        shapes, ahead = draw.choice(SHAPES), draw.choice(AHEAD)
        model = BlocksModel(shapes, draw.choice(BLOCKS), draw.choice(SLOTS), draw.choice(LEAST), ahead)
        try:
            for _ in range(STEPS_PER_EXAMPLE):
                model.act(draw.randrange(len(OPERATIONS)), draw.randrange(60), draw.randrange(6), draw.randrange(256))
            model.finish()
        except Exception as error:
            error.add_note(f"seed {number}")
            raise
        happened += model.counts
    return happened


def test_everything_that_the_manager_can_do_happens() -> None:
    happened = random_examples(0, MAX_EXAMPLES)
    names = {*OPERATIONS, "land", "hit", "partial hit", "whole hit", "hit in this step", "hit in the host tier"}
    names |= {"ill", "prompt failed", "kept", "duplicate", "exchange", "no room to begin", "no room to grow"}
    names |= {"evicted", "copied", "spilled", "returned"}  # the manager's own counters
    assert names <= {name for name, times in happened.items() if times}


def main(steps: int) -> None:
    """So many random steps, in process."""
    begun = time.perf_counter()
    happened: Counter[str] = Counter()
    for first in range(0, steps // STEPS_PER_EXAMPLE, 1000):
        happened += random_examples(first, min(1000, steps // STEPS_PER_EXAMPLE - first))
    print(f"{happened['steps']} steps in {steps // STEPS_PER_EXAMPLE} examples, {time.perf_counter() - begun:.0f} s")
    for name, times in happened.most_common():
        print(f"{name:24}{times:10}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
