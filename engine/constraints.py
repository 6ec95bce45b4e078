"""Says what an executor asks of grammars: packed masks of the tokens that may come next, while the step runs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.plan import GrammarRefusal, StepPlan, Work


class Masks(NamedTuple):
    """Says for some rows of a step's logits which tokens may be drawn."""

    rows: Sequence[int]  # numbers of the masked rows, rising
    bits: NDArray[np.int32]
    """`[masked rows, ceil(vocab / 32)]`: where bit i % 32 of word i // 32 is set, token i may be drawn. Bits behind the
    vocabulary are not set."""


class GrammarConstraints(Protocol):
    """Keeps works whose sampling has a grammar to it. Called on the engine's thread, once for each step."""

    def begin(self, plan: StepPlan) -> None:
        """Starts computing the masks of a step that is about to be launched; does not wait for them."""
        ...

    def masks(self, works: Sequence[Work]) -> Masks | None:
        """Returns the masks of the step that has begun; None where no work has a grammar. May wait.

        `works` are those of the plan that are sampled, in the order of the rows. The caller does not change the arrays,
        and does not look at them after the next `begin`.
        """
        ...

    def settle(self, plan: StepPlan, tokens: Sequence[list[int]]) -> dict[int, GrammarRefusal]:
        """Takes what a step has drawn, of each work, and adds in place what its grammar makes follow.

        Where it allows one continuation only, that takes the place of what was drawn. Returns by their index the works
        that cannot go on, and why; they have no tokens then. Steps are settled in the order in which they began.
        """
        ...
