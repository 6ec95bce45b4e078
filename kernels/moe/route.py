"""Chooses each token's experts by a router's logits, and computes their weights.

    scores  = softmax(logits), logits or sigmoid(logits)
    wanted  = scores + correction                 minus infinity in all but the best `groups_used` groups
    chosen  = places of the `used` largest of wanted, the first of equal ones
    shares  = scores of the chosen, through a softmax, or divided by their sum, or as they are; times `scale`

(Softmax: Shazeer et al., "Outrageously Large Neural Networks", 2017, https://arxiv.org/abs/1701.06538; softmax of the
used experts: Mixtral, 2024, https://arxiv.org/abs/2401.04088; groups: DeepSeek-V2, https://arxiv.org/abs/2405.04434;
sigmoids and their correction: DeepSeek-V3, https://arxiv.org/abs/2412.19437.) The score of a group is its largest
score, or the sum of its two largest. A program is one warp with a token's logits in its registers: no step waits for
another warp.
"""

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gate import sigmoid
from kernels.launching import launched_directly
from kernels.sizes import power_of_two
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (Config({}, warps=1), Config({}, warps=2), Config({}, warps=4))
"""The first is the default."""

MAX_EXPERTS = 1024
MIN_SHARE_SUM = tl.constexpr(1e-20)
"""Added to the sum of shares before dividing by it, since all sigmoids may be 0."""
NAN_LOGIT = tl.constexpr(-1e30)
"""Replaces NaN logits."""
NO_EXPERT = tl.constexpr(1 << 30)
"""Larger than every expert's number."""


class Routing(NamedTuple):
    """How experts are chosen and weighed: see the head of this file."""

    used: int
    scores: Literal["softmax", "softmax_of_used", "sigmoid"] = "softmax"
    normalized: bool = False  # shares are divided by their sum
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best_two: bool = False  # a group is as good as the sum of its largest two


def unsupported(experts: int) -> str:
    """Returns one sentence that says why this number of experts is not supported; empty if it is."""
    return f"route supports up to {MAX_EXPERTS} experts, not {experts}" if experts > MAX_EXPERTS else ""


