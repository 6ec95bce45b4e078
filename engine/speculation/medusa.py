"""Guesses by Medusa heads: each reads the state that a token was drawn from, and guesses one of those behind it.

(Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", 2024.) A head is some
residual blocks and output weights, its own or the model's. No head knows what the others guess, so all heads of all
sequences are computed at once. A guess is drawn with the counters of the token that it foretells, so that the noise of
both draws is the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.backends.base import Backend
from engine.backends.sampler import Draw
from engine.device import to_device
from engine.model.linear import Linear
from engine.model.model import Model
from engine.plan import Plan, StepResult, Work
from engine.verification import foreseen, row_count


@dataclass(frozen=True)
class MedusaHeads:
    """Holds all heads; a block adds silu(W x + b) to its x."""

    count: int
    first: Linear  # [heads x hidden]: of each head the first block, which all read the same states
    later: tuple[tuple[Linear, ...], ...]  # of each block behind it those of all heads
    outputs: tuple[Linear, ...]  # [vocab], of each head; none: they have the model's own

    def states(self, hidden: Tensor) -> Tensor:
        """Returns `[rows, heads, hidden]` of the model's normed states `[rows, hidden]`."""
        states = hidden[:, None] + F.silu(self.first(hidden)).view(len(hidden), self.count, -1)
        for blocks in self.later:
            products = [block(states[:, head]) for head, block in enumerate(blocks)]
            states = states + F.silu(torch.stack(products, dim=1))
        return states

    def logits(self, hidden: Tensor, model: Model[Any]) -> Tensor:
        """Returns `[rows x heads, vocab]` of the states `[rows, hidden]` of `model`."""
        states = self.states(hidden)
        if not self.outputs:
            return model.logits(states.flatten(0, 1))
        return torch.stack([output(states[:, head]) for head, output in enumerate(self.outputs)], 1).flatten(0, 1)

    def bytes(self) -> int:
        """Counts the bytes of the weights."""
        layers = (self.first, *(block for blocks in self.later for block in blocks), *self.outputs)
        return sum(tensor.nbytes for layer in layers for tensor in layer.held())


class _Asked(NamedTuple):
    """Says for whom is guessed, and from which state."""

    number: int  # of the work in its plan
    work: Work
    row: int  # of the states: that of the last draw
    behind: int  # tokens that came behind that draw's: those heads' guesses are of the past
    came: int


class MedusaProposer:
    """See `engine.speculation.proposer.ModelProposer`."""

    def __init__(self, heads: MedusaHeads, model: Model[Any], backend: Backend[Any, Any]) -> None:
        self.heads = heads
        self.model = model
        self._backend = backend
        self._most = heads.count

    def weights_bytes(self) -> int:
        """Counts the bytes of the heads' weights."""
        return self.heads.bytes()

    def propose(self, plan: Plan, result: StepResult, hidden: Tensor) -> dict[int, list[int]]:
        """See `ModelProposer`."""
        asked = [each for each in _asked(plan, result) if each.behind < self._most]
        if not asked:
            return {}
        rows = to_device(np.array([each.row for each in asked], np.int64), hidden.device)
        logits = self.heads.logits(hidden[rows], self.model)
        # Those who came behind the last draw, forced by a grammar, were the first heads' to guess.
        draws = [_draw(each, head) for each in asked for head in range(self._most)]
        tokens, _ = self._backend.sampler.sample(logits, draws)
        found = tokens.view(len(asked), self._most).tolist()
        return {
            each.number: guesses[each.behind : each.behind + each.work.propose]
            for each, guesses in zip(asked, found, strict=True)
        }


def _asked(plan: Plan, result: StepResult) -> Iterator[_Asked]:
    """Finds the works that ask for guesses, and of each the row of its last draw that counts."""
    row = 0
    for number, (work, came) in enumerate(zip(plan.works, result.tokens, strict=True)):
        if work.sampling is None:
            continue
        if work.propose and came and len(work.samples) == 1:
            draws = min(foreseen(work.proposed, came) + 1, len(came))
            yield _Asked(number, work, row + draws - 1, len(came) - draws, len(came))
        row += row_count(work)


def _draw(asked: _Asked, head: int) -> Draw:
    """Describes the draw that a head's guess foretells."""
    work = asked.work
    assert work.sampling is not None
    index = work.output_index + asked.came - asked.behind + head
    return Draw(work.sampling, work.samples, index)
