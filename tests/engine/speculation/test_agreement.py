"""Shared noise makes two models agree as often as the formula says, which is close to the best possible."""

import torch

from benchmarks.speculation.agreement import by_rejection, by_shared_noise, independent
from contracts.messages.sampling import Sampling
from engine.backends.reference.sampler import ReferenceSampler
from engine.backends.sampler import Draw

DRAWS = 4000


def test_draws_with_the_same_counters_agree_as_the_formula_says() -> None:
    """Both models' rows are drawn from with one seed and index, as a step and a draft draw; by filters, too."""
    generator = torch.Generator().manual_seed(0)
    for spread, top_k in ((0.3, 0), (1.0, 0), (1.0, 5)):
        target = torch.randn(40, generator=generator) * 2
        draft = target + torch.randn(40, generator=generator) * spread
        sampling = Sampling(seed=5, temperature=0.8, top_k=top_k)
        drawn = []
        for logits in (target, draft):
            draws = [Draw(sampling, (0,), index) for index in range(DRAWS)]
            drawn.append(ReferenceSampler().sample(logits.expand(DRAWS, -1).contiguous(), draws)[0])
        agreed = (drawn[0] == drawn[1]).float().mean().item()
        p, q = (_kept(logits, top_k).div(0.8).softmax(-1)[None] for logits in (target, draft))
        expected = by_shared_noise(p, q).item()
        assert abs(agreed - expected) < 4 * (expected * (1 - expected) / DRAWS) ** 0.5  # four standard deviations
        best = by_rejection(p, q).item()
        assert best / (2 - best) <= expected <= best
        assert expected > independent(p, q).item()


def _kept(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    if not top_k:
        return logits
    return logits.masked_fill(logits < logits.topk(top_k).values.min(), -torch.inf)
