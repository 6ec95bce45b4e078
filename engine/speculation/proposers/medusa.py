"""Drafts with Medusa heads: each head reads the state that a token was drawn from, and predicts one later token.

(Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", 2024.) A head is some
residual blocks and output weights, its own or the model's. Heads do not depend on each other, so all heads of all
sequences are computed at once. Draft tokens are the heads' most likely tokens at every temperature: a head is less
certain than the model, so drawing with the model's noise is accepted less often (tokens per step with the demo model's
heads at temperature 1: 1.9 drawn, 2.2 most likely; at 1.5: 1.6 and 1.8). If more draft tokens pay than there are heads,
they form a tree: always the same tree (`choices.py`), of which any number of first draft tokens is a tree as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.base import Backend
from engine.backends.sampler import Draw
from engine.device import to_device
from engine.model.layers.linear import Linear
from engine.model.model import Model
from engine.parallel.rank_group import RankGroup
from engine.plan import Proposal, StepPlan, StepResult
from engine.speculation.proposers.choices import Tree
from engine.speculation.verify.verification import row_count

LIKELIEST_TOKEN = Draw(Sampling(seed=0, temperature=0.0), (0,), 0)


@dataclass(frozen=True)
class MedusaHeads:
    """All heads; a block adds silu(W x + b) to its x."""

    count: int
    first: Linear  # [heads x hidden]: the first block of each head; all read the same states
    later: tuple[tuple[Linear, ...], ...]  # for each later block, that of each head
    outputs: tuple[Linear, ...]  # [this rank's part of the vocabulary] for each head; empty: the model's own
    group: RankGroup
    vocab: int

    def states(self, hidden: Tensor) -> Tensor:
        """Returns `[rows, heads, hidden]` of the model's normed states `[rows, hidden]`."""
        states = F.silu(self.first(hidden), inplace=True).view(len(hidden), self.count, -1).add_(hidden[:, None])
        for blocks in self.later:
            products = [block(x) for block, x in zip(blocks, states.unbind(1), strict=True)]
            states += F.silu(torch.stack(products, dim=1), inplace=True)
        return states

    def logits(self, hidden: Tensor, model: Model[Any]) -> Tensor:
        """Returns `[rows x heads, vocab]` of the states `[rows, hidden]` of `model`."""
        states = self.states(hidden)
        if not self.outputs:
            return model.logits(states.flatten(0, 1))
        own = torch.stack([output(states[:, head]) for head, output in enumerate(self.outputs)], 1).flatten(0, 1)
        return self.group.collective.all_gather(own, self.group.shard.lengths(self.vocab))

    def bytes(self) -> int:
        layers = (self.first, *(block for blocks in self.later for block in blocks), *self.outputs)
        return sum(tensor.nbytes for layer in layers for tensor in layer.held())


class _Asked(NamedTuple):
    """A work that gets draft tokens, and the state to draft from."""

    number: int  # of the work in its plan
    row: int  # of the states: that of the last draw
    behind: int  # tokens after that draw; the heads for them are skipped
    guesses: int


class MedusaProposer:
    """Drafts with heads that read the states of rows of logits."""

    def __init__(self, heads: MedusaHeads, model: Model[Any], backend: Backend[Any, Any], tree: Tree) -> None:
        self.heads = heads
        self.model = model
        self.tree = tree
        self._backend = backend

    def weights_bytes(self) -> int:
        return self.heads.bytes()

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        asked = list(self._asked(plan, result))
        if not asked:
            return {}
        logits = self.heads.logits(_rows(hidden, [each.row for each in asked]), self.model)
        most = max(each.guesses for each in asked)
        found = self._best(logits, 1 + max(choice[-1] for choice in self.tree.choices[:most]))
        return {
            each.number: Proposal(
                [of_heads[each.behind + len(way) - 1][way[-1]] for way in self.tree.choices[: each.guesses]],
                parents=self.tree.parents_of(each.guesses),
            )
            for each, of_heads in zip(asked, found, strict=True)
        }

    def _best(self, logits: Tensor, ranks: int) -> list[list[list[int]]]:
        if ranks == 1:
            tokens, _ = self._backend.sampler.sample(logits, [LIKELIEST_TOKEN] * len(logits))
        else:
            tokens = logits.topk(ranks).indices
        found: list[list[list[int]]] = tokens.view(-1, self.heads.count, ranks).tolist()
        return found

    def _asked(self, plan: StepPlan, result: StepResult) -> Iterator[_Asked]:
        row = 0
        for number, (work, came) in enumerate(zip(plan.works, result.tokens, strict=True)):
            if work.sampling is None:
                continue
            if work.propose and came and len(work.samples) == 1:
                right = result.accepted.get(number, [])
                draws = min(len(right) + 1, len(came))
                last = right[draws - 2] + 1 if draws > 1 else 0
                # Tokens after the last draw, forced by a grammar, take the places of the first heads' predictions.
                behind = len(came) - draws
                if guesses := self.tree.within(work.propose, self.heads.count - behind):
                    yield _Asked(number, row + last, behind, guesses)
            row += row_count(work)


def _rows(hidden: Tensor, rows: list[int]) -> Tensor:
    if len(rows) == 1:
        return hidden[rows[0] : rows[0] + 1]
    return hidden[to_device(np.array(rows, np.int64), hidden.device)]
