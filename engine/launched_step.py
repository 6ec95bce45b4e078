"""A step whose result is on its way to the host, and the valid draws in that result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.device import to_device
from engine.plan import StepPlan, Work
from engine.speculation.proposers.pending_drafts import DraftedTokens
from engine.speculation.verify.typical import may_be_typical, with_accepted_drafts
from engine.speculation.verify.verification import NONE_LEFT, NOT_FINITE, verified_rows


class Draws(NamedTuple):
    """A step's draws, by the index of their work."""

    tokens: list[list[int]]  # by work, the valid draws; empty if the work has failed
    rows: dict[int, list[int]]  # by work with draft tokens, the rows of valid draws
    failed: list[int]  # works with logits that are not finite
    none_left: list[int]  # works for which every token is forbidden


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose result is on its way to the host."""

    plan: StepPlan
    sampled_works: tuple[int, ...]  # indices of the sampled works in the plan
    results: Tensor  # [2 or 3, samples] int64 on the host: tokens, outcomes, and whether typical
    scores: Tensor | None  # score words of samples with requested scores, on the host
    prompt_scores: Tensor | None  # the same for prompts' tokens
    hidden: Tensor | None  # [rows, hidden] on the device, for the proposer; None: no proposer
    states: Tensor | None  # [works, hidden] fp32 on the host, or their results, for works with `returns_state`
    done: torch.cuda.Event | None  # of the copy to the host; None: it is done
    drafted: Mapping[int, DraftedTokens] = field(default_factory=dict)  # its pending draft tokens, by sequence

    def draws(self) -> Draws:
        """Returns the valid draws of a step that is done, up to the first wrong draft token of each work."""
        drawn, outcomes, *likely_rows = self.results.tolist()
        works = self.plan.works
        valid = Draws([[] for _ in works], {}, [], [])
        begin = 0
        for index in self.sampled_works:
            work = works[index]
            end = begin + len(work.samples) + len(work.proposed)
            outcomes_of_work, tokens = outcomes[begin:end], drawn[begin:end]
            if likely_rows and may_be_typical(work):
                tokens = with_accepted_drafts(work, tokens, likely_rows[0][begin:end])
            if work.proposed:
                rows, outcome = verified_rows(work, tokens, outcomes_of_work)
                valid.rows[index], tokens, outcomes_of_work = rows, [tokens[row] for row in rows], [outcome]
            if NOT_FINITE in outcomes_of_work:
                valid.failed.append(index)
            elif NONE_LEFT in outcomes_of_work:
                valid.none_left.append(index)
            else:
                valid.tokens[index] = tokens
            begin = end
        return valid

    def states_by_work(self) -> dict[int, bytes]:
        """Returns the states on the host by the index of their work."""
        if self.states is None:
            return {}
        indices = [index for index, work in enumerate(self.plan.works) if work.returns_state]
        return {index: state.tobytes() for index, state in zip(indices, self.states.numpy(), strict=True)}


def outcomes_of(logits: Tensor, works: Sequence[Work], tokens: Tensor, finite: Tensor) -> Tensor:
    """Returns the outcome of each sample, int64 `[samples]`: a forbidden token is drawn if all are forbidden."""
    rows = to_device(np.repeat(np.arange(len(works)), [len(work.samples) for work in works]), logits.device)
    forbidden = logits[rows, tokens] <= FORBIDDEN_LOGIT
    return torch.where(finite & forbidden, NONE_LEFT, finite.long())
