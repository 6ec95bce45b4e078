"""The interface between executor and grammars: packed masks of allowed tokens, computed while the step runs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.plan import GrammarRefusal, StepPlan, Work


class Masks(NamedTuple):
    """The tokens that may be drawn from some rows of a step's logits."""

    rows: Sequence[int]  # the masked rows, ascending
    bits: NDArray[np.int32]
    """`[masked rows, ceil(vocab / 32)]`: token i may be drawn where bit i % 32 of word i // 32 is set. Bits beyond the
    vocabulary are not set."""


class GrammarConstraints(Protocol):
    """Holds works to their grammars. Called on the engine's thread, once for each step."""

    def begin(self, plan: StepPlan) -> None:
        """Starts computing the masks of a step that is about to be launched, without waiting."""
        ...

    def masks(self, works: Sequence[Work]) -> Masks | None:
        """Returns the masks of the newest step; None if no work has a grammar. May wait.

        `works` are the sampled works of the plan, in the order of rows. The caller must not change the arrays, nor read
        them after the next `begin`.
        """
        ...

    def settle(self, plan: StepPlan, tokens: Sequence[list[int]]) -> dict[int, GrammarRefusal]:
        """Advances each work's grammar by its drawn `tokens`, and appends forced tokens to them in place.

        If the grammar allows only one continuation, it replaces the draw. Returns refusals by index of works that
        cannot continue; their tokens are removed. Steps are settled in the order in which they began.
        """
        ...
