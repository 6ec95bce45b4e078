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


class _DraftRequest(NamedTuple):
    """A work that gets draft tokens, and the state to draft from."""

    number: int  # of the work in its plan
    row: int  # of the states: that of the last draw
    skipped_heads: int  # heads that would predict the tokens after the last draw, which are known
    drafts: int  # draft tokens wanted


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
        requests = list(self._requests(plan, result))
        if not requests:
            return {}
        logits = self.heads.logits(_rows(hidden, [each.row for each in requests]), self.model)
        max_drafts = max(each.drafts for each in requests)
        best = self._best(logits, 1 + max(choice[-1] for choice in self.tree.choices[:max_drafts]))
        return {
            each.number: Proposal(
                [of_heads[each.skipped_heads + len(path) - 1][path[-1]] for path in self.tree.choices[: each.drafts]],
                parents=self.tree.parents_of(each.drafts),
            )
            for each, of_heads in zip(requests, best, strict=True)
        }

    def _best(self, logits: Tensor, ranks: int) -> list[list[list[int]]]:
        """Returns the `ranks` most likely tokens of each head, by request, head and rank."""
        if ranks == 1:
            tokens, _ = self._backend.sampler.sample(logits, [LIKELIEST_TOKEN] * len(logits))
        else:
            tokens = logits.topk(ranks).indices
        found: list[list[list[int]]] = tokens.view(-1, self.heads.count, ranks).tolist()
        return found

    def _requests(self, plan: StepPlan, result: StepResult) -> Iterator[_DraftRequest]:
        row = 0
        for index, (work, tokens) in enumerate(zip(plan.works, result.tokens, strict=True)):
            if work.sampling is None:
                continue
            if work.propose and tokens and len(work.samples) == 1:
                accepted = result.accepted.get(index, [])
                draws = min(len(accepted) + 1, len(tokens))
                last = accepted[draws - 2] + 1 if draws > 1 else 0
                # Tokens after the last draw, forced by a grammar, take the places of the first heads' predictions.
                forced = len(tokens) - draws
                if drafts := self.tree.within(work.propose, self.heads.count - forced):
                    yield _DraftRequest(index, row + last, forced, drafts)
            row += row_count(work)


def _rows(hidden: Tensor, rows: list[int]) -> Tensor:
    if len(rows) == 1:
        return hidden[rows[0] : rows[0] + 1]
    return hidden[to_device(np.array(rows, np.int64), hidden.device)]