def route(
    logits: Tensor, routing: Routing, correction: Tensor | None = None, *, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """Chooses `used` experts for each token.

    Args:
        logits: `[tokens, experts]` fp32, contiguous. NaN makes all shares of its token NaN.
        routing: parameters of the choice.
        correction: `[experts]` fp32, added to the scores to choose experts; None: no correction.

    Returns the chosen experts, int32, best first, and their shares, fp32, both `[tokens, used]`.

    Example: logits `[32, 128]`, `Routing(8, normalized=True)` gives two `[32, 8]`.
    """
    tokens, experts = logits.shape
    assert logits.dtype == torch.float32 and logits.is_contiguous() and not unsupported(experts)
    assert 1 <= routing.used <= experts and experts % routing.groups == 0
    if correction is not None:
        assert correction.shape == (experts,) and correction.dtype == torch.float32 and correction.is_contiguous()
    chosen = torch.empty((tokens, routing.used), dtype=torch.int32, device=logits.device)
    shares = logits.new_empty(chosen.shape)
    if not tokens:
        return chosen, shares
    config = config or tuned("route", f"experts={experts},used={routing.used}", logits.device, CANDIDATE_CONFIGS[0])
    each = experts // routing.groups
    _route[(tokens,)](
        logits,
        logits if correction is None else correction,
        chosen,
        shares,
        routing.scale,
        EXPERTS=experts,
        GROUPS=routing.groups,
        EACH=each,
        GROUPS_TILE=power_of_two(routing.groups),
        EACH_TILE=power_of_two(each),
        GROUPS_USED=routing.groups_used,
        BEST_TWO=routing.best_two,
        USED=routing.used,
        USED_TILE=power_of_two(routing.used),
        SCORES=routing.scores,
        CORRECTED=correction is not None,
        NORMALIZED=routing.normalized,
        **config.options(),
    )
    return chosen, shares


@launched_directly
@triton.jit(do_not_specialize=["scale"])
def _route(
    logits: tl.tensor,
    correction: tl.tensor,
    chosen: tl.tensor,
    shares: tl.tensor,
    scale: tl.tensor,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    EACH: tl.constexpr,
    GROUPS_TILE: tl.constexpr,
    EACH_TILE: tl.constexpr,
    GROUPS_USED: tl.constexpr,
    BEST_TWO: tl.constexpr,
    USED: tl.constexpr,
    USED_TILE: tl.constexpr,
    SCORES: tl.constexpr,
    CORRECTED: tl.constexpr,
    NORMALIZED: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_TILE)
    within = tl.arange(0, EACH_TILE)
    expert = group[:, None] * EACH + within[None, :]
    is_expert = (group < GROUPS)[:, None] & (within < EACH)[None, :]
    lowest = float("-inf")
    scores = tl.load(logits + token * EXPERTS + expert, mask=is_expert, other=lowest)
    broken = scores != scores
    scores = tl.where(broken, NAN_LOGIT, scores)
    if SCORES == "softmax":
        exponentials = tl.exp(scores - tl.max(scores))
        scores = exponentials / tl.sum(exponentials)
    elif SCORES == "sigmoid":
        scores = sigmoid(scores)
    corrected = scores
    if CORRECTED:
        corrected += tl.load(correction + expert, mask=is_expert, other=0.0)
    corrected = tl.where(is_expert, corrected, lowest)
    if GROUPS > 1:
        best = tl.max(corrected, 1)
        if BEST_TWO:
            first = tl.min(tl.where(corrected == best[:, None], within[None, :], EACH_TILE), 1)
            best += tl.max(tl.where(within[None, :] == first[:, None], lowest, corrected), 1)
        groups_left = group < GROUPS
        for _ in range(GROUPS_USED):
            best_group = tl.min(
                tl.where(groups_left & (best == tl.max(tl.where(groups_left, best, lowest))), group, NO_EXPERT)
            )
            groups_left &= group != best_group
        is_left_out = groups_left[:, None]
        corrected = tl.where(is_left_out, lowest, corrected)

    lane = tl.arange(0, USED_TILE)
    experts = tl.zeros([USED_TILE], tl.int32)
    used_scores = tl.full([USED_TILE], lowest, tl.float32)
    experts_left = is_expert
    for turn in range(USED):
        largest = tl.max(tl.where(experts_left, corrected, lowest))
        best_expert = tl.min(tl.where(experts_left & (corrected == largest), expert, NO_EXPERT))
        score = tl.sum(tl.where(expert == best_expert, tl.where(is_expert, scores, 0.0), 0.0))
        experts = tl.where(lane == turn, best_expert, experts)
        used_scores = tl.where(lane == turn, score, used_scores)
        experts_left &= expert != best_expert

    valid = lane < USED
    if SCORES == "softmax_of_used":
        exponentials = tl.where(valid, tl.exp(used_scores - tl.max(used_scores)), 0.0)
        used_scores = exponentials / tl.sum(exponentials)
    if NORMALIZED:
        used_scores = used_scores / (tl.sum(tl.where(valid, used_scores, 0.0)) + MIN_SHARE_SUM)
    used_scores = tl.where(tl.max(broken.to(tl.int32)) > 0, float("nan"), used_scores)
    tl.store(chosen + token * USED + lane, experts, mask=valid)
    tl.store(shares + token * USED + lane, used_scores * scale, mask=valid)


def reference(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Computes the same with torch operators, in the precision of the logits."""
    scores = logits
    if routing.scores != "softmax_of_used":
        scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
    wanted = scores if correction is None else scores + correction
    groups = wanted.unflatten(1, (routing.groups, -1))
    good = groups.topk(2 if routing.best_two else 1).values.sum(-1)
    order = good.sort(dim=1, descending=True, stable=True).indices
    if routing.groups > 1:
        out = torch.ones_like(good, dtype=torch.bool).scatter_(1, order[:, : routing.groups_used], False)
        wanted = groups.masked_fill(out[:, :, None], float("-inf")).flatten(1)
    chosen = wanted.sort(dim=1, descending=True, stable=True).indices[:, : routing.used]
    shares = scores.gather(1, chosen)
    if routing.scores == "softmax_of_used":
        shares = shares.softmax(-1)
    if routing.normalized:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return chosen.int(), shares * routing.scale
