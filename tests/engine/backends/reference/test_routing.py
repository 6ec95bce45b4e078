"""Routers choose and weigh as the formulas say: one token after the other, in plain Python."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from engine.backends.native.library import load
from engine.backends.reference.routing import route
from engine.model.config import ExpertsMLP
from tests.engine.backends.native.elementwise import routed

ROUTERS: dict[str, ExpertsMLP] = {
    "one": ExpertsMLP(experts=1, used=1, intermediate=8),
    "one of many": ExpertsMLP(experts=17, used=1, intermediate=8),
    "all": ExpertsMLP(experts=5, used=5, intermediate=8, normalized=True),
    "softmax": ExpertsMLP(experts=19, used=4, intermediate=8),
    "softmax, normalized": ExpertsMLP(experts=16, used=2, intermediate=8, normalized=True),
    "softmax of those used": ExpertsMLP(experts=32, used=4, intermediate=8, scores="softmax_of_used"),
    "best of groups": ExpertsMLP(experts=24, used=3, intermediate=8, groups=6, groups_used=2, scale=16.0),
    "sigmoid": ExpertsMLP(experts=33, used=7, intermediate=8, scores="sigmoid", scale=2.5, normalized=True),
    "sigmoid, corrected, best two of groups": ExpertsMLP(
        experts=40,
        used=6,
        intermediate=8,
        scores="sigmoid",
        normalized=True,
        scale=2.5,
        correction=True,
        groups=8,
        groups_used=3,
        group_score="best_two",
    ),
}

Route = Callable[[Tensor, ExpertsMLP, Tensor | None], tuple[Tensor, Tensor]]


@pytest.fixture(params=["torch", "native"])
def router(request: pytest.FixtureRequest) -> Route:
    return route if request.param == "torch" else partial(routed, load())


def by_hand(logits: list[float], mlp: ExpertsMLP, correction: list[float]) -> tuple[list[int], list[float]]:
    """The chosen experts, best first, and their weights, of one token."""
    scores = logits
    if mlp.scores == "softmax":
        scores = softmax(logits)
    elif mlp.scores == "sigmoid":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    wanted = [score + each for score, each in zip(scores, correction, strict=True)]
    size, top = mlp.experts // mlp.groups, 1 if mlp.group_score == "best" else 2
    members = [list(range(group * size, (group + 1) * size)) for group in range(mlp.groups)]
    if mlp.groups > 1:
        worth = {
            group: sum(sorted((wanted[e] for e in members[group]), reverse=True)[:top]) for group in range(mlp.groups)
        }
        members = [
            members[group] for group in sorted(worth, key=lambda group: (-worth[group], group))[: mlp.groups_used]
        ]
    open_to = sorted((e for group in members for e in group), key=lambda e: (-wanted[e], e))
    chosen = open_to[: mlp.used]
    shares = [scores[e] for e in chosen]
    if mlp.scores == "softmax_of_used":
        shares = softmax(shares)
    total = sum(shares) if mlp.normalized else 1.0
    return chosen, [mlp.scale * share / total for share in shares]


def softmax(x: list[float]) -> list[float]:
    powers = [math.exp(each - max(x)) for each in x]
    return [power / sum(powers) for power in powers]


def corrections(mlp: ExpertsMLP, generator: torch.Generator) -> Tensor | None:
    return torch.randn(mlp.experts, generator=generator) / 10 if mlp.correction else None


@pytest.mark.parametrize("mlp", ROUTERS.values(), ids=ROUTERS)
def test_experts_are_chosen_and_weighed_by_the_formulas(mlp: ExpertsMLP, router: Route) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, correction = torch.randn(50, mlp.experts, generator=generator) * 2, corrections(mlp, generator)
    chosen, shares = router(logits, mlp, correction)
    assert chosen.dtype == torch.int32 and shares.dtype == torch.float32
    added = [0.0] * mlp.experts if correction is None else correction.tolist()
    for row in range(len(logits)):
        experts, weights = by_hand(logits[row].tolist(), mlp, added)
        assert chosen[row].tolist() == experts
        assert shares[row].tolist() == pytest.approx(weights, rel=1e-5)


@pytest.mark.parametrize("mlp", ROUTERS.values(), ids=ROUTERS)
def test_of_equal_scores_the_lower_number_is_first(mlp: ExpertsMLP, router: Route) -> None:
    """Small whole logits: most of them have an equal, in their group and in others."""
    logits = torch.randint(0, 3, (60, mlp.experts), generator=torch.Generator().manual_seed(1)).float()
    correction = torch.zeros(mlp.experts) if mlp.correction else None
    chosen, _ = router(logits, mlp, correction)
    for row in range(len(logits)):
        assert chosen[row].tolist() == by_hand(logits[row].tolist(), mlp, [0.0] * mlp.experts)[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mlp", ROUTERS.values(), ids=ROUTERS)
def test_a_token_that_is_not_finite_harms_itself_only(mlp: ExpertsMLP, bad: float, router: Route) -> None:
    logits, correction = torch.randn(3, mlp.experts), corrections(mlp, torch.Generator().manual_seed(2))
    alone, weights = router(logits[::2], mlp, correction)
    logits[1] = bad
    chosen, shares = router(logits, mlp, correction)
    assert torch.equal(chosen[::2], alone) and torch.equal(shares[::2], weights)
    assert len(set(chosen[1].tolist())) == mlp.used and chosen[1].min() >= 0 and chosen[1].max() < mlp.experts
    if math.isnan(bad) or mlp.scores != "sigmoid":  # which is 0 or 1 of what is infinite
        assert not shares[1].isfinite().any()
