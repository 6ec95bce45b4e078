"""Shared noise makes two models agree as often as the formula says, which is close to the best possible.

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

from contracts.messages.sampling import Sampling
from engine.backends.reference.sampling.sampler import ReferenceSampler
from engine.backends.sampler import Draw

DRAW_COUNT = 4000


def test_draws_with_the_same_counters_agree_as_the_formula_says() -> None:
    """Both models' rows are drawn from with one seed and index, as a step and a draft draw; by filters, too."""
    generator = torch.Generator().manual_seed(0)
    for spread, top_k in ((0.3, 0), (1.0, 0), (1.0, 5)):
        target = torch.randn(40, generator=generator) * 2
        draft = target + torch.randn(40, generator=generator) * spread
        sampling = Sampling(seed=5, temperature=0.8, top_k=top_k)
        drawn = []
        for logits in (target, draft):
            draws = [Draw(sampling, (0,), index) for index in range(DRAW_COUNT)]
            drawn.append(ReferenceSampler().sample(logits.expand(DRAW_COUNT, -1).contiguous(), draws)[0])
        agreed = (drawn[0] == drawn[1]).float().mean().item()
        p, q = (_kept(logits, top_k).div(0.8).softmax(-1)[None] for logits in (target, draft))
        expected = by_shared_noise(p, q).item()
        assert abs(agreed - expected) < 4 * (expected * (1 - expected) / DRAW_COUNT) ** 0.5  # four standard deviations
        best = by_rejection(p, q).item()
        assert best / (2 - best) <= expected <= best
        assert expected > independent(p, q).item()


def _kept(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    if not top_k:
        return logits
    return logits.masked_fill(logits < logits.topk(top_k).values.min(), -torch.inf)


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
