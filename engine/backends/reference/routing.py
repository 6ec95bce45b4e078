"""Chooses experts with PyTorch operators: the reference of all other routers."""

import torch
from torch import Tensor

from engine.model.config import ExpertsMLP

LEAST_SUM = 1e-20
"""Added to the sum of weights before dividing by it, since all sigmoids may be 0."""


def route(logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    match mlp.scores:
        case "softmax":
            scores = logits.softmax(-1)
        case "softmax_of_used":
            scores = logits
        case "sigmoid":
            scores = logits.sigmoid()
    wanted = scores if correction is None else scores + correction
    if mlp.groups > 1:
        wanted = _in_best_groups(wanted, mlp)
    chosen = _best(wanted, mlp.used)
    shares = scores.gather(1, chosen)
    if mlp.scores == "softmax_of_used":
        shares = shares.softmax(-1)
    if mlp.normalized:
        shares = shares / (shares.sum(-1, keepdim=True) + LEAST_SUM)
    return chosen.int(), shares * mlp.scale


def _best(scores: Tensor, count: int) -> Tensor:
    """Returns the indices of the best, `[rows, count]`; ties go to the first, which `torch.topk` does not guarantee."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _in_best_groups(wanted: Tensor, mlp: ExpertsMLP) -> Tensor:
    groups = wanted.unflatten(1, (mlp.groups, -1))
    best = groups.topk(1 if mlp.group_score == "best" else 2).values.sum(-1)
    out = torch.ones_like(best, dtype=torch.bool).scatter_(1, _best(best, mlp.groups_used), False)
    kept: Tensor = groups.masked_fill(out[:, :, None], -torch.inf).flatten(1)
    return kept
