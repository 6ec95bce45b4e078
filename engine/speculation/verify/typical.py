"""Medusa's typical acceptance: accepts draft tokens that are likely enough, whatever was drawn. It changes the output.

A draft token x after the text, or after an accepted draft token, is accepted if the model's distribution has

    p(x) > min(EPSILON, DELTA exp(-H(p)))                                      Cai et al. 2024, section 3.3.1

p is the sampling distribution, after penalties, masks, temperature and filters; H is its entropy in nats. A draft token
that equals the draw is accepted as well. The longest accepted path is taken, followed by the token drawn at its end.
The output is therefore not a sample of the model's distribution: unlikely tokens are rarer. It is used only with
`--acceptance typical`, and not at temperature 0 or where log-probabilities are reported.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.backends.reference.sampling.processed import processed
from engine.device import to_device
from engine.plan import Work
from engine.speculation.verify.verification import parents_of, row_count

EPSILON, DELTA = 0.09, 0.3
"""The values for the published heads, FasterDecoding/Medusa."""


def may_be_typical(work: Work) -> bool:
    sampling = work.sampling
    return sampling is not None and bool(work.proposed and sampling.temperature) and sampling.logprobs is None


def likely(logits: Tensor, works: Sequence[Work], tokens: Tensor) -> Tensor:
    """Returns int64 `[samples]` on the device: 1 for the row of each draft token that is likely enough.

    Args:
        logits: `[rows, vocab]` that `tokens` were drawn from.
        works: the sampled works, in order; each has `row_count` rows.
        tokens: int64 `[samples]`.
    """
    is_likely = torch.zeros_like(tokens)
    row = place = 0
    drafts: list[tuple[int, int, int, int]] = []  # parent's row, parent's sample, own sample, token id
    samplings = []
    for work in works:
        if may_be_typical(work) and work.sampling is not None:
            for draft, (parent, token) in enumerate(zip(parents_of(work), work.proposed, strict=True), 1):
                drafts.append((row + 1 + parent, place + 1 + parent, place + draft, token))
                samplings.append(work.sampling)
        row += row_count(work)
        place += len(work.samples) + len(work.proposed)
    if drafts:
        rows, parent_places, places, draft_tokens = to_device(np.array(drafts, np.int64).T.copy(), logits.device)
        logs = processed(logits[rows], samplings, tokens[parent_places]).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        threshold = (DELTA * (-entropy).exp()).clamp(max=EPSILON)
        is_likely[places] = (logs.gather(1, draft_tokens[:, None])[:, 0].exp() > threshold).long()
    return is_likely


def with_accepted_drafts(work: Work, tokens: Sequence[int], likely_rows: Sequence[int]) -> list[int]:
    """Returns the draws of a work's rows, with each accepted draft token in place of the draw at its parent.

    `likely_rows`: by row, 0 if its draft token is not likely enough.
    """
    paths: list[list[int] | None] = [[]]  # accepted path to the text's end, and to each draft token; None: rejected
    parents = parents_of(work)
    for draft, parent in enumerate(parents):
        path_to_parent = paths[parent + 1]
        is_accepted = likely_rows[draft + 1] or work.proposed[draft] == tokens[parent + 1]
        paths.append([*path_to_parent, draft] if path_to_parent is not None and is_accepted else None)
    draws = list(tokens)
    for draft in max((path for path in paths if path is not None), key=len):
        draws[parents[draft] + 1] = work.proposed[draft]
    return draws
