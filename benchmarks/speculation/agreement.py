"""Chance that two models choose the same token: with shared noise, as here, and the best possible.

p are the target's probabilities of the next token, q the draft's. A token of the draft that is accepted or replaced by
rejection sampling is the target's own with the chance

    sum min(p, q)                                                  Leviathan et al. 2023; no coupling agrees more often

Two draws by Gumbel-max with the same noise, as ours are, agree with the chance

    sum over i of 1 / (sum over j of max(p_j / p_i, q_j / q_i))    Daliri, Musco and Suresh, arXiv:2408.07978

which is at least (1 - d) / (1 + d) where the first is 1 - d. It needs no draft to be known to the target's draw, so the
tokens are those that come without any. Two independent draws agree with sum p q.
"""

import torch
from torch import Tensor


def by_rejection(p: Tensor, q: Tensor) -> Tensor:
    return torch.minimum(p, q).sum(-1)


def by_shared_noise(p: Tensor, q: Tensor) -> Tensor:
    return torch.stack([_of_row(*row) for row in zip(p.double(), q.double(), strict=True)])


def independent(p: Tensor, q: Tensor) -> Tensor:
    return (p * q).sum(-1)


def _of_row(p: Tensor, q: Tensor) -> Tensor:
    both = (p > 0) & (q > 0)  # a token that one never draws is in no agreement
    ratios = torch.maximum(p[:, None] / p[both], q[:, None] / q[both])  # [j, i]
    return (1 / ratios.sum(0)).sum()
